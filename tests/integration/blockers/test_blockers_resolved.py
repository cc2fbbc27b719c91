"""Resolving a blocker wakes the agent once, whichever way the answer comes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pipelines import versions
from pipelines.models import PipelineRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import (
    RESULT,
    AgentClient,
    accept_work,
    action_url,
    agent_of,
    children,
    is_called_again,
    next_call,
    wakes_of,
)
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.blockers.blocked_work import DOWN, block_work

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


@pytest.mark.parametrize("target", ["resolution", "blocked"])
def test_the_agent_continues_with_the_note_of_the_person(
    api: Any, engine: Engine, acme: Tenant, target: str
) -> None:
    activity_id, _, resolution = block_work(engine, acme)

    answer = api("reviewer", name="Ann").post(
        action_url(resolution if target == "resolution" else activity_id, "resolve"),
        {"note": "It is up again."},
    )

    assert answer.status_code == 200, answer.content
    request = next_call(engine, activity_id)
    assert (request.wake_reason, request.attempt) == ("unblocked", 1)
    (wake,) = request.wakes
    assert wake == {
        "reason": "unblocked", "blocker_type": "api_outage", "blocker_message": DOWN["message"],
        "blocker_resolution": "It is up again.", "blocker_outcome": "done", "resolved_by": "token:Ann",
    }  # fmt: skip
    job = agent_of(engine, activity_id).get_job().json()
    assert (job["wake_reason"], job["blocker_resolution"]) == ("unblocked", "It is up again.")
    activity = engine.get(acme, activity_id)
    assert (activity.blocker_type, activity.blocker_message, activity.blocked_at) == (None, None, None)
    assert agent_of(engine, activity_id).post("complete", RESULT).json()["accepted"] is True
    assert engine.status(acme, activity_id) == "done"


def test_completing_the_resolution_resolves_the_blocker(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, _, resolution = block_work(engine, acme)

    api("reviewer").post(action_url(resolution, "complete"), {"note": "It is up again."})

    assert next_call(engine, activity_id).wakes[0]["blocker_resolution"] == "It is up again."


@pytest.mark.parametrize("body", [{}, {"note": " "}, {"output": {"content": "Up."}}])
def test_a_resolution_is_not_completed_without_a_note(
    api: Any, engine: Engine, acme: Tenant, body: dict[str, Any]
) -> None:
    """The blocked agent continues with this note, so every route requires it."""
    activity_id, _, resolution = block_work(engine, acme)
    successor = (
        api()
        .post(action_url(resolution, "reassign"), {"human_role": "devops", "reason": "Yours."})
        .json()["id"]
    )

    refusal = problem(api("reviewer").post(action_url(successor, "complete"), body), 400, "validation_failed")

    assert [error["path"] for error in refusal["errors"]] == ["note"]
    assert engine.status(acme, activity_id) == "blocked"
    assert api("reviewer").post(action_url(successor, "complete"), {**body, "note": "Up."}).status_code == 200
    assert next_call(engine, activity_id).wakes[0]["blocker_resolution"] == "Up."


def test_a_resolution_stays_one_in_the_inbox_when_it_is_reassigned_twice(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    _, _, resolution = block_work(engine, acme)
    task = api().post("/api/v1/activities/", {"name": "Call", "human_role": "editor"}).json()
    newest = str(resolution)
    for human_role in ("devops", "editor"):
        body = {"human_role": human_role, "reason": "Yours."}
        newest = api().post(action_url(UUID(newest), "reassign"), body).json()["id"]

    items = {item["id"]: item for item in api("reviewer").get("/api/v1/inbox/").json()["results"]}

    assert items[newest]["kind"] == "resolution"
    assert "resolve" in items[newest]["allowed_actions"]
    assert items[task["id"]]["kind"] == "task"


@in_one_test("decision", ["complete", "resolve"])
def test_the_inbox_requires_the_note_of_a_resolution(
    api: Any, engine: Engine, acme: Tenant, decision: str
) -> None:
    activity_id, _, resolution = block_work(engine, acme)
    item = {"id": str(resolution), "decision": decision, "notes": ""}

    answer = api("reviewer").post("/api/v1/inbox/decide/", {"items": [item]})

    body = answer.json() if answer.status_code == 400 else answer.json()["results"][0]["problem"]
    assert [error["path"].rpartition(".")[2] for error in body["errors"]] == ["notes"]
    assert engine.status(acme, activity_id) == "blocked"


def test_a_cancelled_resolution_wakes_the_agent_with_that_outcome(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, _, resolution = block_work(engine, acme)

    api("operator").post(action_url(resolution, "cancel"), {"reason": "Do without it."})

    (wake,) = next_call(engine, activity_id).wakes
    assert (wake["blocker_outcome"], wake["blocker_resolution"]) == ("cancelled", "Do without it.")


def test_a_second_answer_learns_who_was_first_and_wakes_nobody(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, _, resolution = block_work(engine, acme)
    api("reviewer", name="Ann").post(action_url(resolution, "resolve"), {"note": "Up."})

    late = problem(
        api("reviewer", name="Bob").post(action_url(activity_id, "resolve"), {"note": "x"}),
        409,
        "already_decided",
    )

    assert (late["decided_by"], late["decision"]) == ("token:Ann", "done")
    assert "token:Ann resolved this at" in late["detail"]
    assert [wake.reason for wake in wakes_of(acme, activity_id)] == ["new_task", "unblocked"]


def test_work_that_is_not_blocked_cannot_be_resolved(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, _ = accept_work(engine, acme)

    refused = problem(
        api("reviewer").post(action_url(activity_id, "resolve"), {"note": "x"}), 409, "transition_refused"
    )

    assert "nothing blocks it" in refused["detail"]


def test_cancelling_the_blocked_activity_closes_its_resolution(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, agent, resolution = block_work(engine, acme)

    api("operator").post(action_url(activity_id, "cancel"), {"reason": "Not needed."})

    closed = engine.get(acme, resolution)
    assert (closed.status, closed.cancel_reason) == ("cancelled", "obsolete")
    for target in (resolution, activity_id):
        late = problem(
            api("reviewer").post(action_url(target, "resolve"), {"note": "x"}), 409, "transition_refused"
        )
        assert "does not need it any more" in late["detail"]
    assert not is_called_again(engine, activity_id)
    assert agent.post("heartbeat").json()["stop"] is True


def test_a_second_blocker_needs_its_own_resolution(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, _, first = block_work(engine, acme)
    api("reviewer").post(action_url(first, "resolve"), {"note": "one"})
    next_call(engine, activity_id)
    second = agent_of(engine, activity_id).create_with(
        "report_blocker", type="api_outage", message="Down again."
    )

    problem(api("reviewer").post(action_url(first, "resolve"), {"note": "x"}), 409, "already_decided")
    assert engine.status(acme, activity_id) == "blocked"
    api("reviewer").post(action_url(activity_id, "resolve"), {"note": "two"})

    assert engine.status(acme, second) == "done"
    assert next_call(engine, activity_id).wakes[0]["blocker_resolution"] == "two"


def test_a_blocker_resets_the_attempts(api: Any, engine: Engine, acme: Tenant) -> None:
    """Otherwise an agent that asks often would run out of attempts."""
    activity_id, _, _ = block_work(engine, acme, max_attempts=2)
    for _ in range(3):
        api("reviewer").post(action_url(activity_id, "resolve"), {"note": "Up."})
        next_call(engine, activity_id)
        agent_of(engine, activity_id).create_with("report_blocker", **DOWN)
    api("reviewer").post(action_url(activity_id, "resolve"), {"note": "Up."})
    next_call(engine, activity_id)

    agent_of(engine, activity_id).post("fail", {"error": {"message": "busy", "retryable": True}})

    assert engine.status(acme, activity_id) == "created"


def test_a_reassigned_resolution_still_wakes_the_agent(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, _, resolution = block_work(engine, acme)
    client = api("operator", name="Ann")

    successor = client.post(
        action_url(resolution, "reassign"), {"human_role": "devops", "reason": "Yours."}
    ).json()

    assert (successor["human_role"], successor["assignee_type"], successor["is_approval_gate"]) == (
        "devops",
        "human",
        False,
    )
    assert engine.status(acme, activity_id) == "blocked"
    assert client.post(action_url(activity_id, "resolve"), {"note": "Restarted."}).status_code == 200
    assert engine.status(acme, UUID(successor["id"])) == "done"
    (wake,) = next_call(engine, activity_id).wakes
    assert (wake["blocker_type"], wake["blocker_resolution"]) == ("api_outage", "Restarted.")


def test_a_reassigned_resolution_is_closed_with_the_blocked_work(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, _, resolution = block_work(engine, acme)
    successor = (
        api()
        .post(action_url(resolution, "reassign"), {"human_role": "devops", "reason": "Yours."})
        .json()["id"]
    )

    api().post(action_url(activity_id, "cancel"))

    assert engine.get(acme, UUID(successor)).cancel_reason == "obsolete"


def test_a_resolution_cannot_be_reassigned_to_an_agent(api: Any, engine: Engine, acme: Tenant) -> None:
    _, _, resolution = block_work(engine, acme)

    refused = problem(
        api().post(action_url(resolution, "reassign"), {"agent_role": "dev", "reason": "x"}),
        409,
        "transition_refused",
    )

    assert "only a person can" in refused["detail"]


def test_a_blocker_in_a_pipeline_delays_the_next_step_until_it_is_resolved(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    steps = [{"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "dev"}]
    versions.save(acme.pk, {"key": "two", "name": "Two", "steps": steps}, actor="test")
    run = start_run(acme.pk, "two", NewRun(), actor="test")
    engine.drain()
    agent = AgentClient(engine.agent.calls[-1])
    resolution = agent.create_with("report_blocker", **DOWN)

    api("reviewer").post(action_url(resolution, "resolve"), {"note": "Up."})
    next_call(engine, agent.activity_id)
    agent_of(engine, agent.activity_id).post("complete", RESULT)
    engine.drain()
    AgentClient(engine.agent.calls[-1]).post("complete", RESULT)

    assert [call.pipeline_step for call in engine.agent.calls] == ["a", "a", "b"]
    with tenant_scope(acme.pk):
        assert PipelineRun.objects.get(pk=run.pk).status == "completed"
    assert [resolution.step for resolution in children(acme, agent.activity_id)] == [None]
