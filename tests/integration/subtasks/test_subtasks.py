"""What a subtask is, and what bounds a tree of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from activities.states import LinkKind
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.integration.subtasks.parts import PART, complete, fail, waiting
from tests.toolbox import (
    OUTPUT,
    Caller,
    at_work,
    caller_of,
    calls_of,
    child,
    count_of,
    not_woken,
    woken,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_subtask_is_work_of_its_own_for_its_parents_deliverable_and_priority(
    engine: Engine, acme: Tenant
) -> None:
    parent, agent = at_work(engine, acme, priority=5)

    agent.used("create_subtask", **PART)

    part = child(acme, parent, LinkKind.SUBTASK)
    assert (part.name, part.description, part.agent_role, part.params) == (
        "Look it up", "Where do bees live?", "dev", {"limit": 5},
    )  # fmt: skip
    assert (part.priority, part.metadata, part.status) == (5, {"blocking": True}, "created")
    engine.drain()
    (call,) = calls_of(engine, part.pk)
    assert (call.wake_reason, call.params, call.agent_role) == ("new_task", {"limit": 5}, "dev")


def test_while_a_subtask_blocks_its_parent_holds_no_slot(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    parent, agent = at_work(engine, acme)
    (behind,) = engine.submit(acme)

    agent.used("create_subtask", **PART)
    engine.drain()

    assert (engine.status(acme, parent), engine.status(acme, behind)) == ("awaiting_subtask", "in_progress")


def test_a_subtask_that_does_not_block_leaves_its_parent_at_work(engine: Engine, acme: Tenant) -> None:
    parent, agent = at_work(engine, acme)

    answer = agent.use("create_subtask", **{**PART, "blocking": False}).json()
    engine.drain()
    complete(engine, UUID(answer["id"]))

    assert (answer["stop"], answer["status"]) == (False, "in_progress")
    assert not_woken(engine, parent)
    assert engine.get(acme, UUID(answer["id"])).output_ref is not None
    assert agent.post("complete", OUTPUT).json()["accepted"] is True
    assert engine.status(acme, parent) == "done"


@pytest.mark.parametrize("end", [complete, fail])
def test_the_end_of_one_that_does_not_block_is_not_taken_for_the_one_that_does(
    engine: Engine, acme: Tenant, end: Callable[[Engine, UUID], None]
) -> None:
    parent, agent = at_work(engine, acme)
    idle = agent.used("create_subtask", **{**PART, "blocking": False})
    subtask = agent.used("create_subtask", **PART)
    engine.drain()

    end(engine, idle)

    assert not_woken(engine, parent)
    assert engine.status(acme, parent) == "awaiting_subtask"
    complete(engine, subtask)
    assert woken(engine, parent).wakes[0]["subtask"] == str(subtask)


def test_subtasks_are_nested_three_deep_and_not_deeper(engine: Engine, acme: Tenant) -> None:
    current, agent = at_work(engine, acme)
    for role in ("dev", "seo", "qa"):
        current = agent.used("create_subtask", **{**PART, "agent_role": role})
        engine.drain()
        agent = caller_of(engine, current)

    refused = problem(agent.use("create_subtask", **PART), 429, "quota_exceeded")

    assert refused["quota"] == "depth"
    assert (engine.status(acme, current), count_of(acme)) == ("in_progress", 4)


def test_an_heir_is_as_deep_as_what_it_replaces(
    api: Any, engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_SUBTASK_DEPTH = 1
    _, subtask = waiting(engine, acme)
    heir = caller_of(engine, subtask).used("reassign_task", agent_role="seo", reason="x")
    engine.drain()

    problem(caller_of(engine, heir).use("create_subtask", **PART), 429, "quota_exceeded")


def test_an_activity_has_five_subtasks_and_not_more(engine: Engine, acme: Tenant) -> None:
    parent, agent = at_work(engine, acme)
    for number in range(5):
        agent.used("create_subtask", **{**PART, "name": str(number), "blocking": False})

    refused = problem(agent.use("create_subtask", **PART), 429, "quota_exceeded")

    assert refused["quota"] == "subtasks"
    assert (engine.status(acme, parent), count_of(acme)) == ("in_progress", 6)


@pytest.mark.parametrize(
    "more", [("create_subtask", PART), ("reassign_task", {"agent_role": "seo", "reason": "x"})]
)
def test_a_full_tree_takes_no_more_members(
    engine: Engine, acme: Tenant, settings: Any, more: tuple[str, dict[str, Any]]
) -> None:
    settings.ORCHESTRATOR_ACTIVITIES_PER_TREE = 3
    _, agent = at_work(engine, acme)
    for number in range(2):
        agent.used("create_subtask", **{**PART, "name": str(number), "blocking": False})
    engine.drain()

    refused = problem(Caller(engine.agent.calls[-1]).use(more[0], **more[1]), 429, "quota_exceeded")

    assert (refused["quota"], count_of(acme)) == ("tree", 3)
