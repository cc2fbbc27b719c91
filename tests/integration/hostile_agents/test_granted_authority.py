"""Roles whose questions may hold the work of others, which an admin must have granted. The grant gives no other right."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from agents import configuration
from tenants.models import Tenant
from tests.accepted_work import AgentClient, accept_work, is_called_again, next_call
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")

QUESTION = {"type": "brand_direction", "title": "Which voice?", "options": ["calm", "loud"]}
GRANT = "/api/v1/agent-configs/qa/"


def grant(api: Any, **scope: Any) -> None:
    settings = {
        name: value for name, value in api().get(GRANT).json().items() if name in ("adapter", "endpoint")
    }
    answer = api("admin").put(GRANT, {**settings, "may_hold": scope})
    assert answer.status_code == 200, answer.content
    configuration.forget()


def request_approval(agent: AgentClient, **arguments: Any) -> dict[str, Any]:
    answer = agent.use("create_approval", **QUESTION, **arguments)
    assert answer.status_code == 201, answer.content
    body: dict[str, Any] = answer.json()
    return body


def submit_waiting(engine: Engine, tenant: Tenant, role: str = "seo", **fields: Any) -> UUID:
    """Submit work that waits, because no message of it is delivered yet."""
    (activity_id,) = engine.submit(tenant, role, **fields)
    return activity_id


def reasons(answer: dict[str, Any]) -> dict[str, str]:
    return {one.get("id") or one["name"]: one["reason"] for one in answer["not_held"]}


def test_a_granted_role_holds_waiting_work_of_a_scope_until_one_decision(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    grant(api, roles=["seo"], groups=["shop"])
    activity_id, agent = accept_work(engine, acme)
    first, second = submit_waiting(engine, acme), submit_waiting(engine, acme)
    grouped, other = (
        submit_waiting(engine, acme, "dev", group_key="shop"),
        submit_waiting(engine, acme, "dev"),
    )

    answer = request_approval(agent, scope={"roles": ["seo", "dev"], "groups": ["shop"]})

    assert set(answer["held"]) == {str(first), str(second), str(grouped)}
    assert reasons(answer) == {"dev": "Your role is not allowed to hold it."}
    assert (answer["status"], answer["stop"]) == ("in_progress", False)
    assert engine.status(acme, activity_id) == "in_progress"
    assert all(not is_called_again(engine, one) for one in (first, second, grouped))
    assert engine.status(acme, other) == "in_progress"
    decision = {"decision": "approved", "chosen_option": "calm"}
    assert api("admin").post(f"/api/v1/approvals/{answer['id']}/decide/", decision).status_code == 200
    request = next_call(engine, first)
    assert (request.wake_reason, request.wake_context["chosen_option"]) == ("review_approved", "calm")
    assert {engine.status(acme, one) for one in (first, second, grouped)} == {"in_progress"}


def test_without_a_grant_a_scope_holds_nothing(api: Any, engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)
    waiting = submit_waiting(engine, acme)

    answer = request_approval(agent, scope={"roles": ["seo"]})

    assert (answer["id"], answer["held"]) == (None, [])
    assert reasons(answer) == {"seo": "Your role is not allowed to hold it."}
    assert engine.status(acme, waiting) == "created"
    assert api().get("/api/v1/approvals/").json()["results"] == []


def test_a_grant_applies_to_named_ids_within_its_scope_only(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    grant(api, roles=["seo"])
    _, agent = accept_work(engine, acme)
    granted, other = submit_waiting(engine, acme), submit_waiting(engine, acme, "dev")
    foreign = submit_waiting(engine, other_tenant)

    answer = request_approval(agent, activity_ids=[str(one) for one in (granted, other, foreign, uuid4())])

    assert answer["held"] == [str(granted)]
    assert len(answer["not_held"]) == 3
    assert set(reasons(answer).values()) == {"It does not belong to this run's work."}


def test_a_grant_of_everything_covers_waiting_work_of_the_tenant_only(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    grant(api, everything=True)
    running, _ = accept_work(engine, acme, "dev")
    _, agent = accept_work(engine, acme)
    waiting, foreign = submit_waiting(engine, acme, "dev"), submit_waiting(engine, other_tenant, "dev")

    answer = request_approval(agent, scope={"roles": ["dev"]})

    assert answer["held"] == [str(waiting)]
    assert reasons(answer) == {str(running): "It is in_progress."}
    assert engine.status(other_tenant, foreign) == "created"


def test_work_under_another_question_still_waits_for_its_answer(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    grant(api, roles=["seo"])
    waiting = submit_waiting(engine, acme)
    body = {"type": "budget", "title": "Go on?", "activity_ids": [str(waiting)]}
    first = api("operator").post("/api/v1/approvals/", body).json()["id"]
    _, agent = accept_work(engine, acme)

    second = request_approval(agent, scope={"roles": ["seo"]})

    assert second["held"] == [str(waiting)]
    decision = {"decision": "approved", "chosen_option": "calm"}
    assert api("admin").post(f"/api/v1/approvals/{second['id']}/decide/", decision).status_code == 200
    assert not is_called_again(engine, waiting)
    assert (
        api("admin").post(f"/api/v1/approvals/{first}/decide/", {"decision": "approved"}).status_code == 200
    )
    assert next_call(engine, waiting).wake_reason == "review_approved"


def test_a_repeated_call_holds_no_further_work(api: Any, engine: Engine, acme: Tenant) -> None:
    grant(api, roles=["seo"])
    _, agent = accept_work(engine, acme)
    first = submit_waiting(engine, acme)
    answer = request_approval(agent, scope={"roles": ["seo"]})
    second = submit_waiting(engine, acme)

    again = agent.use("create_approval", **QUESTION, scope={"roles": ["seo"]}).json()

    assert (again["id"], again["held"]) == (answer["id"], [str(first)])
    assert engine.status(acme, second) == "created"


def test_a_scope_above_the_limit_is_refused_as_a_whole(
    api: Any, engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_LINKS_PER_AGENT_APPROVAL = 2
    grant(api, roles=["seo"])
    _, agent = accept_work(engine, acme)
    waiting = [submit_waiting(engine, acme) for _ in range(3)]

    refusal = agent.use("create_approval", **QUESTION, scope={"roles": ["seo"]})

    assert refusal.status_code == 429
    assert {engine.status(acme, one) for one in waiting} == {"created"}


def test_ended_work_belongs_to_no_scope_and_counts_towards_no_limit(
    api: Any, engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_LINKS_PER_AGENT_APPROVAL = 1
    grant(api, roles=["seo"])
    _, agent = accept_work(engine, acme)
    ended = submit_waiting(engine, acme)
    assert (
        api("operator").post(f"/api/v1/activities/{ended}/cancel/", {"reason": "Never mind"}).status_code
        == 200
    )
    waiting = submit_waiting(engine, acme)

    answer = request_approval(agent, scope={"roles": ["seo"]})

    assert (answer["held"], answer["not_held"]) == ([str(waiting)], [])


@in_one_test(
    ("scope", "path"),
    [({}, "scope"), ({"roles": "seo"}, "scope.roles"), ({"pipelines": ["flow"]}, "scope.pipelines[0]"),
     ({"everything": True}, "scope.everything")],
    ids=["empty", "not a list", "a key", "everything"],
)  # fmt: skip
def test_a_malformed_scope_is_refused_with_its_path(
    engine: Engine, acme: Tenant, scope: Any, path: str
) -> None:
    _, agent = accept_work(engine, acme)

    answer = agent.use("create_approval", **QUESTION, scope=scope)

    assert [fault["path"] for fault in problem(answer, 400, "validation_failed")["errors"]] == [path]


def test_only_admins_grant_and_a_malformed_grant_is_refused(api: Any, acme: Tenant) -> None:
    assert api("operator").put(GRANT, {"may_hold": {"everything": True}}).status_code == 403
    broken = api("admin").put(GRANT, {"may_hold": {"pipelines": ["flow"], "all": True}})
    assert {fault["path"] for fault in problem(broken, 400, "validation_failed")["errors"]} == {
        "may_hold.pipelines[0]",
        "may_hold.all",
    }
