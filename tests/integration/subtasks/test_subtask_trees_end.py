"""Late ends of subtasks, and the cancellation of a parent, which cancels its tree."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from activities import tasks
from activities.states import LinkKind
from agents.contracts import Accepted, AgentRequest, AgentResult
from tenants.models import Tenant
from tests.accepted_work import (
    RESULT,
    AgentClient,
    accept_work,
    action_url,
    agent_of,
    assert_superseded,
    calls_of,
    child,
    is_called_again,
    next_call,
    wakes_of,
)
from tests.engine import Engine, in_another_thread
from tests.integration.subtasks.parts import (
    PART,
    TASK,
    complete,
    fail,
    require_approval,
    start_waiting_parent,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


def test_a_retried_subtask_does_not_wake_a_parent_that_continued(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    parent, subtask = start_waiting_parent(engine, acme)
    fail(engine, subtask)
    next_call(engine, parent)

    api("operator").post(action_url(subtask, "retry"))
    engine.drain()
    complete(engine, subtask)

    assert engine.status(acme, subtask) == "done"
    assert not is_called_again(engine, parent)
    assert agent_of(engine, parent).post("complete", RESULT).json()["accepted"] is True


def test_a_retried_subtask_does_not_count_as_the_next_one(api: Any, engine: Engine, acme: Tenant) -> None:
    parent, first = start_waiting_parent(engine, acme)
    fail(engine, first)
    next_call(engine, parent)
    second = agent_of(engine, parent).create_with("create_subtask", **{**PART, "name": "Ask somebody"})
    api("operator").post(action_url(first, "retry"))
    engine.drain()

    complete(engine, first)
    assert not is_called_again(engine, parent)
    assert engine.status(acme, parent) == "awaiting_subtask"
    complete(engine, second)

    assert next_call(engine, parent).wakes[0]["subtask_name"] == "Ask somebody"


def test_a_repeated_end_of_a_subtask_wakes_once(engine: Engine, acme: Tenant) -> None:
    parent, agent = accept_work(engine, acme)
    subtask = agent.create_with("create_subtask", **PART)
    message = engine.take()
    assert message is not None
    tasks.run(**message)
    tasks.run(**message)
    assert len(calls_of(engine, subtask)) == 1

    for _ in range(3):
        agent_of(engine, subtask).post("complete", RESULT)

    next_call(engine, parent)
    assert len(wakes_of(acme, parent)) == 2


def test_a_subtask_that_ends_during_its_parents_call_wakes_it_once_afterwards(
    engine: Engine, acme: Tenant
) -> None:
    ready: list[int] = []

    def behaviour(request: AgentRequest) -> AgentResult:
        if request.wake_reason == "new_task" and request.agent_role == "qa":
            subtask = in_another_thread(lambda: AgentClient(request).create_with("create_subtask", **PART))
            in_another_thread(engine.deliver)
            in_another_thread(lambda: complete(engine, subtask))
            ready.append(engine.messages())
        return Accepted()

    engine.agent.behaviour = behaviour
    (parent,) = engine.submit(acme)
    engine.deliver()

    assert (ready, len(calls_of(engine, parent))) == ([0], 1)
    assert next_call(engine, parent).wake_reason == "subtask_completed"


def test_cancelling_the_parent_cancels_its_whole_tree(api: Any, engine: Engine, acme: Tenant) -> None:
    parent, agent = accept_work(engine, acme)
    idle = agent.create_with("create_subtask", **{**PART, "blocking": False, "name": "idle"})
    task = agent.create_with("create_subtask", **{**TASK, "blocking": False})
    subtask = agent.create_with("create_subtask", **PART)
    engine.drain()
    nested = agent_of(engine, subtask).create_with("create_subtask", **{**PART, "agent_role": "seo"})
    engine.drain()
    resolution = agent_of(engine, nested).create_with("report_blocker", type="x", message="y")
    worker = agent_of(engine, idle)

    api("operator").post(action_url(parent, "cancel"), {"reason": "Enough."})

    for one in (idle, task, subtask, nested, resolution):
        assert (engine.status(acme, one), engine.get(acme, one).cancel_reason) == ("cancelled", "obsolete")
    assert worker.post("heartbeat").json()["stop"] is True
    assert_superseded(worker.post("complete", RESULT))
    assert engine.drain() == 0


def test_cancelling_the_parent_reaches_successors_revisions_and_nested_subtasks(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("operator")
    parent, agent = accept_work(engine, acme)
    reassigned, revised, ended = (
        agent.create_with("create_subtask", **{**PART, "name": name, "blocking": False})
        for name in ("a", "b", "c")
    )
    engine.drain()
    successor = UUID(
        client.post(action_url(reassigned, "reassign"), {"agent_role": "seo", "reason": "x"}).json()["id"]
    )
    require_approval(acme, revised)
    complete(engine, revised)
    client.post(action_url(revised, "reject"), {"notes": "x"})
    revision = child(acme, revised, LinkKind.REVISION_OF).pk
    orphan = agent_of(engine, ended).create_with("create_subtask", **{**PART, "blocking": False})
    complete(engine, ended)
    engine.drain()

    client.post(action_url(parent, "cancel"))

    assert [engine.status(acme, one) for one in (successor, revision, orphan)] == ["cancelled"] * 3
    assert [engine.status(acme, one) for one in (reassigned, revised, ended)] == [
        "reassigned",
        "rejected",
        "done",
    ]


def test_slots_of_cancelled_subtasks_are_free_again(api: Any, engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "dev", max_concurrency=1)
    parent, _ = start_waiting_parent(engine, acme)
    (waiting_id,) = engine.submit(acme, "dev")
    assert engine.drain() == 0

    api("operator").post(action_url(parent, "cancel"))
    engine.drain()

    assert engine.status(acme, waiting_id) == "in_progress"
