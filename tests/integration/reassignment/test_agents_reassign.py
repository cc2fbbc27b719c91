"""Agents reassign their work: what the successor contains, and how often that is allowed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from activities.states import LinkKind
from tenants.models import Tenant
from tests.accepted_work import RESULT, accept_work, action_url, agent_of, child, count_activities, next_call
from tests.answers import problem
from tests.engine import Engine
from tests.integration.reassignment.successors import TO_AGENT, TO_PERSON, fail, successor_of

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


def test_a_successor_contains_everything_that_belongs_to_the_work(engine: Engine, acme: Tenant) -> None:
    fields = {
        "description": "All about bees", "priority": 5, "params": {"words": 900}, "metadata": {"client": "apiary"},
        "input": {"content": "notes", "data": {"a": 1}}, "group_key": "site", "max_attempts": 7, "timeout_seconds": 44,
        "retry": {"base_seconds": 3},
    }  # fmt: skip
    activity_id, agent = accept_work(engine, acme, **fields)

    answer = agent.use("reassign_task", **TO_AGENT).json()

    first, successor = engine.get(acme, activity_id), successor_of(acme, activity_id)
    assert answer == {"id": str(successor.pk), "status": "reassigned", "stop": True, "duplicate": False}
    assert (first.status, first.reassign_reason) == ("reassigned", "Yours.")
    copied = (
        "name",
        "description",
        "priority",
        "params",
        "input",
        "group_key",
        "max_attempts",
        "timeout_seconds",
        "retry",
    )
    assert [getattr(successor, name) for name in copied] == [getattr(first, name) for name in copied]
    assert (successor.agent_role, successor.is_approval_gate, successor.status) == ("dev", False, "created")
    assert successor.metadata == {
        "client": "apiary", "reassigned_from": str(activity_id), "reassign_reason": "Yours.", "taken_over_from": "qa",
    }  # fmt: skip
    request = next_call(engine, successor.pk)
    assert (request.wake_reason, request.agent_role) == ("new_task", "dev")
    assert request.wakes[0]["reassigned_from"] == str(activity_id)
    assert (request.input or {})["content"] == "notes"


def test_the_run_that_reassigned_is_over_and_its_slot_is_free(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    activity_id, agent = accept_work(engine, acme)
    (next_id,) = engine.submit(acme)

    agent.create_with("reassign_task", **TO_AGENT)
    engine.drain()

    assert engine.status(acme, next_id) == "in_progress"
    (run,) = engine.runs(acme, activity_id)
    assert (run.status, run.ended_by_tool) == ("completed", "reassign_task")
    assert agent.post("heartbeat").json() == {
        "stop": True,
        "reason": "The agent has reassigned the work. Another activity continues it.",
    }
    assert agent.post("complete", RESULT).json() == {"accepted": False, "duplicate": False, "stop": True}


def test_a_dedup_key_moves_to_the_successor(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme, dedup_key="once")

    agent.create_with("reassign_task", **TO_AGENT)

    repeated = api().post("/api/v1/activities/", {"name": "again", "agent_role": "qa", "dedup_key": "once"})
    assert (repeated.status_code, repeated.json()["id"]) == (200, str(successor_of(acme, activity_id).pk))


def test_a_dedup_key_of_newer_work_does_not_move_to_the_successor(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = accept_work(engine, acme, dedup_key="once")
    fail(agent)
    (newer_id,) = engine.submit(acme, dedup_key="once")
    client = api("operator")

    refused = problem(client.post(action_url(activity_id, "retry")), 409, "transition_refused")
    successor = client.post(action_url(activity_id, "reassign"), TO_AGENT)

    assert str(newer_id) in refused["detail"]
    assert (successor.status_code, successor.json()["dedup_key"]) == (201, None)


@pytest.mark.parametrize("rules", [{"quorum": 2}, {"self_approval": False, "asked_by": "user:1"}])
def test_an_agent_cannot_pass_work_to_one_person_if_others_must_approve_it(
    engine: Engine, acme: Tenant, rules: dict[str, Any]
) -> None:
    activity_id, agent = accept_work(engine, acme, requires_approval=True, decision_rules=rules)

    refused = problem(agent.use("reassign_task", **TO_PERSON), 403, "tool_refused")

    assert "request_human_review" in refused["detail"]
    assert engine.status(acme, activity_id) == "in_progress"
    assert agent.use("reassign_task", **TO_AGENT).status_code == 201


def test_work_can_be_reassigned_three_times(api: Any, engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)
    second = agent.create_with("reassign_task", agent_role="dev", reason="x")
    third = UUID(
        api().post(action_url(second, "reassign"), {"agent_role": "qa", "reason": "Back."}).json()["id"]
    )
    engine.drain()
    fourth = agent_of(engine, third).create_with("reassign_task", agent_role="seo", reason="x")
    engine.drain()

    refused = problem(agent_of(engine, fourth).use("reassign_task", **TO_PERSON), 429, "quota_exceeded")

    assert refused["quota"] == "reassignments"
    assert (engine.status(acme, fourth), count_activities(acme)) == ("in_progress", 4)


@pytest.mark.parametrize("earlier_role", ["qa", "dev"])
def test_an_agent_cannot_reassign_to_a_role_that_had_the_work(
    engine: Engine, acme: Tenant, earlier_role: str
) -> None:
    _, agent = accept_work(engine, acme)
    successor = agent.create_with("reassign_task", **TO_AGENT)
    engine.drain()

    refused = problem(
        agent_of(engine, successor).use("reassign_task", agent_role=earlier_role, reason="x"),
        403,
        "tool_refused",
    )

    assert f"{earlier_role} has had this work before" in refused["detail"]
    assert (engine.status(acme, successor), count_activities(acme)) == ("in_progress", 2)


def test_earlier_roles_are_known_across_a_revision(api: Any, engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme, requires_approval=True)
    successor = agent.create_with("reassign_task", **TO_AGENT)
    engine.drain()
    agent_of(engine, successor).post("complete", RESULT)
    api("reviewer").post(action_url(successor, "reject"), {"notes": "Again."})
    engine.drain()
    revision = child(acme, successor, LinkKind.REVISION_OF).pk

    problem(agent_of(engine, revision).use("reassign_task", agent_role="qa", reason="x"), 403, "tool_refused")


def test_an_operator_may_reassign_to_an_earlier_role(api: Any, engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)
    successor = agent.create_with("reassign_task", **TO_AGENT)

    assert (
        api("operator")
        .post(action_url(successor, "reassign"), {"agent_role": "qa", "reason": "Do it."})
        .status_code
        == 201
    )


def test_a_late_decision_names_the_person_who_completed_the_work(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = accept_work(engine, acme)
    agent.create_with("reassign_task", **TO_PERSON)
    successor = successor_of(acme, activity_id).pk
    assert api("reviewer", name="Bob").post(action_url(successor, "complete"), RESULT).status_code == 200

    late = problem(api("reviewer").post(action_url(successor, "approve")), 409, "already_decided")

    assert late["detail"].startswith("token:Bob completed this at ")
