"""In which statuses operators may reassign work."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db.models.functions import Now

from activities.maintenance import recovery
from activities.models import Activity, DeadLetter
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import (
    RESULT,
    accept_work,
    action_url,
    agent_of,
    assert_superseded,
    calls_of,
    children,
    count_activities,
    is_called_again,
)
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.reassignment.successors import TO_AGENT, TO_PERSON, fail, successor_of

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


def created(engine: Engine, acme: Tenant) -> UUID:
    (activity_id,) = engine.submit(acme, "ba")
    return activity_id


def running(engine: Engine, acme: Tenant) -> UUID:
    return accept_work(engine, acme)[0]


def asking(tool: str, **arguments: Any) -> Callable[[Engine, Tenant], UUID]:
    def suspended(engine: Engine, acme: Tenant) -> UUID:
        activity_id, agent = accept_work(engine, acme)
        agent.create_with(tool, **arguments)
        return activity_id

    return suspended


def failed(engine: Engine, acme: Tenant) -> UUID:
    activity_id, agent = accept_work(engine, acme)
    fail(agent)
    return activity_id


def failed_and_escalated(engine: Engine, acme: Tenant) -> UUID:
    from activities import dead_letters

    activity_id = failed(engine, acme)
    dead_letters.handle_waiting()
    return activity_id


WORK_BY_STATUS: dict[str, Callable[[Engine, Tenant], UUID]] = {
    "created": created,
    "in_progress": running,
    "blocked": asking("report_blocker", type="x", message="y"),
    "awaiting_subtask": asking("create_subtask", name="part", agent_role="ba", blocking=True),
    "awaiting_review": asking("request_human_review", question="?"),
    "failed": failed,
    "needs_review": failed_and_escalated,
}


@pytest.mark.parametrize("status", WORK_BY_STATUS)
@pytest.mark.parametrize("to", [TO_AGENT, TO_PERSON], ids=["agent", "person"])
def test_an_operator_can_reassign_work_in_any_unfinished_status(
    api: Any, engine: Engine, acme: Tenant, status: str, to: dict[str, str]
) -> None:
    activity_id = WORK_BY_STATUS[status](engine, acme)
    assert engine.status(acme, activity_id) == status
    questions = [one.pk for one in children(acme, activity_id)]

    answer = api("operator", name="Ann").post(action_url(activity_id, "reassign"), to)

    assert answer.status_code == 201, answer.content
    successor = successor_of(acme, activity_id)
    assert (answer.json()["id"], answer["Location"]) == (
        str(successor.pk),
        f"/api/v1/activities/{successor.pk}/",
    )
    assert engine.status(acme, activity_id) == "reassigned"
    for one in questions:
        assert (engine.status(acme, one), engine.get(acme, one).cancel_reason) == ("cancelled", "obsolete")
    assert not is_called_again(engine, activity_id)
    if to is TO_AGENT:
        assert len(calls_of(engine, successor.pk)) == 1
        agent_of(engine, successor.pk).post("complete", RESULT)
        assert engine.status(acme, successor.pk) == "done"


def test_an_agent_whose_work_was_reassigned_is_told_to_stop(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)

    api("operator").post(action_url(activity_id, "reassign"), TO_AGENT)

    assert agent.post("heartbeat").json()["stop"] is True
    assert_superseded(agent.post("complete", RESULT))
    assert_superseded(agent.use("report_blocker", type="x", message="y"))


def test_reassigning_failed_work_closes_its_dead_letter(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id = failed_and_escalated(engine, acme)

    api("operator").post(action_url(activity_id, "reassign"), TO_AGENT)

    with tenant_scope(acme.pk):
        assert DeadLetter.objects.get(activity_id=activity_id).state == "closed"


@in_one_test("status", ["awaiting_approval", "done", "cancelled", "reassigned"])
def test_finished_work_and_work_at_its_gate_cannot_be_reassigned(
    api: Any, engine: Engine, acme: Tenant, status: str
) -> None:
    client = api("operator")
    activity_id, agent = accept_work(engine, acme, requires_approval=status == "awaiting_approval")
    if status == "cancelled":
        client.post(action_url(activity_id, "cancel"))
    elif status == "reassigned":
        client.post(action_url(activity_id, "reassign"), TO_AGENT)
    else:
        agent.post("complete", RESULT)
    before = count_activities(acme)

    problem(client.post(action_url(activity_id, "reassign"), TO_AGENT), 409, "transition_refused")

    assert (engine.status(acme, activity_id), count_activities(acme)) == (status, before)


@in_one_test(
    ("body", "path"),
    [({"agent_role": "dev"}, "reason"), ({"reason": "x"}, "agent_role"), ({"agent_role": "none-such", "reason": "x"}, "agent_role"),
     ({"assignee_type": "agent", "human_role": "x", "reason": "x"}, "assignee_type")],
)  # fmt: skip
def test_an_invalid_reassignment_is_refused_with_its_path(
    api: Any, engine: Engine, acme: Tenant, body: dict[str, Any], path: str
) -> None:
    refused = problem(
        api().post(action_url(created(engine, acme), "reassign"), body), 400, "validation_failed"
    )

    assert [fault["path"] for fault in refused["errors"]] == [path]


def test_only_operators_reassign(api: Any, engine: Engine, acme: Tenant) -> None:
    problem(api("reviewer").post(action_url(created(engine, acme), "reassign"), TO_AGENT), 403, "forbidden")


@pytest.mark.parametrize("by", ["operator", "agent"])
def test_only_people_let_work_start_in_spite_of_its_expiry(
    api: Any, engine: Engine, acme: Tenant, by: str
) -> None:
    activity_id, agent = accept_work(engine, acme)
    with tenant_scope(acme.pk):
        Activity.objects.filter(pk=activity_id).update(expires_at=Now() - timedelta(seconds=1))

    if by == "operator":
        assert api("operator").post(action_url(activity_id, "reassign"), TO_AGENT).status_code == 201
    else:
        agent.use("reassign_task", **TO_AGENT)
    recovery.expire_stale()

    assert successor_of(acme, activity_id).status == ("created" if by == "operator" else "cancelled")
