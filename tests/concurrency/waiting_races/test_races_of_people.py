"""Races of people: one of two simultaneous actions on waiting work takes effect."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

import pytest

from activities import cancellation, reassignment, suspension
from activities.exceptions import ActivityError
from activities.human_tasks import human_work
from activities.states import LinkKind
from tenants.models import Tenant
from tests.accepted_work import accept_work, child, next_call, wakes_of
from tests.concurrency.waiting_races.outcomes import DOWN, TRIES
from tests.engine import Engine, simultaneously

pytestmark = [pytest.mark.concurrency, pytest.mark.usefixtures("one_at_a_time")]


def blocked(engine: Engine, acme: Tenant) -> tuple[UUID, UUID]:
    activity_id, agent = accept_work(engine, acme)
    return activity_id, agent.create_with("report_blocker", **DOWN)


def successes(outcomes: list[Any]) -> list[Any]:
    """Return the results of the actions that succeeded, after checking that the others ended with conflicts."""
    refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert all(isinstance(outcome, ActivityError) for outcome in refused), refused
    return [outcome for outcome in outcomes if not isinstance(outcome, Exception)]


def test_a_blocker_that_is_resolved_and_cancelled_at_once_wakes_once(engine: Engine, acme: Tenant) -> None:
    for _ in range(TRIES):
        activity_id, resolution = blocked(engine, acme)

        outcomes = simultaneously(
            partial(suspension.resolve_blocker, acme.pk, resolution, actor="a", note="up"),
            partial(suspension.resolve_blocker, acme.pk, activity_id, actor="b", note="up"),
            partial(cancellation.cancel, acme.pk, resolution, actor="c", reason="never mind"),
        )

        assert len(successes(outcomes)) == 1
        assert next_call(engine, activity_id).wake_reason == "unblocked"
        assert len(wakes_of(acme, activity_id)) == 2


def test_work_that_is_resolved_and_cancelled_at_once_never_runs_after_its_cancellation(
    engine: Engine, acme: Tenant
) -> None:
    for _ in range(TRIES):
        activity_id, resolution = blocked(engine, acme)

        outcomes = simultaneously(
            partial(suspension.resolve_blocker, acme.pk, resolution, actor="a", note="up"),
            partial(cancellation.cancel, acme.pk, activity_id, actor="b"),
        )
        engine.drain()

        # A resolution may come before the cancellation. After it, the resolution is refused.
        assert not isinstance(outcomes[1], Exception)
        assert engine.status(acme, activity_id) == "cancelled"
        assert engine.status(acme, resolution) in ("done", "cancelled")
        assert "pending" not in {wake.state for wake in wakes_of(acme, activity_id)}
        assert len(successes(outcomes)) == (2 if engine.status(acme, resolution) == "done" else 1)


def test_work_that_is_resolved_and_reassigned_at_once_continues_in_one_place(
    engine: Engine, acme: Tenant
) -> None:
    reassign = partial(reassignment.reassign, actor="b", reason="x", agent_role="dev")
    for _ in range(TRIES):
        activity_id, resolution = blocked(engine, acme)

        successes(
            simultaneously(
                partial(suspension.resolve_blocker, acme.pk, resolution, actor="a", note="up"),
                partial(reassign, acme.pk, activity_id),
            )
        )
        engine.drain()

        successor = child(acme, activity_id, LinkKind.REASSIGNED_FROM)
        assert (engine.status(acme, activity_id), engine.status(acme, successor.pk)) == (
            "reassigned",
            "in_progress",
        )
        assert engine.status(acme, resolution) in ("done", "cancelled")


def test_two_operators_who_reassign_at_once_create_one_successor(engine: Engine, acme: Tenant) -> None:
    for _ in range(TRIES):
        activity_id, _ = accept_work(engine, acme)

        outcomes = simultaneously(
            *[
                partial(reassignment.reassign, acme.pk, activity_id, actor=role, reason="x", agent_role=role)
                for role in ("dev", "seo", "qa")
            ]
        )

        (successor,) = successes(outcomes)
        assert child(acme, activity_id).pk == successor.pk


def test_a_task_that_is_completed_and_reassigned_at_once_has_one_outcome(
    engine: Engine, acme: Tenant
) -> None:
    for _ in range(TRIES):
        parent, agent = accept_work(engine, acme)
        task = agent.create_with("create_subtask", name="Read it", human_role="editor", blocking=True)

        outcomes = simultaneously(
            partial(human_work.complete, acme.pk, task, actor="a", output={"content": "read"}),
            partial(reassignment.reassign, acme.pk, task, actor="b", reason="x", human_role="boss"),
            partial(cancellation.cancel, acme.pk, task, actor="c"),
        )

        (first,) = successes(outcomes)
        if engine.status(acme, task) == "reassigned":
            assert engine.status(acme, parent) == "awaiting_subtask"
            human_work.complete(acme.pk, first.pk, actor="d")
        assert next_call(engine, parent).wake_reason == "subtask_completed"
