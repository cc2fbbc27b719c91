"""Deliverables and their periods over the API."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from activities import cancellation
from agents.contracts import Completed, Output
from agents.exceptions import PermanentAgentError
from pipelines import deliverables, versions
from pipelines.models import DeliverablePeriod
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem, version_of
from tests.cases import in_one_test
from tests.engine import Engine, simultaneously

pytestmark = pytest.mark.usefixtures("one_at_a_time")

ACTIVITIES, DELIVERABLES, PERIODS, RUNS = (
    "/api/v1/activities/",
    "/api/v1/deliverables/",
    "/api/v1/deliverable-periods/",
    "/api/v1/pipeline-runs/",
)
PLAN = {"items": [{"pipeline": "flow", "name": "Bees"}, {"pipeline": "flow"}], "notes": "Spring."}


@pytest.fixture
def engine(database: None) -> Iterator[Engine]:
    running = Engine(["activity-planner", "qa"])
    yield running
    running.close()


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    save_pipeline(tenant)
    return tenant


def save_pipeline(tenant: Tenant, key: str = "flow") -> None:
    steps = [{"id": "a", "agent_role": "qa"}]
    versions.save(tenant.pk, {"key": key, "name": "Flow", "steps": steps}, actor="test")


def body(**members: Any) -> dict[str, Any]:
    return {"key": "blog", "name": "Blog", "pipelines": ["flow"], **members}


def make(client: Any, **members: Any) -> dict[str, Any]:
    answer = client.post(DELIVERABLES, body(**members))
    assert answer.status_code == 201, answer.content
    return answer.json()


def period_of(tenant: Tenant, deliverable: dict[str, Any], today: date = date(2026, 5, 1)) -> str:
    period, _ = deliverables.start_period(tenant.pk, UUID(deliverable["id"]), today=today, actor="test")
    return f"{PERIODS}{period.pk}/"


def plan_period(engine: Engine, tenant: Tenant, client: Any, plan: Any = PLAN) -> str:
    """Return the address of a period whose planner has answered with the plan."""
    engine.agent.behaviour = lambda request: (
        Completed(Output(data=plan))
        if request.agent_role == "activity-planner"
        else Completed(Output(content="done"))
    )
    address = period_of(tenant, make(client))
    engine.deliver()
    return address


def paths(response: Any, code: str = "validation_failed") -> set[str]:
    return {error["path"] for error in problem(response, 400, code)["errors"]}


# Deliverables


def test_a_deliverable_can_be_created_read_and_listed(api: Any, acme: Tenant) -> None:
    deliverable = api("operator").post(DELIVERABLES, body(description="On bees.", params={"tone": "calm"}))

    result = deliverable.json()
    assert deliverable.status_code == 201
    assert {name: result[name] for name in ("key", "name", "description", "status", "pipelines", "params", "version")} == {
        "key": "blog", "name": "Blog", "description": "On bees.", "status": "active", "pipelines": ["flow"],
        "params": {"tone": "calm"}, "version": 1,
    }  # fmt: skip
    assert (deliverable["Location"], version_of(deliverable)) == (f"{DELIVERABLES}{result['id']}/", "1")
    assert result["periods"] == f"{PERIODS}?deliverable={result['id']}"
    assert api("viewer").get(deliverable["Location"]).json() == result
    assert api("viewer").get(f"{DELIVERABLES}?status=active&search=log").json()["results"] == [result]
    assert api("viewer").get(f"{DELIVERABLES}?status=paused").json()["results"] == []


def test_the_same_key_twice_is_409(api: Any, acme: Tenant) -> None:
    client = api()
    first = make(client)

    problem(client.post(DELIVERABLES, body(name="Other")), 409, "already_exists")

    assert client.get(first["link"]).json() == first


@in_one_test(
    ("broken", "path"),
    [
        ({"key": "Not A Key"}, "key"), ({"key": None}, "key"), ({"name": ""}, "name"), ({"status": "asleep"}, "status"),
        ({"pipelines": []}, "pipelines"), ({"pipelines": "flow"}, "pipelines"), ({"pipelines": ["flow", "none"]}, "pipelines[1]"),
        ({"pipelines": ["flow", "flow"]}, "pipelines[1]"), ({"pipelines": [1]}, "pipelines[0]"), ({"params": []}, "params"),
        ({"colour": 1}, "colour"), ({"target": 0}, "target"), ({"target": 201}, "target"), ({"target": "8"}, "target"),
    ],
)  # fmt: skip
def test_every_error_names_its_path(api: Any, acme: Tenant, broken: Any, path: str) -> None:
    assert paths(api().post(DELIVERABLES, body(**broken))) == {path}


def test_every_error_in_a_list_of_pipelines_is_reported(api: Any, acme: Tenant) -> None:
    answer = api().post(DELIVERABLES, body(pipelines=["none", "flow", "flow", 1, ""]))

    assert paths(answer) == {"pipelines[0]", "pipelines[2]", "pipelines[3]", "pipelines[4]"}


def test_the_pipelines_of_another_tenant_are_unknown(api: Any, acme: Tenant, other_tenant: Tenant) -> None:
    save_pipeline(other_tenant, "theirs")

    assert paths(api().post(DELIVERABLES, body(pipelines=["theirs"]))) == {"pipelines[0]"}


def test_a_change_replaces_all_mutable_members_and_raises_the_version(api: Any, acme: Tenant) -> None:
    client = api("operator")
    deliverable = make(client, description="Old.", params={"tone": "calm"}, status="paused")
    save_pipeline(acme, "other")

    changed = client.put(deliverable["link"], {"name": "News", "pipelines": ["other"]})

    result = changed.json()
    assert (changed.status_code, version_of(changed)) == (200, "2")
    assert (result["name"], result["description"], result["params"], result["pipelines"], result["status"]) == (
        "News", "", {}, ["other"], "paused",
    )  # fmt: skip
    assert paths(client.put(deliverable["link"], {"name": "News", "pipelines": ["other"], "key": "new"})) == {
        "key"
    }


def test_one_of_several_simultaneous_changes_of_the_same_version_wins(api: Any, acme: Tenant) -> None:
    clients = [api(name=f"n{number}") for number in range(4)]
    deliverable = make(clients[0])
    change = {"name": "News", "pipelines": ["flow"]}

    answers = simultaneously(
        *[
            lambda c=client: c.put(deliverable["link"], change, headers={"If-Match": '"1"'})
            for client in clients
        ]
    )

    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412]


def test_only_a_deliverable_without_periods_can_be_deleted(api: Any, acme: Tenant) -> None:
    client = api("operator")
    unused, used = make(client), make(client, key="used")
    period_of(acme, used)

    problem(client.delete(unused["link"], headers={"If-Match": '"7"'}), 412, "precondition_failed")
    assert client.delete(unused["link"]).status_code == 204
    problem(client.get(unused["link"]), 404, "not_found")
    problem(client.delete(used["link"]), 409, "deliverable_in_use")


def test_a_deliverable_with_open_work_cannot_be_deleted_and_the_answer_counts_the_work(
    engine: Engine, api: Any, acme: Tenant
) -> None:
    client = api("operator")
    deliverable = make(client)
    named = {"deliverable": deliverable["id"]}
    single = client.post(ACTIVITIES, {"name": "Alone", "agent_role": "qa", **named}).json()
    run = client.post("/api/v1/pipelines/flow/runs/", named).json()

    both = problem(client.delete(deliverable["link"]), 409, "deliverable_in_use")
    client.post(f"{RUNS}{run['id']}/cancel/")
    one = problem(client.delete(deliverable["link"]), 409, "deliverable_in_use")

    assert "has 2 open activities and 1 running pipeline runs" in both["detail"]
    assert "has 1 open activities; wait for their end" in one["detail"]
    assert client.get(f"{ACTIVITIES}{single['id']}/").json()["deliverable"] == deliverable["id"]


def test_a_failed_activity_may_run_again_so_its_deliverable_cannot_be_deleted(
    engine: Engine, api: Any, acme: Tenant
) -> None:
    def broken(request: Any) -> Completed:
        raise PermanentAgentError("no")

    client = api("operator")
    deliverable = make(client)
    engine.agent.behaviour = broken
    client.post(ACTIVITIES, {"name": "Alone", "agent_role": "qa", "deliverable": deliverable["id"]})
    engine.drain()

    problem(client.delete(deliverable["link"]), 409, "deliverable_in_use")


def test_ended_work_keeps_the_id_of_a_deleted_deliverable(engine: Engine, api: Any, acme: Tenant) -> None:
    client = api("operator")
    deliverable = make(client)
    named = {"deliverable": deliverable["id"]}
    single = client.post(ACTIVITIES, {"name": "Alone", "agent_role": "qa", **named}).json()
    run = client.post("/api/v1/pipelines/flow/runs/", named).json()
    engine.drain()

    assert client.delete(deliverable["link"]).status_code == 204

    assert client.get(f"{ACTIVITIES}{single['id']}/").json()["deliverable"] == deliverable["id"]
    assert client.get(f"{RUNS}{run['id']}/").json()["deliverable"] == deliverable["id"]


@pytest.mark.parametrize("role", ["reviewer", "viewer"])
def test_changes_are_for_operators(api: Any, acme: Tenant, role: str) -> None:
    deliverable = make(api("operator"))
    period = period_of(acme, deliverable)
    client = api(role)

    for answer in (
        client.post(DELIVERABLES, body(key="new")),
        client.put(deliverable["link"], {"name": "News", "pipelines": ["flow"]}),
        client.delete(deliverable["link"]),
        client.post(f"{deliverable['link']}start-period/"),
        client.post(f"{period}plan/"),
        client.post(f"{period}cancel/"),
    ):
        assert answer.status_code == 403, answer.content
        assert answer.json()["required_role"] == "operator"


# Periods


def test_the_current_month_can_be_started_by_hand_once(api: Any, acme: Tenant) -> None:
    client = api("operator")
    deliverable = make(client)

    first = client.post(f"{deliverable['link']}start-period/")
    second = client.post(f"{deliverable['link']}start-period/")

    today = datetime.now(UTC).date()
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["starts_on"] == today.replace(day=1).isoformat()
    assert first.json() == second.json()
    read = client.get(first["Location"])
    assert (read.json()["id"], read["ETag"]) == (first.json()["id"], first["ETag"])
    with tenant_scope(acme.pk):
        assert DeliverablePeriod.objects.count() == 1


def test_starting_a_month_of_a_paused_deliverable_is_409(api: Any, acme: Tenant) -> None:
    deliverable = make(api(), status="paused")

    problem(api().post(f"{deliverable['link']}start-period/"), 409, "deliverable_not_active")


def test_a_period_is_returned_with_its_plan_and_the_outcome_of_each_item(
    engine: Engine, api: Any, acme: Tenant
) -> None:
    client = api()
    address = plan_period(engine, acme, client)

    under_way = client.get(address)
    engine.drain()
    result = client.get(address).json()

    assert under_way["ETag"]
    assert (under_way.json()["status"], result["status"]) == ("active", "completed")
    assert (result["starts_on"], result["ends_on"]) == ("2026-05-01", "2026-05-31")
    assert [result[name] for name in ("planned", "completed", "failed", "cancelled")] == [2, 2, 0, 0]
    assert (result["at_risk"], result["at_risk_reason"], result["plan_faults"]) == (False, "", [])
    assert result["plan"] == PLAN
    assert [
        (item["plan_item"], item["name"], item["pipeline"], item["status"]) for item in result["items"]
    ] == [
        (0, "Bees", "flow", "completed"),
        (1, "", "flow", "completed"),
    ]
    run = client.get(result["items"][0]["link"]).json()
    assert (run["period"], run["deliverable"], run["name"]) == (result["id"], result["deliverable"], "Bees")
    assert client.get(result["planner_activity"]).json()["agent_role"] == "activity-planner"


def test_the_link_of_a_period_lists_its_runs(engine: Engine, api: Any, acme: Tenant) -> None:
    client = api()
    address = plan_period(engine, acme, client)
    deliverable = client.get(address).json()["deliverable"]
    client.post("/api/v1/pipelines/flow/runs/", {"deliverable": deliverable})

    listed = client.get(client.get(address).json()["runs"]).json()["results"]

    assert {run["name"] for run in listed} == {"Bees", ""}
    assert len(listed) == 2
    assert len(client.get(RUNS).json()["results"]) == 3


def test_periods_can_be_filtered(engine: Engine, api: Any, acme: Tenant) -> None:
    client = api()
    one, two = make(client), make(client, key="two")
    april, may = (period_of(acme, one, date(2026, month, 9)) for month in (4, 5))
    other = period_of(acme, two, date(2026, 5, 9))
    cancellation.cancel(
        acme.pk, UUID(client.get(april).json()["planner_activity"].split("/")[-2]), actor="ann"
    )

    def period_ids(**wanted: Any) -> list[str]:
        return [row["link"] for row in client.get(PERIODS, wanted).json()["results"]]

    assert set(period_ids()) == {april, may, other}
    assert period_ids()[-1] == april
    assert period_ids(deliverable=one["id"]) == [may, april]
    assert set(period_ids(starts_on="2026-05-01")) == {may, other}
    assert period_ids(at_risk="true") == [april]
    assert period_ids(status="completed") == []
    assert paths(client.get(PERIODS, {"state": "planning"})) == {"state"}
    assert paths(client.get(PERIODS, {"starts_on": "May"})) == {"starts_on"}


def test_a_plan_written_by_a_person_is_accepted_or_refused_with_its_errors(
    engine: Engine, api: Any, acme: Tenant
) -> None:
    client = api("operator")
    address = period_of(acme, make(client))

    problem(client.post(f"{address}plan/", {"plan": PLAN}), 409, "planner_at_work")
    cancellation.cancel(
        acme.pk, UUID(client.get(address).json()["planner_activity"].split("/")[-2]), actor="ann"
    )
    broken = {"items": [{"pipeline": "none"}, {"pipeline": "flow", "priority": 0}], "note": ""}
    assert paths(client.post(f"{address}plan/", {"plan": broken}), "invalid_plan") == {
        "plan.note", "plan.items[1].priority", "plan.items[0].pipeline",
    }  # fmt: skip
    assert paths(client.post(f"{address}plan/", {"plan": "soon"}), "invalid_plan") == {"plan"}
    assert paths(client.post(f"{address}plan/", {"plans": {}})) == {"plans"}
    beside = client.post(f"{address}plan/", {"plan": {"items": [{"pipeline": "none"}]}, "notes": ""})
    assert paths(beside) == {"notes", "plan.items[0].pipeline"}
    etag = client.get(address)["ETag"]
    problem(
        client.post(f"{address}plan/", {"plan": PLAN}, headers={"If-Match": '"old"'}),
        412,
        "precondition_failed",
    )
    accepted = client.post(f"{address}plan/", {"plan": PLAN}, headers={"If-Match": etag})

    assert (accepted.status_code, accepted.json()["status"], accepted.json()["planned"]) == (200, "active", 2)
    problem(client.post(f"{address}plan/", {"plan": PLAN}), 409, "period_not_planning")


def test_planning_again_twice_with_one_idempotency_key_plans_once(
    engine: Engine, api: Any, acme: Tenant
) -> None:
    client = api("operator")
    address = period_of(acme, make(client))
    first = client.get(address).json()["planner_activity"]
    cancellation.cancel(acme.pk, UUID(first.split("/")[-2]), actor="ann")

    answers = [client.post(f"{address}plan/", headers={"Idempotency-Key": "k"}) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["planner_activity"] == answers[1].json()["planner_activity"] != first
    problem(client.post(f"{address}plan/"), 409, "planner_at_work")


def test_cancelling_a_period_cancels_its_runs(engine: Engine, api: Any, acme: Tenant) -> None:
    client = api("operator")
    address = plan_period(engine, acme, client)
    problem(client.post(f"{address}cancel/", {}, headers={"If-Match": '"old"'}), 412, "precondition_failed")

    answer = client.post(f"{address}cancel/", {"reason": "No budget."})

    result = answer.json()
    assert (answer.status_code, result["status"], result["cancelled"]) == (200, "cancelled", 2)
    assert {item["status"] for item in result["items"]} == {"cancelled"}
    assert client.post(f"{address}cancel/").status_code == 200


def test_a_completed_period_cannot_be_cancelled(engine: Engine, api: Any, acme: Tenant) -> None:
    client = api("operator")
    address = plan_period(engine, acme, client)
    engine.drain()

    problem(client.post(f"{address}cancel/"), 409, "period_ended")


def test_a_run_started_outside_a_period_belongs_to_none_and_may_name_one_of_the_caller(
    api: Any, acme: Tenant
) -> None:
    own = str(uuid4())

    run = api().post("/api/v1/pipelines/flow/runs/", {"deliverable": own}).json()

    assert (run["deliverable"], run["period"], run["name"]) == (own, None, "")


def test_a_parameter_with_the_name_that_a_fan_out_needs_is_refused_when_the_deliverable_is_saved(
    api: Any, acme: Tenant
) -> None:
    steps = [
        {"id": "a", "agent_role": "qa"},
        {"id": "b", "agent_role": "qa", "depends_on": ["a"], "for_each": "steps.a.data"},
    ]
    versions.save(acme.pk, {"key": "wide", "name": "Wide", "steps": steps}, actor="test")
    client = api()
    made = make(client, pipelines=["flow"], params={"item": 1})

    wrong = {"name": "", "pipelines": ["flow", "wide"], "params": {"item": 1, "other": 2}}

    assert paths(client.put(f"{DELIVERABLES}{made['id']}/", wrong)) == {"name", "params.item"}
    assert paths(client.post(DELIVERABLES, body(**wrong, key="more"))) == {"name", "params.item"}
