"""A role whose questions may hold the work of others: only where a person has granted it, and without any other right."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from agents import configuration
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.toolbox import Caller, at_work, not_woken, woken

pytestmark = pytest.mark.usefixtures("one_at_a_time")

QUESTION = {"type": "brand_direction", "title": "Which voice?", "options": ["calm", "loud"]}
GRANT = "/api/v1/agent-configs/qa/"


def grant(api: Any, **scope: Any) -> None:
    settings = {
        name: value for name, value in api().get(GRANT).json().items() if name in ("adapter", "endpoint")
    }
    answer = api("admin").put(GRANT, {**settings, "may_hold": scope})
    assert answer.status_code == 200, answer.content
    configuration.forget()


def asked(agent: Caller, **arguments: Any) -> dict[str, Any]:
    answer = agent.use("create_approval", **QUESTION, **arguments)
    assert answer.status_code == 201, answer.content
    found: dict[str, Any] = answer.json()
    return found


def later(engine: Engine, tenant: Tenant, role: str = "seo", **fields: Any) -> UUID:
    """Work that waits, since nobody has taken it up yet."""
    (made,) = engine.submit(tenant, role, **fields)
    return made


def refused(answer: dict[str, Any]) -> dict[str, str]:
    return {one.get("id") or one["name"]: one["reason"] for one in answer["not_held"]}


def test_a_granted_role_holds_the_waiting_work_of_a_scope_and_one_decision_wakes_all_of_it(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    grant(api, roles=["seo"], groups=["shop"])
    activity_id, agent = at_work(engine, acme)
    first, second = later(engine, acme), later(engine, acme)
    grouped, other = later(engine, acme, "dev", group_key="shop"), later(engine, acme, "dev")

    answer = asked(agent, scope={"roles": ["seo", "dev"], "groups": ["shop"]})

    assert set(answer["held"]) == {str(first), str(second), str(grouped)}
    assert refused(answer) == {"dev": "Your role is not allowed to hold it."}
    assert (answer["status"], answer["stop"]) == ("in_progress", False)
    assert engine.status(acme, activity_id) == "in_progress"
    assert all(not_woken(engine, one) for one in (first, second, grouped))
    assert engine.status(acme, other) == "in_progress"
    decision = {"decision": "approved", "chosen_option": "calm"}
    assert api("admin").post(f"/api/v1/approvals/{answer['id']}/decide/", decision).status_code == 200
    told = woken(engine, first)
    assert (told.wake_reason, told.wake_context["chosen_option"]) == ("review_approved", "calm")
    assert {engine.status(acme, one) for one in (first, second, grouped)} == {"in_progress"}


def test_without_a_grant_a_scope_holds_nothing_and_nobody_is_asked(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    _, agent = at_work(engine, acme)
    waiting = later(engine, acme)

    answer = asked(agent, scope={"roles": ["seo"]})

    assert (answer["id"], answer["held"]) == (None, [])
    assert refused(answer) == {"seo": "Your role is not allowed to hold it."}
    assert engine.status(acme, waiting) == "created"
    assert api().get("/api/v1/approvals/").json()["results"] == []


def test_a_grant_reaches_what_is_named_by_its_id_and_nothing_beyond_it(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    grant(api, roles=["seo"])
    _, agent = at_work(engine, acme)
    granted, other = later(engine, acme), later(engine, acme, "dev")
    foreign = later(engine, other_tenant)

    answer = asked(agent, activity_ids=[str(one) for one in (granted, other, foreign, uuid4())])

    assert answer["held"] == [str(granted)]
    assert len(answer["not_held"]) == 3
    assert set(refused(answer).values()) == {"It does not belong to this run's work."}


def test_everything_is_all_agents_work_of_the_tenant_and_what_runs_is_told_with_its_reason(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    grant(api, everything=True)
    running, _ = at_work(engine, acme, "dev")
    _, agent = at_work(engine, acme)
    waiting, foreign = later(engine, acme, "dev"), later(engine, other_tenant, "dev")

    answer = asked(agent, scope={"roles": ["dev"]})

    assert answer["held"] == [str(waiting)]
    assert refused(answer) == {str(running): "It is in_progress."}
    assert engine.status(other_tenant, foreign) == "created"


def test_what_somebody_else_has_asked_about_is_still_to_be_answered(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    grant(api, roles=["seo"])
    waiting = later(engine, acme)
    body = {"type": "budget", "title": "Go on?", "activity_ids": [str(waiting)]}
    first = api("operator").post("/api/v1/approvals/", body).json()["id"]
    _, agent = at_work(engine, acme)

    second = asked(agent, scope={"roles": ["seo"]})

    assert second["held"] == [str(waiting)]
    decision = {"decision": "approved", "chosen_option": "calm"}
    assert api("admin").post(f"/api/v1/approvals/{second['id']}/decide/", decision).status_code == 200
    assert not_woken(engine, waiting)
    assert (
        api("admin").post(f"/api/v1/approvals/{first}/decide/", {"decision": "approved"}).status_code == 200
    )
    assert woken(engine, waiting).wake_reason == "review_approved"


def test_a_call_that_is_repeated_holds_nothing_more(api: Any, engine: Engine, acme: Tenant) -> None:
    grant(api, roles=["seo"])
    _, agent = at_work(engine, acme)
    first = later(engine, acme)
    answer = asked(agent, scope={"roles": ["seo"]})
    second = later(engine, acme)

    again = agent.use("create_approval", **QUESTION, scope={"roles": ["seo"]}).json()

    assert (again["id"], again["held"]) == (answer["id"], [str(first)])
    assert engine.status(acme, second) == "created"


def test_a_scope_that_holds_more_than_an_agent_may_hold_at_once_is_refused_as_a_whole(
    api: Any, engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_LINKS_PER_AGENT_APPROVAL = 2
    grant(api, roles=["seo"])
    _, agent = at_work(engine, acme)
    waiting = [later(engine, acme) for _ in range(3)]

    refusal = agent.use("create_approval", **QUESTION, scope={"roles": ["seo"]})

    assert refusal.status_code == 429
    assert {engine.status(acme, one) for one in waiting} == {"created"}


def test_work_that_has_ended_is_of_no_scope_and_counts_towards_no_bound(
    api: Any, engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_LINKS_PER_AGENT_APPROVAL = 1
    grant(api, roles=["seo"])
    _, agent = at_work(engine, acme)
    ended = later(engine, acme)
    assert (
        api("operator").post(f"/api/v1/activities/{ended}/cancel/", {"reason": "Never mind"}).status_code
        == 200
    )
    waiting = later(engine, acme)

    answer = asked(agent, scope={"roles": ["seo"]})

    assert (answer["held"], answer["not_held"]) == ([str(waiting)], [])


@pytest.mark.parametrize(
    ("scope", "path"),
    [({}, "scope"), ({"roles": "seo"}, "scope.roles"), ({"pipelines": ["flow"]}, "scope.pipelines[0]"),
     ({"everything": True}, "scope.everything")],
    ids=["empty", "no list", "a key", "everything"],
)  # fmt: skip
def test_a_scope_names_what_it_means(engine: Engine, acme: Tenant, scope: Any, path: str) -> None:
    _, agent = at_work(engine, acme)

    answer = agent.use("create_approval", **QUESTION, scope=scope)

    assert [fault["path"] for fault in problem(answer, 400, "validation_failed")["errors"]] == [path]


def test_only_admins_grant_and_what_is_granted_is_read_by_the_letter(api: Any, acme: Tenant) -> None:
    assert api("operator").put(GRANT, {"may_hold": {"everything": True}}).status_code == 403
    broken = api("admin").put(GRANT, {"may_hold": {"pipelines": ["flow"], "all": True}})
    assert {fault["path"] for fault in problem(broken, 400, "validation_failed")["errors"]} == {
        "may_hold.pipelines[0]",
        "may_hold.all",
    }
