"""Simultaneous actions on the same activity, run or slot. Each starts behind a barrier, with its own connections."""

from __future__ import annotations

from collections import Counter
from functools import partial
from threading import Barrier, Condition, Event, current_thread
from typing import Any
from uuid import UUID

import pytest

from activities import cancellation, dispatch, quick_work, tasks
from activities.exceptions import AlreadyDecided, RunSuperseded, TransitionRefused
from activities.execution import results
from activities.human_tasks import decisions
from activities.models import Activity, ActivityEvent
from activities.run_tokens import RunToken
from agents.contracts import Accepted, Completed, Output
from pipelines import versions
from pipelines.models import PipelineRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, simultaneously

pytestmark = [pytest.mark.concurrency, pytest.mark.usefixtures("one_at_a_time")]


def gated(engine: Engine, tenant: Tenant) -> UUID:
    (activity_id,) = engine.submit(tenant, requires_approval=True)
    engine.drain()
    return activity_id


def test_one_of_twenty_simultaneous_decisions_wins_and_the_others_learn_who_decided(
    engine: Engine, acme: Tenant
) -> None:
    activity_id = gated(engine, acme)
    deciders = [partial(decisions.approve, acme.pk, activity_id, actor=f"approver {n}") for n in range(10)]
    deciders += [
        partial(decisions.reject, acme.pk, activity_id, actor=f"rejecter {n}", notes="no") for n in range(10)
    ]

    outcomes = simultaneously(*deciders)

    won = [outcome for outcome in outcomes if isinstance(outcome, Activity)]
    lost = [outcome for outcome in outcomes if isinstance(outcome, AlreadyDecided)]
    assert (len(won), len(lost)) == (1, 19)
    assert all(won[0].decided_by in str(refusal) for refusal in lost)
    with tenant_scope(acme.pk):
        revisions = Activity.objects.filter(link_kind="revision_of").count()
        decided = ActivityEvent.objects.filter(
            activity_id=activity_id, verb__in=("approve", "reject")
        ).count()
    assert (revisions, decided) == (1 if won[0].status == "rejected" else 0, 1)


def test_deciding_by_the_gate_and_by_the_activity_at_once_never_deadlocks(
    engine: Engine, acme: Tenant
) -> None:
    for _ in range(5):
        activity_id = gated(engine, acme)
        with tenant_scope(acme.pk):
            gate_id = Activity.objects.get(parent_id=activity_id, link_kind="gate").pk

        outcomes = simultaneously(
            partial(decisions.approve, acme.pk, activity_id, actor="a"),
            partial(decisions.reject, acme.pk, gate_id, actor="b", notes="no"),
            partial(cancellation.cancel, acme.pk, activity_id, actor="c"),
        )

        assert Counter(isinstance(outcome, Activity) for outcome in outcomes) == {True: 1, False: 2}
        assert all(isinstance(outcome, Activity | TransitionRefused) for outcome in outcomes)


def test_eight_deliveries_of_one_message_run_the_agent_once(engine: Engine, acme: Tenant) -> None:
    engine.submit(acme)
    message = engine.take()

    outcomes = simultaneously(*[partial(tasks.run, **message)] * 8)

    assert outcomes == [None] * 8
    assert len(engine.agent.calls) == 1


def test_a_callback_its_repetition_and_a_timeout_at_once_have_one_effect(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    for _ in range(5):
        (activity_id,) = engine.submit(acme, max_attempts=1)
        engine.drain()
        (run,) = engine.runs(acme, activity_id)
        token = RunToken(acme.pk, activity_id, run.pk, run.fence)
        complete = partial(
            results.record_completed, token, Completed(Output(content="x")), needs_approval=False
        )

        outcomes = simultaneously(
            complete, complete, partial(results.record_failed, token, results.overdue(1))
        )

        assert sum(isinstance(outcome, RunSuperseded) for outcome in outcomes) == 2
        assert engine.status(acme, activity_id) in ("done", "failed")


def start_wide(engine: Engine, acme: Tenant) -> tuple[PipelineRun, list[dict[str, str] | None]]:
    """Start a run of four steps and their join; returns it with the messages of the four."""
    steps = [{"id": f"s{n}", "agent_role": "qa", "depends_on": []} for n in range(4)]
    join = {"id": "join", "agent_role": "qa", "depends_on": [step["id"] for step in steps]}
    versions.save(acme.pk, {"key": "wide", "name": "Wide", "steps": [*steps, join]}, actor="test")
    run = start_run(acme.pk, "wide", NewRun(), actor="test")
    return run, [engine.take() for _ in steps]


def outcome(acme: Tenant, run: PipelineRun) -> tuple[int, str, int]:
    """How often the join was started, and how the run stands."""
    with tenant_scope(acme.pk):
        joins = Activity.objects.filter(pipeline_run_id=run.pk, step="join").count()
        ended = PipelineRun.objects.get(pk=run.pk)
    return joins, ended.status, ended.unsettled


def test_last_steps_that_end_together_start_the_join_exactly_once(engine: Engine, acme: Tenant) -> None:
    for _ in range(10):
        run, messages = start_wide(engine, acme)

        delivered = simultaneously(*[partial(tasks.run, **message) for message in messages])
        engine.drain()

        assert delivered == [None] * 4
        assert outcome(acme, run) == (1, "completed", 0)


def test_last_steps_that_other_threads_have_taken_over_start_the_join_exactly_once(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two calls hang until the two that wait behind them were taken over, and those end after every delivery has returned."""
    monkeypatch.setattr(quick_work, "SAMPLES", 0)
    monkeypatch.setattr(quick_work, "QUICK_SECONDS", 1e6)
    dispatch.QUICK_WORK.times.note((acme.pk, "qa"), 0.0)
    run, messages = start_wide(engine, acme)
    all_called, delivered = Barrier(4), Event()

    def behaviour(request: Any) -> Completed:
        if request.pipeline_step != "join":
            all_called.wait(60)
            if current_thread().name.startswith("relief of"):
                assert delivered.wait(60)
        return Completed(Output(content="x"))

    engine.agent.behaviour = behaviour
    assert simultaneously(*[partial(tasks.run, **message) for message in messages]) == [None] * 4
    assert outcome(acme, run) == (0, "running", 3)
    delivered.set()
    engine.drain()

    assert outcome(acme, run) == (1, "completed", 0)


def test_cancelling_while_a_worker_claims_ends_cancelled_and_never_runs_twice(
    engine: Engine, acme: Tenant
) -> None:
    for _ in range(10):
        (activity_id,) = engine.submit(acme)
        message = engine.take()

        simultaneously(
            partial(tasks.run, **message), partial(cancellation.cancel, acme.pk, activity_id, actor="c")
        )

        assert engine.status(acme, activity_id) in ("cancelled", "done")


def test_a_cap_holds_while_many_workers_acquire_and_release_slots(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_CONTINUE_SECONDS = 5.0
    engine.serve(acme, "qa", max_concurrency=3)
    somebody_came = Condition()
    running, peaks = [0], [0]

    def work(request: Any) -> Completed:
        """Stays until one more than may be there has come, or would have had the time to."""
        with somebody_came:
            running[0] += 1
            peaks.append(running[0])
            somebody_came.notify_all()
            somebody_came.wait_for(lambda: running[0] > 3, timeout=0.05)
            running[0] -= 1
        return Completed(Output(content="x"))

    engine.agent.behaviour = work
    engine.submit(acme, count=60)

    def worker() -> None:
        while (message := engine.take()) is not None:
            dispatch.work(
                dispatch.Grant(
                    UUID(message["activity"]),
                    UUID(message["tenant"]),
                    message["role"],
                    message["grant"],
                    False,
                )
            )

    simultaneously(*[worker] * 6)
    engine.drain()

    with tenant_scope(acme.pk):
        assert Activity.objects.filter(status="done").count() == 60
    assert max(peaks) == 3


def test_the_same_dedup_key_submitted_at_once_creates_one_activity(engine: Engine, acme: Tenant) -> None:
    created = simultaneously(*[partial(engine.submit, acme, dedup_key="once")] * 8)

    assert len({ids[0] for ids in created}) == 1
