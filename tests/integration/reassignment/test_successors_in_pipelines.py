"""Successors of steps continue their pipeline run."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from activities.states import LinkKind
from pipelines import cancellation as run_cancellation
from pipelines import versions
from pipelines.models import PipelineRun, StepRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import (
    RESULT,
    AgentClient,
    accept_work,
    action_url,
    agent_of,
    child,
    children,
    is_called_again,
    next_call,
)
from tests.answers import problem
from tests.engine import Engine
from tests.integration.reassignment.successors import TO_AGENT, TO_PERSON, fail

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


def start_three_steps(engine: Engine, acme: Tenant) -> tuple[PipelineRun, AgentClient]:
    """Start a run of three steps; return it and the agent of the first step."""
    steps = [
        {"id": "a", "agent_role": "qa"},
        {"id": "b", "agent_role": "qa"},
        {"id": "c", "agent_role": "qa"},
    ]
    versions.save(acme.pk, {"key": "three", "name": "Three", "steps": steps}, actor="test")
    run = start_run(acme.pk, "three", NewRun(), actor="test")
    engine.drain()
    return run, AgentClient(engine.agent.calls[-1])


def statuses_of(acme: Tenant, run: PipelineRun) -> tuple[str, dict[str, str]]:
    with tenant_scope(acme.pk):
        steps = dict(StepRun.objects.filter(run_id=run.pk).values_list("step", "status"))
        return PipelineRun.objects.get(pk=run.pk).status, steps


@pytest.mark.parametrize("by", ["agent", "operator"])
def test_the_successor_of_a_step_continues_its_run(api: Any, engine: Engine, acme: Tenant, by: str) -> None:
    run, agent = start_three_steps(engine, acme)

    if by == "agent":
        successor = agent.create_with("reassign_task", **TO_AGENT)
    else:
        successor = UUID(
            api("operator").post(action_url(agent.activity_id, "reassign"), TO_AGENT).json()["id"]
        )
    assert statuses_of(acme, run) == ("running", {"a": "active", "b": "pending", "c": "pending"})
    engine.drain()
    agent_of(engine, successor).post("complete", RESULT)
    engine.drain()

    step = engine.agent.calls[-1]
    assert (step.pipeline_step, (step.input or {})["content"]) == ("b", "# Bees")
    assert statuses_of(acme, run) == ("running", {"a": "done", "b": "active", "c": "pending"})


@pytest.mark.parametrize("to", [TO_AGENT, TO_PERSON], ids=["agent", "person"])
def test_the_successor_of_a_failed_step_reopens_its_run(
    api: Any, engine: Engine, acme: Tenant, to: dict[str, str]
) -> None:
    run, agent = start_three_steps(engine, acme)
    fail(agent)
    assert statuses_of(acme, run) == ("failed", {"a": "failed", "b": "skipped", "c": "skipped"})
    client = api("operator")

    successor = UUID(client.post(action_url(agent.activity_id, "reassign"), to).json()["id"])
    assert statuses_of(acme, run) == ("running", {"a": "active", "b": "pending", "c": "pending"})
    if to is TO_AGENT:
        engine.drain()
        agent_of(engine, successor).post("complete", RESULT)
    else:
        client.post(action_url(successor, "complete"), {"output": {"content": "By hand."}})
    for _ in "bc":
        engine.drain()
        AgentClient(engine.agent.calls[-1]).post("complete", RESULT)

    assert statuses_of(acme, run) == ("completed", {"a": "done", "b": "done", "c": "done"})


def test_a_gate_that_rejects_the_work_of_a_person_asks_that_role_again(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("operator")
    steps = [
        {"id": "a", "agent_role": "qa"},
        {"id": "ok", "human_role": "boss", "is_approval_gate": True, "depends_on": ["a"]},
    ]
    versions.save(acme.pk, {"key": "gated", "name": "Gated", "steps": steps}, actor="test")
    run = start_run(acme.pk, "gated", NewRun(), actor="test")
    engine.drain()
    successor = AgentClient(engine.agent.calls[-1]).create_with("reassign_task", **TO_PERSON)
    client.post(action_url(successor, "complete"), {"output": {"content": "By hand."}})
    gate = next(
        item for item in client.get("/api/v1/inbox/").json()["results"] if item["human_role"] == "boss"
    )

    assert client.post(action_url(gate["id"], "reject"), {"notes": "Shorter."}).status_code == 200

    (task,) = client.get("/api/v1/inbox/").json()["results"]
    assert (task["human_role"], task["round"], task["reviewer_notes"]) == ("editor", 2, "Shorter.")
    client.post(action_url(task["id"], "complete"), {"output": {"content": "Short."}})
    (gate,) = client.get("/api/v1/inbox/").json()["results"]
    client.post(action_url(gate["id"], "approve"))
    assert statuses_of(acme, run)[0] == "completed"


def test_the_successor_of_a_revision_receives_the_rejection(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme, requires_approval=True)
    agent.post("complete", RESULT)
    api("reviewer").post(action_url(activity_id, "reject"), {"notes": "Shorter."})
    engine.drain()
    revision = child(acme, activity_id, LinkKind.REVISION_OF).pk

    successor = agent_of(engine, revision).create_with("reassign_task", **TO_AGENT)

    request = next_call(engine, successor)
    assert (request.wake_reason, request.wakes[0]["reviewer_notes"]) == ("rejection", "Shorter.")
    assert request.wakes[0]["rejection_ref"] == str(agent.run_id)
    assert engine.get(acme, successor).round == 2


def test_work_of_a_cancelled_run_cannot_be_reassigned_and_does_not_offer_it(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    """The cancellation would miss a successor that is created after it."""
    run, agent = start_three_steps(engine, acme)
    address = f"/api/v1/activities/{agent.activity_id}/"
    before = api("operator").get(address).json()["allowed_actions"]
    with tenant_scope(acme.pk):  # the state of an interrupted cancellation
        PipelineRun.objects.filter(pk=run.pk).update(status="cancelled")

    after = api("operator").get(address).json()["allowed_actions"]

    assert set(before) - set(after) == {"reassign"}
    problem(
        api("operator").post(action_url(agent.activity_id, "reassign"), TO_AGENT), 409, "transition_refused"
    )

    assert children(acme, agent.activity_id) == []
    run_cancellation.cancel_run(acme.pk, run.pk, actor="test")
    assert engine.status(acme, agent.activity_id) == "cancelled"


def test_a_revision_in_a_cancelled_run_is_cancelled(api: Any, engine: Engine, acme: Tenant) -> None:
    steps = [{"id": "a", "agent_role": "qa", "requires_approval": True}]
    versions.save(acme.pk, {"key": "one", "name": "One", "steps": steps}, actor="test")
    run = start_run(acme.pk, "one", NewRun(), actor="test")
    engine.drain()
    agent = AgentClient(engine.agent.calls[-1])
    agent.post("complete", RESULT)
    with tenant_scope(acme.pk):  # the state of an interrupted cancellation
        PipelineRun.objects.filter(pk=run.pk).update(status="cancelled")

    api("reviewer").post(action_url(agent.activity_id, "reject"), {"notes": "Shorter."})

    revision = child(acme, agent.activity_id, LinkKind.REVISION_OF)
    assert (revision.status, revision.cancel_reason) == ("cancelled", "The pipeline run was cancelled.")
    assert not is_called_again(engine, revision.pk)
