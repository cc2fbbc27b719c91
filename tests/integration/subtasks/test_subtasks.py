"""What a subtask contains, and the limits of a tree of subtasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from activities.states import LinkKind
from tenants.models import Tenant
from tests.accepted_work import (
    RESULT,
    AgentClient,
    accept_work,
    agent_of,
    calls_of,
    child,
    count_activities,
    is_called_again,
    next_call,
)
from tests.answers import problem
from tests.engine import Engine
from tests.integration.subtasks.parts import PART, complete, fail, start_waiting_parent

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


def test_a_subtask_has_its_own_role_and_the_priority_of_its_parent(engine: Engine, acme: Tenant) -> None:
    parent, agent = accept_work(engine, acme, priority=5)

    agent.create_with("create_subtask", **PART)

    subtask = child(acme, parent, LinkKind.SUBTASK)
    assert (subtask.name, subtask.description, subtask.agent_role, subtask.params) == (
        "Look it up", "Where do bees live?", "dev", {"limit": 5},
    )  # fmt: skip
    assert (subtask.priority, subtask.metadata, subtask.status) == (5, {"blocking": True}, "created")
    engine.drain()
    (call,) = calls_of(engine, subtask.pk)
    assert (call.wake_reason, call.params, call.agent_role) == ("new_task", {"limit": 5}, "dev")


def test_a_parent_holds_no_slot_while_a_subtask_blocks_it(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    parent, agent = accept_work(engine, acme)
    (waiting_id,) = engine.submit(acme)

    agent.create_with("create_subtask", **PART)
    engine.drain()

    assert (engine.status(acme, parent), engine.status(acme, waiting_id)) == (
        "awaiting_subtask",
        "in_progress",
    )


def test_a_subtask_that_does_not_block_lets_its_parent_continue(engine: Engine, acme: Tenant) -> None:
    parent, agent = accept_work(engine, acme)

    answer = agent.use("create_subtask", **{**PART, "blocking": False}).json()
    engine.drain()
    complete(engine, UUID(answer["id"]))

    assert (answer["stop"], answer["status"]) == (False, "in_progress")
    assert not is_called_again(engine, parent)
    assert engine.get(acme, UUID(answer["id"])).output_ref is not None
    assert agent.post("complete", RESULT).json()["accepted"] is True
    assert engine.status(acme, parent) == "done"


@pytest.mark.parametrize("end", [complete, fail])
def test_the_end_of_another_subtask_does_not_wake_a_blocked_parent(
    engine: Engine, acme: Tenant, end: Callable[[Engine, UUID], None]
) -> None:
    parent, agent = accept_work(engine, acme)
    independent = agent.create_with("create_subtask", **{**PART, "blocking": False})
    subtask = agent.create_with("create_subtask", **PART)
    engine.drain()

    end(engine, independent)

    assert not is_called_again(engine, parent)
    assert engine.status(acme, parent) == "awaiting_subtask"
    complete(engine, subtask)
    assert next_call(engine, parent).wakes[0]["subtask"] == str(subtask)


def test_subtasks_can_be_nested_three_deep(engine: Engine, acme: Tenant) -> None:
    current, agent = accept_work(engine, acme)
    for role in ("dev", "seo", "qa"):
        current = agent.create_with("create_subtask", **{**PART, "agent_role": role})
        engine.drain()
        agent = agent_of(engine, current)

    refused = problem(agent.use("create_subtask", **PART), 429, "quota_exceeded")

    assert refused["quota"] == "depth"
    assert (engine.status(acme, current), count_activities(acme)) == ("in_progress", 4)


def test_a_successor_has_the_depth_of_the_work_that_it_replaces(
    api: Any, engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_SUBTASK_DEPTH = 1
    _, subtask = start_waiting_parent(engine, acme)
    successor = agent_of(engine, subtask).create_with("reassign_task", agent_role="seo", reason="x")
    engine.drain()

    problem(agent_of(engine, successor).use("create_subtask", **PART), 429, "quota_exceeded")


def test_an_activity_has_at_most_five_subtasks(engine: Engine, acme: Tenant) -> None:
    parent, agent = accept_work(engine, acme)
    for number in range(5):
        agent.create_with("create_subtask", **{**PART, "name": str(number), "blocking": False})

    refused = problem(agent.use("create_subtask", **PART), 429, "quota_exceeded")

    assert refused["quota"] == "subtasks"
    assert (engine.status(acme, parent), count_activities(acme)) == ("in_progress", 6)


@pytest.mark.parametrize(
    "more", [("create_subtask", PART), ("reassign_task", {"agent_role": "seo", "reason": "x"})]
)
def test_the_size_of_a_tree_is_limited(
    engine: Engine, acme: Tenant, settings: Any, more: tuple[str, dict[str, Any]]
) -> None:
    settings.ORCHESTRATOR_ACTIVITIES_PER_TREE = 3
    _, agent = accept_work(engine, acme)
    for number in range(2):
        agent.create_with("create_subtask", **{**PART, "name": str(number), "blocking": False})
    engine.drain()

    refused = problem(AgentClient(engine.agent.calls[-1]).use(more[0], **more[1]), 429, "quota_exceeded")

    assert (refused["quota"], count_activities(acme)) == ("tree", 3)
