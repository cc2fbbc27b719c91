"""Races of agents and people: simultaneous reports, cancellations and ends of subtasks."""

from __future__ import annotations

from functools import partial
from threading import Event
from typing import Any
from uuid import UUID

import pytest

from activities import activity_tree, cancellation, tasks, transitions
from activities.exceptions import ActivityError
from activities.models import Activity, ActivityRun, DeadLetter
from agents.contracts import Accepted, Completed, Output
from pipelines import cancellation as run_cancellation
from pipelines import versions
from pipelines.models import StepRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import (
    RESULT,
    AgentClient,
    accept_work,
    agent_of,
    calls_of,
    children,
    next_call,
    wakes_of,
)
from tests.concurrency.waiting_races.outcomes import DOWN, TRIES, statuses
from tests.engine import Engine, eventually, in_another_thread, simultaneously, somebody_waits_for_a_lock
from tests.integration.subtasks.parts import PART, start_waiting_parent

pytestmark = [pytest.mark.concurrency, pytest.mark.usefixtures("one_at_a_time")]


def test_a_simultaneous_callback_and_cancellation_have_one_outcome(engine: Engine, acme: Tenant) -> None:
    for _ in range(TRIES):
        activity_id, agent = accept_work(engine, acme)

        answer, cancelled = simultaneously(
            partial(agent.post, "complete", RESULT),
            partial(cancellation.cancel, acme.pk, activity_id, actor="c"),
        )

        if answer.status_code == 200:
            assert isinstance(cancelled, ActivityError)
            assert engine.status(acme, activity_id) == "done"
        else:
            assert (answer.status_code, answer.json()["stop"]) == (409, True)
            assert engine.status(acme, activity_id) == "cancelled"


@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_a_subtask_that_ends_while_its_parent_is_cancelled_wakes_nobody_and_leaves_nothing_open(
    engine: Engine, acme: Tenant, verb: str
) -> None:
    body = RESULT if verb == "complete" else {"error": {"message": "x", "retryable": False}}
    for _ in range(TRIES):
        parent, subtask = start_waiting_parent(engine, acme)
        agent = agent_of(engine, subtask)

        answers = simultaneously(
            partial(agent.post, verb, body), partial(cancellation.cancel, acme.pk, parent, actor="c")
        )
        engine.drain()

        assert answers[0].status_code in (200, 409)
        assert engine.status(acme, parent) == "cancelled"
        assert engine.status(acme, subtask) in ("done", "cancelled")
        assert len(calls_of(engine, parent)) == 1
        with tenant_scope(acme.pk):
            assert not ActivityRun.objects.filter(status="running").exists()
            assert not DeadLetter.objects.filter(state="open").exists()


def test_a_worker_that_ends_a_subtask_locks_its_parent_first(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would hold the subtask, wait for the parent, and deadlock with a cancellation of the parent."""
    engine.agent.behaviour = lambda request: (
        Completed(Output("x")) if request.agent_role == "dev" else Accepted()
    )
    parent, agent = accept_work(engine, acme)
    subtask = agent.create_with("create_subtask", **PART)
    message, ending = engine.take(), Event()
    assert message is not None
    origin_of = activity_tree.origin_of

    def held_up(tenant_id: UUID, activity: Any) -> Any:
        if getattr(activity, "status", None) == "done":
            ending.set()
            eventually(somebody_waits_for_a_lock)
        return origin_of(tenant_id, activity)

    def cancel() -> Activity:
        assert ending.wait(60)
        return cancellation.cancel(acme.pk, parent, actor="c")

    monkeypatch.setattr(activity_tree, "origin_of", held_up)
    outcomes = simultaneously(partial(tasks.run, **message), cancel)
    engine.drain()

    assert not any(isinstance(outcome, Exception) for outcome in outcomes), outcomes
    assert (engine.status(acme, parent), engine.status(acme, subtask)) == ("cancelled", "done")
    assert len(calls_of(engine, parent)) == 1


def test_cancelling_a_step_locks_its_subtasks_before_its_run(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would hold the run, wait for a subtask, and deadlock with a blocker of that subtask."""
    versions.save(
        acme.pk, {"key": "one", "name": "One", "steps": [{"id": "a", "agent_role": "qa"}]}, actor="test"
    )
    start_run(acme.pk, "one", NewRun(), actor="test")
    engine.drain()
    parent = AgentClient(engine.agent.calls[-1])
    subtask = parent.create_with("create_subtask", **PART)
    engine.drain()
    locked, deadlocks, release = Event(), [], cancellation.release_everything

    def held_up(*arguments: Any, **more: Any) -> None:
        if not locked.is_set():
            locked.set()
            eventually(somebody_waits_for_a_lock)
        release(*arguments, **more)

    def report() -> Any:
        assert locked.wait(60)
        return agent_of(engine, subtask).use("report_blocker", **DOWN)

    def note(error: Exception) -> bool:
        deadlocks.append(error)
        return True

    monkeypatch.setattr(cancellation, "release_everything", held_up)
    monkeypatch.setattr("tenants.outages.asks_for_repetition", note)
    cancelled, answer = simultaneously(
        partial(cancellation.cancel, acme.pk, parent.activity_id, actor="c"), report
    )

    assert (deadlocks, answer.status_code) == ([], 409)
    assert not isinstance(cancelled, Exception), cancelled
    assert engine.status(acme, subtask) == "cancelled"


def test_two_subtasks_that_end_at_once_wake_their_parent_once_with_the_right_one(
    engine: Engine, acme: Tenant
) -> None:
    for _ in range(TRIES):
        parent, agent = accept_work(engine, acme)
        idle = agent.create_with("create_subtask", **{**PART, "blocking": False})
        subtask = agent.create_with("create_subtask", **PART)
        engine.drain()

        answers = simultaneously(
            *[partial(agent_of(engine, one).post, "complete", RESULT) for one in (idle, subtask)]
        )

        assert statuses(answers) == [200, 200]
        assert next_call(engine, parent).wakes[0]["subtask"] == str(subtask)
        assert len(wakes_of(acme, parent)) == 2


def test_a_tree_that_grows_while_it_is_cancelled_is_cancelled_in_full(engine: Engine, acme: Tenant) -> None:
    for _ in range(TRIES):
        parent, agent = accept_work(engine, acme)
        for number in range(3):
            agent.create_with("create_subtask", **{**PART, "name": str(number), "blocking": False})
        engine.drain()
        parts = [agent_of(engine, one.pk) for one in children(acme, parent)]

        answers = simultaneously(
            partial(cancellation.cancel, acme.pk, parent, actor="c"),
            *[partial(part.use, "create_subtask", **PART) for part in parts],
            *[partial(part.use, "reassign_task", agent_role="seo", reason="x") for part in parts],
        )
        engine.drain()

        assert set(statuses(answers[1:])) <= {201, 409}
        with tenant_scope(acme.pk):
            live = Activity.objects.exclude(status__in=activity_tree.ENDED)
            assert list(live.values_list("name", "status")) == []


def test_what_a_subtask_asks_just_before_it_is_cancelled_is_cancelled_as_well(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subtask was committed after the cancellation had read which activities to lock, so it can still report a blocker."""
    parent, agent = accept_work(engine, acme)
    subtask = agent.create_with("create_subtask", **{**PART, "blocking": False})
    engine.drain()
    cancel_obsolete, answers = transitions.cancel_obsolete, list[Any]()

    def held_up(ids: Any, **more: Any) -> Any:
        if not answers:
            at_work = agent_of(engine, subtask)
            answers.append(in_another_thread(lambda: at_work.use("report_blocker", **DOWN)))
        return cancel_obsolete(ids, **more)

    monkeypatch.setattr(activity_tree, "ids_that_end_with", lambda tenant_id, activity_id: set())
    monkeypatch.setattr(transitions, "cancel_obsolete", held_up)
    cancellation.cancel(acme.pk, parent, actor="c")

    assert statuses(answers) == [201]
    assert engine.status(acme, subtask) == "cancelled"
    assert [one.status for one in children(acme, subtask)] == ["cancelled"]


def test_a_blocker_of_a_subtask_while_its_parent_ends_leaves_no_open_question(
    engine: Engine, acme: Tenant
) -> None:
    for _ in range(TRIES):
        parent, subtask = start_waiting_parent(engine, acme)
        agent = agent_of(engine, subtask)

        simultaneously(
            partial(agent.use, "report_blocker", **DOWN),
            partial(cancellation.cancel, acme.pk, parent, actor="c"),
        )

        assert engine.status(acme, subtask) == "cancelled"
        assert all(one.status == "cancelled" for one in children(acme, subtask))


def test_reassigning_a_step_while_its_run_is_cancelled_leaves_nothing_running(
    engine: Engine, acme: Tenant
) -> None:
    versions.save(
        acme.pk, {"key": "one", "name": "One", "steps": [{"id": "a", "agent_role": "qa"}]}, actor="test"
    )
    for _ in range(TRIES):
        run = start_run(acme.pk, "one", NewRun(), actor="test")
        engine.drain()
        agent = AgentClient(engine.agent.calls[-1])

        simultaneously(
            partial(run_cancellation.cancel_run, acme.pk, run.pk, actor="c"),
            partial(agent.use, "reassign_task", agent_role="dev", reason="x"),
        )
        engine.drain()

        with tenant_scope(acme.pk):
            live = Activity.objects.filter(pipeline_run_id=run.pk).exclude(status__in=activity_tree.ENDED)
            assert not live.exists()
            assert StepRun.objects.get(run_id=run.pk).activity_id is not None
