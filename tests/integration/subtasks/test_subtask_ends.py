"""However a subtask ends, its parent wakes once with the outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from activities import outputs
from activities.execution import results
from activities.run_tokens import RunToken
from activities.states import LinkKind
from agents.contracts import Accepted, Completed, Output
from tenants.models import Tenant
from tests.accepted_work import (
    accept_work,
    action_url,
    agent_of,
    calls_of,
    child,
    is_called_again,
    next_call,
    wakes_of,
)
from tests.engine import Engine
from tests.integration.subtasks.parts import (
    PART,
    TASK,
    complete,
    fail,
    require_approval,
    start_waiting_parent,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


def test_the_parent_continues_with_the_output_of_its_subtask(engine: Engine, acme: Tenant) -> None:
    parent, subtask = start_waiting_parent(engine, acme)

    complete(engine, subtask)

    request = next_call(engine, parent)
    assert (request.wake_reason, request.attempt) == ("subtask_completed", 1)
    (wake,) = request.wakes
    output_ref = engine.get(acme, subtask).output_ref
    assert wake == {
        "reason": "subtask_completed", "subtask": str(subtask), "subtask_name": "Look it up", "subtask_outcome": "done",
        "subtask_output_ref": str(output_ref), "subtask_error": None, "subtask_notes": None, "subtask_ended_by": str(subtask),
    }  # fmt: skip
    stored = outputs.read(acme.pk, UUID(wake["subtask_output_ref"]))
    assert stored is not None
    assert stored.content == "# Bees"
    job = agent_of(engine, parent).get_job().json()
    assert (job["wake_reason"], job["subtask_name"], job["subtask_output_ref"]) == (
        "subtask_completed", "Look it up", str(output_ref),
    )  # fmt: skip
    complete(engine, parent)
    assert engine.status(acme, parent) == "done"


def test_a_result_of_the_call_itself_wakes_the_parent(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: (
        Completed(Output("found")) if request.agent_role == "dev" else Accepted()
    )
    parent, agent = accept_work(engine, acme)
    agent.create_with("create_subtask", **PART)

    assert next_call(engine, parent).wakes[0]["subtask_outcome"] == "done"


def test_a_completed_task_of_a_person_wakes_the_parent_with_the_output(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    parent, agent = accept_work(engine, acme)
    task = agent.create_with("create_subtask", **TASK)
    client = api("reviewer", name="Ann")
    assert str(task) in [item["id"] for item in client.get("/api/v1/inbox/").json()["results"]]

    client.post(action_url(task, "start"))
    client.post(action_url(task, "complete"), {"output": {"content": "In hives."}, "note": "Sure."})

    (wake,) = next_call(engine, parent).wakes
    assert (wake["subtask_outcome"], wake["subtask_notes"]) == ("done", "Sure.")
    stored = outputs.read(acme.pk, UUID(wake["subtask_output_ref"]))
    assert stored is not None
    assert stored.content == "In hives."


def failed(engine: Engine, acme: Tenant, subtask: UUID) -> None:
    fail(engine, subtask)


def exhausted(engine: Engine, acme: Tenant, subtask: UUID) -> None:
    for _ in range(2):
        fail(engine, subtask, retryable=True)
        engine.make_due(acme)
        engine.drain()
    fail(engine, subtask, retryable=True)


def lost_three_times(engine: Engine, acme: Tenant, subtask: UUID) -> None:
    for _ in range(3):
        run = engine.runs(acme, subtask)[-1]
        results.record_stalled(RunToken(acme.pk, subtask, run.pk, run.fence))
        engine.drain()


@pytest.mark.parametrize(
    ("end", "code"), [(failed, "broken"), (exhausted, "broken"), (lost_three_times, "stalled")]
)
def test_a_permanently_failed_subtask_wakes_its_parent_with_the_error(
    engine: Engine, acme: Tenant, end: Callable[[Engine, Tenant, UUID], None], code: str
) -> None:
    parent, subtask = start_waiting_parent(engine, acme)

    end(engine, acme, subtask)

    engine.drain()
    (_, request) = calls_of(engine, parent)
    (wake,) = request.wakes
    assert (wake["subtask_outcome"], wake["subtask_error"]["code"]) == ("failed", code)
    assert wake["subtask_output_ref"] is None


def test_a_subtask_before_its_retry_does_not_wake_its_parent(engine: Engine, acme: Tenant) -> None:
    parent, subtask = start_waiting_parent(engine, acme)

    fail(engine, subtask, retryable=True)

    assert not is_called_again(engine, parent)
    engine.make_due(acme)
    engine.drain()
    complete(engine, subtask)
    assert next_call(engine, parent).wakes[0]["subtask_outcome"] == "done"


def test_a_cancelled_subtask_wakes_its_parent_with_the_reason(api: Any, engine: Engine, acme: Tenant) -> None:
    parent, subtask = start_waiting_parent(engine, acme)

    api("operator").post(action_url(subtask, "cancel"), {"reason": "Too dear."})

    (wake,) = next_call(engine, parent).wakes
    assert (wake["subtask_outcome"], wake["subtask_notes"]) == ("cancelled", "Too dear.")


def test_a_subtask_with_a_revision_wakes_its_parent_once_after_the_revision(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    parent, subtask = start_waiting_parent(engine, acme)
    require_approval(acme, subtask)
    complete(engine, subtask)
    client = api("reviewer")

    client.post(action_url(subtask, "reject"), {"notes": "Shorter."})
    assert not is_called_again(engine, parent)
    revision = child(acme, subtask, LinkKind.REVISION_OF).pk
    complete(engine, revision)
    assert not is_called_again(engine, parent)
    client.post(action_url(revision, "approve"))

    (wake,) = next_call(engine, parent).wakes
    assert (wake["subtask"], wake["subtask_name"], wake["subtask_outcome"]) == (
        str(subtask),
        "Look it up",
        "approved",
    )
    assert (wake["subtask_output_ref"], wake["subtask_ended_by"]) == (
        str(engine.get(acme, revision).output_ref), str(revision),
    )  # fmt: skip


def test_a_finally_rejected_subtask_wakes_its_parent_with_the_notes(
    api: Any, engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAX_ROUNDS = 1
    parent, subtask = start_waiting_parent(engine, acme)
    require_approval(acme, subtask)
    complete(engine, subtask)

    api("reviewer").post(action_url(subtask, "reject"), {"notes": "No."})

    (wake,) = next_call(engine, parent).wakes
    assert (wake["subtask_outcome"], wake["subtask_notes"]) == ("rejected", "No.")


@pytest.mark.parametrize("by", ["operator", "agent"])
def test_a_reassigned_subtask_wakes_its_parent(api: Any, engine: Engine, acme: Tenant, by: str) -> None:
    parent, subtask = start_waiting_parent(engine, acme)
    body = {"agent_role": "seo", "reason": "Yours."}

    if by == "operator":
        successor = UUID(api("operator").post(action_url(subtask, "reassign"), body).json()["id"])
    else:
        successor = agent_of(engine, subtask).create_with("reassign_task", **body)
    assert not is_called_again(engine, parent)
    complete(engine, successor)

    (wake,) = next_call(engine, parent).wakes
    assert (wake["subtask"], wake["subtask_outcome"], wake["subtask_ended_by"]) == (
        str(subtask),
        "done",
        str(successor),
    )


@pytest.mark.parametrize(
    ("verb", "outcome"), [("complete", "done"), ("approve", "approved"), ("reject", "rejected")]
)
def test_a_subtask_reassigned_to_a_person_wakes_its_parent(
    api: Any, engine: Engine, acme: Tenant, verb: str, outcome: str
) -> None:
    parent, subtask = start_waiting_parent(engine, acme)
    client = api("operator")
    successor = client.post(
        action_url(subtask, "reassign"), {"human_role": "editor", "reason": "Tricky."}
    ).json()["id"]
    bodies = {
        "complete": {"output": {"content": "By hand."}},
        "approve": {},
        "reject": {"notes": "Cannot be done."},
    }

    assert client.post(action_url(successor, verb), bodies[verb]).status_code == 200

    (wake,) = next_call(engine, parent).wakes
    assert (wake["subtask_outcome"], wake["subtask"]) == (outcome, str(subtask))
    assert (wake["subtask_output_ref"] is not None) == (verb == "complete")


def test_a_subtask_that_is_reassigned_and_revised_wakes_its_parent_once(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    parent, subtask = start_waiting_parent(engine, acme)
    client, current = api("operator"), subtask
    require_approval(acme, subtask)
    for role in ("seo", "qa", "dev"):
        body = {"agent_role": role, "reason": "Next."}
        current = UUID(client.post(action_url(current, "reassign"), body).json()["id"])
    engine.drain()
    complete(engine, current)
    client.post(action_url(current, "reject"), {"notes": "Again."})
    revision = child(acme, current, LinkKind.REVISION_OF).pk
    engine.drain()
    complete(engine, revision)

    client.post(action_url(revision, "approve"))

    assert next_call(engine, parent).wakes[0]["subtask_outcome"] == "approved"
    assert len(wakes_of(acme, parent)) == 2
