"""Budgets and usage over the API."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import uuid4

from rest_framework.test import APIClient

from activities import budgets, outbox, relay, run_tokens
from activities.execution import reports
from agents import configuration
from pipelines import versions
from pipelines.submission import NewRun, start_run
from tenants.identifiers import uuid7
from tenants.models import Tenant
from tests.answers import problem, version_of
from tests.cases import in_one_test
from tests.engine import Engine
from tests.registry import temporary_agent
from tests.spending import accept_run, complete_at_cost, dollars, ledger_total, make_budget, result_costing

BUDGETS, USAGE = "/api/v1/budgets/", "/api/v1/usage/"
BODY = {"name": "This month", "cap": "25.50", "period": "month", "agent_role": "qa"}


def create_budget(client: Any, **fields: Any) -> dict[str, Any]:
    answer = client.post(BUDGETS, {**BODY, **fields}, format="json")
    assert answer.status_code == 201, answer.content
    return dict(answer.json())


def test_a_budget_can_be_created_read_and_listed(api: Any, tenant: Tenant) -> None:
    answer = api().post(BUDGETS, BODY, format="json")

    budget = answer.json()
    assert answer["Location"] == budget["link"] == f"{BUDGETS}{budget['id']}/"
    assert {name: budget[name] for name in ("cap", "spent", "reserved", "remaining", "warning_share")} == {
        "cap": "25.5", "spent": "0", "reserved": "0", "remaining": "25.5", "warning_share": "0.8",
    }  # fmt: skip
    assert (budget["unit"], budget["period"], budget["deliverable"], budget["warned_at"]) == (
        "dollars", "month", None, None,
    )  # fmt: skip
    viewer = api("viewer")
    assert viewer.get(budget["link"]).json() == budget
    assert version_of(viewer.get(budget["link"])) == "1"
    assert viewer.get(f"{BUDGETS}?agent_role=qa&unit=dollars").json()["results"] == [budget]
    assert viewer.get(f"{BUDGETS}?period=day").json()["results"] == []


def test_the_state_of_a_budget_is_returned(api: Any, engine: Engine, acme: Tenant) -> None:
    budget = make_budget(acme, "1")
    run = accept_run(engine, acme)
    accept_run(engine, acme)
    reports.beat(run, progress=None, usage=dollars("0.60"))
    reports.beat(run, progress=None, usage=dollars("1.25"))

    body = api("viewer").get(f"{BUDGETS}{budget.pk}/").json()

    assert {name: body[name] for name in ("spent", "reserved", "remaining", "overshoot")} == {
        "spent": "1.25", "reserved": "0.3", "remaining": "0", "overshoot": "0.55",
    }  # fmt: skip
    assert body["warned_at"] is not None
    assert body["waiting_since"] is not None


def test_the_answer_to_a_heartbeat_tells_an_agent_to_stop(engine: Engine, acme: Tenant) -> None:
    make_budget(acme, "1")
    run = accept_run(engine, acme)
    agent = APIClient(HTTP_AUTHORIZATION=f"Bearer {run_tokens.issuing(run)().token}")
    address = f"/api/v1/agent-runs/{run.run_id}/"

    def beat(cost: str) -> Any:
        return agent.post(
            f"{address}heartbeat/", {"usage": {"cost_usd": cost}, "progress": cost}, format="json"
        )

    assert beat("0.99").json() == {"stop": False, "reason": None}
    body = beat("1.01").json()
    assert (body["stop"], "used up: 1.01 of 1 dollars" in body["reason"]) == (True, True)
    assert problem(beat("1.02"), 409, "run_superseded")["stop"] is True
    late = agent.post(
        f"{address}complete/", {"output": {"content": "x"}, "usage": {"cost_usd": "1.03"}}, format="json"
    )
    assert problem(late, 409, "run_superseded")["reason"] == body["reason"]

    (ended,) = engine.runs(acme, run.activity_id)
    assert (ended.beats, ended.progress, ended.status) == (2, "1.01", "failed")
    assert ledger_total(acme) == Decimal("1.03"), "the usage of a superseded run counts"


def test_raising_a_cap_needs_its_version_and_work_continues(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api()
    budget = create_budget(client, cap=0)
    configuration.forget()
    (waits,) = engine.submit(acme)
    engine.drain()
    assert engine.status(acme, waits) == "created"
    why = client.get(f"/api/v1/activities/{waits}/why/").json()
    assert (why["code"], why["holder"]) == ("budget", f"budget This month ({budget['id']})")
    body = client.get(f"/api/v1/activities/{waits}/").json()
    assert body["waiting_for"]["code"] == "budget"

    problem(client.put(budget["link"], BODY, format="json", HTTP_IF_MATCH='"7"'), 412, "precondition_failed")
    answer = client.put(budget["link"], BODY, format="json", HTTP_IF_MATCH='"1"')
    assert (answer.status_code, answer.json()["version"], version_of(answer)) == (200, 2, "2")
    budgets.release_where_room()
    outbox.promote()
    relay.flush()
    engine.drain()

    assert engine.status(acme, waits) == "done"


def test_the_scope_and_period_of_a_budget_cannot_be_changed(api: Any) -> None:
    client = api()
    budget = create_budget(client)

    body = {**BODY, "agent_role": "dev", "period": "day", "activity": str(uuid4())}
    refusal = problem(client.put(budget["link"], body, format="json"), 400, "validation_failed")

    assert {error["path"] for error in refusal["errors"]} == {"agent_role", "period", "activity"}


def test_a_change_that_omits_the_scope_of_a_budget_keeps_it(api: Any) -> None:
    client = api()
    budget = create_budget(client, unit="tokens")

    answer = client.put(budget["link"], {"name": "More", "cap": 30}, format="json")

    assert answer.status_code == 200, answer.content
    changed = answer.json()
    assert (changed["name"], changed["cap"]) == ("More", "30")
    assert [changed[name] for name in ("agent_role", "unit", "period")] == ["qa", "tokens", "month"]
    problem(
        client.put(budget["link"], {"name": "More", "cap": 30, "agent_role": None}), 400, "validation_failed"
    )


def test_a_budget_can_be_deleted(api: Any, tenant: Tenant) -> None:
    client = api()
    budget = create_budget(client)

    assert client.delete(budget["link"]).status_code == 204

    problem(client.get(budget["link"]), 404, "not_found")
    problem(client.delete(budget["link"]), 404, "not_found")
    assert client.get(BUDGETS).json()["results"] == []


@in_one_test("role", ["viewer", "reviewer", "operator"])
def test_only_admins_change_budgets(api: Any, role: str) -> None:
    address, client = create_budget(api())["link"], api(role)

    problem(client.post(BUDGETS, BODY, format="json"), 403, "forbidden")
    problem(client.put(address, BODY, format="json"), 403, "forbidden")
    problem(client.delete(address), 403, "forbidden")
    assert client.get(address).status_code == 200


def test_budgets_and_usage_of_another_tenant_are_404_or_empty(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    address, stranger = create_budget(api())["link"], api(tenant=other_tenant)
    reports.complete(accept_run(engine, acme), result_costing("1"), actor="test")

    problem(stranger.get(address), 404, "not_found")
    problem(stranger.put(address, BODY, format="json"), 404, "not_found")
    problem(stranger.delete(address), 404, "not_found")
    assert stranger.get(BUDGETS).json()["results"] == []
    assert stranger.get(USAGE).json()["total"]["cost_usd"] == "0"


def test_every_error_of_a_budget_is_reported(api: Any) -> None:
    body = {
        "name": "", "cap": -1, "unit": "euros", "period": 5, "warning_share": 2, "estimate": "much", "agent_role": "nobody",
        "deliverable": "x", "more": 1,
    }  # fmt: skip

    refusal = problem(api().post(BUDGETS, body, format="json"), 400, "validation_failed")

    assert {error["path"] for error in refusal["errors"]} == body.keys()


def test_an_unknown_activity_of_a_budget_is_reported_with_the_other_errors(api: Any) -> None:
    body = {"name": "", "cap": -1, "agent_role": "nobody", "activity": str(uuid4())}

    refusal = problem(api().post(BUDGETS, body, format="json"), 400, "validation_failed")

    assert {error["path"] for error in refusal["errors"]} == body.keys()


def test_another_scope_is_reported_with_the_other_errors_of_a_change(api: Any) -> None:
    client = api()
    budget = client.post(BUDGETS, BODY, format="json").json()
    change = {
        "name": "",
        "cap": -1,
        "more": 1,
        "agent_role": "nobody",
        "activity": str(uuid4()),
        "period": "day",
    }

    refusal = problem(
        client.put(f"{BUDGETS}{budget['id']}/", change, format="json"), 400, "validation_failed"
    )

    assert {error["path"] for error in refusal["errors"]} == change.keys()


def test_a_budget_of_a_role_that_was_deleted_can_be_changed(api: Any, tenant: Tenant) -> None:
    client = api()
    body = {**BODY, "agent_role": "scribe"}
    with temporary_agent():
        budget = client.post(BUDGETS, body, format="json").json()

    assert client.put(f"{BUDGETS}{budget['id']}/", {**body, "cap": "9"}, format="json").json()["cap"] == "9"


@in_one_test("cap", [True, None, "1e999", "NaN", "0.0000000000001", [], "12,5", 10**16, "1_000", " 5 ", "٣"])
def test_an_invalid_amount_is_refused(api: Any, cap: Any) -> None:
    problem(api().post(BUDGETS, {"name": "x", "cap": cap}, format="json"), 400, "validation_failed")


def test_usage_adds_up_however_it_is_grouped(api: Any, engine: Engine, acme: Tenant) -> None:
    steps = [{"id": "one", "agent_role": "qa"}, {"id": "two", "agent_role": "dev"}]
    versions.save(acme.pk, {"key": "chain", "name": "Chain", "steps": steps}, actor="test")
    deliverable = uuid7()
    engine.agent.behaviour = complete_at_cost("0.105")
    start_run(acme.pk, "chain", NewRun(), actor="test")
    engine.submit(acme, "qa", deliverable_id=deliverable)
    engine.drain()
    engine.agent.behaviour = complete_at_cost("0.01")
    engine.submit(acme, "seo")
    engine.drain()
    client = api("viewer")

    def costs(group: str, query: str = "") -> dict[Any, str]:
        groups = client.get(f"{USAGE}?group_by={group}{query}").json()
        total = sum((Decimal(row["cost_usd"]) for row in groups["results"]), Decimal(0))
        assert total == Decimal(groups["total"]["cost_usd"])
        return {row[group]: row["cost_usd"] for row in groups["results"]}

    assert costs("role") == {"qa": "0.21", "dev": "0.105", "seo": "0.01"}
    assert costs("pipeline") == {"chain": "0.21", None: "0.115"}
    assert costs("deliverable") == {str(deliverable): "0.105", None: "0.22"}
    assert costs("role", "&pipeline=chain") == {"qa": "0.105", "dev": "0.105"}
    assert costs("model", f"&deliverable={deliverable}&role=qa") == {"": "0", "small": "0.105"}
    assert sorted(costs("activity").values()) == sorted(costs("run").values())
    (day,) = costs("day")
    assert costs("day", f"&from={day}&to={day}") == {day: "0.325"}
    both = client.get(f"{USAGE}?group_by=role,day&limit=1").json()
    assert (both["results"][0]["role"], both["results"][0]["day"], both["truncated"]) == ("qa", day, True)
    assert both["total"] == {
        "input_tokens": 0, "output_tokens": 0, "cost_usd": "0.325", "runs": 4, "unpriced_tokens": 0,
    }  # fmt: skip
    assert client.get(f"{USAGE}?from=2020-01-01&to=2020-01-02").json()["total"]["runs"] == 0


@in_one_test(
    ("query", "path"),
    [
        ("group_by=colour", "group_by"),
        ("group_by=role,role", "group_by"),
        ("from=yesterday", "from"),
        ("limit=0", "limit"),
        ("limit=99999", "limit"),
        ("activity=5", "activity"),
        ("colour=red", "colour"),
        ("cursor=x", "cursor"),
    ],
)
def test_an_unknown_parameter_of_a_usage_query_is_refused(api: Any, query: str, path: str) -> None:
    refusal = problem(api().get(f"{USAGE}?{query}"), 400, "validation_failed")

    assert [error["path"] for error in refusal["errors"]] == [path]


def test_a_run_contains_its_cost(api: Any, engine: Engine, acme: Tenant) -> None:
    run = accept_run(engine, acme)
    reports.complete(run, result_costing("0.42"), actor="test")

    (body,) = api().get(f"/api/v1/activities/{run.activity_id}/runs/").json()["results"]

    assert body["usage"]["cost_usd"] == "0.42"
    assert api().get(f"{USAGE}?activity={run.activity_id}").json()["total"]["cost_usd"] == "0.42"


def test_creating_a_budget_twice_with_one_key_creates_one(api: Any, tenant: Tenant) -> None:
    client = api()

    first = client.post(BUDGETS, BODY, format="json", HTTP_IDEMPOTENCY_KEY="k")
    again = client.post(BUDGETS, BODY, format="json", HTTP_IDEMPOTENCY_KEY="k")

    assert first.json() == again.json()
    assert len(client.get(BUDGETS).json()["results"]) == 1
