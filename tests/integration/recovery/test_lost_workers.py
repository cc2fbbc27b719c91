"""A worker is lost: that is noticed, its work runs again, and what it still says counts for nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, transaction
from django.db.models.functions import Now

from activities import leases, outbox, relay, suspension
from activities import worker as activity_worker
from activities.exceptions import RunSuperseded
from activities.execution import results
from activities.maintenance import recovery, scheduler
from activities.maintenance.recovery import LivenessWatch, WatchedTime
from activities.models import ActivityRun, WorkerProcess
from activities.run_tokens import RunToken
from agents.contracts import Accepted, Completed, Output
from tenants.context import SYSTEM, system_scope, tenant_scope
from tenants.models import Tenant
from tests.accepted_work import RESULT, accept_work, agent_of
from tests.engine import Engine, in_another_thread
from tests.integration.recovery.losses import Died, lose

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_worker_is_lost_when_its_counter_stands_still_by_our_own_clock(
    engine: Engine, settings: Any
) -> None:
    settings.ORCHESTRATOR_LOST_AFTER_SECONDS = 30
    clock = iter([0.0, 10.0, 20.0, 29.9, 31.0, 41.0, 51.0, 60.9, 61.0])
    watch = LivenessWatch(WatchedTime(lambda: next(clock)))

    found = [watch.find_lost() for _ in range(4)]
    engine.lease.beat()
    found += [watch.find_lost() for _ in range(4)]
    lost = watch.find_lost()

    assert found == [[]] * 8
    assert [worker.pk for worker in lost] == [engine.lease.worker_id]


def test_time_in_which_nobody_could_look_is_no_silence_of_a_worker(engine: Engine) -> None:
    clock = iter([0.0, 600.0, 1200.0])
    watch = LivenessWatch(WatchedTime(lambda: next(clock)))

    assert [watch.find_lost() for _ in range(3)] == [[]] * 3


def test_a_worker_that_beats_between_look_and_verdict_is_not_declared_lost(engine: Engine) -> None:
    with system_scope():
        seen = WorkerProcess.objects.get(pk=engine.lease.worker_id)

    engine.lease.beat()

    assert not recovery.declare_lost(seen)


def test_a_worker_that_stops_between_look_and_verdict_is_not_declared_lost(engine: Engine) -> None:
    with system_scope():
        seen = WorkerProcess.objects.get(pk=engine.lease.worker_id)

    engine.lease.end()

    assert not recovery.declare_lost(seen)
    with system_scope():
        assert WorkerProcess.objects.get(pk=seen.pk).end_reason == "stopped"


def test_a_lost_worker_whose_row_is_locked_keeps_no_other_from_being_declared_lost(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def declare_as_a_runner_of_the_leader() -> int:
        scheduler.Bounds().apply(5.0)
        return recovery.declare_all_lost([locked, other])

    monkeypatch.setattr(scheduler, "LOCK_SECONDS", 0.05)
    with system_scope():
        locked, other = (
            WorkerProcess.objects.create(
                host="there", boot="another machine", pid=1, pid_started=1, roles=[], concurrency=1
            )
            for _ in range(2)
        )
    with system_scope(), transaction.atomic(using=SYSTEM):
        WorkerProcess.objects.select_for_update().get(pk=locked.pk)

        assert in_another_thread(declare_as_a_runner_of_the_leader) == 1

    with system_scope():
        ended = WorkerProcess.objects.filter(end_reason="lost")
        assert list(ended.values_list("pk", flat=True)) == [other.pk]


def test_a_process_that_is_gone_from_this_machine_is_lost_at_the_second_look(engine: Engine) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # its parent does not take note of its end
    pids = {2**22 - 1: 1, os.getpid(): 1, dead.pid: leases.start_time_of(dead.pid)}
    with system_scope():
        gone = [
            WorkerProcess.objects.create(
                host="here",
                boot=leases.boot_identity(),
                pid=pid,
                pid_started=started,
                roles=[],
                concurrency=1,
            )
            for pid, started in pids.items()
        ]
        elsewhere_gone = WorkerProcess.objects.create(
            host="there", boot="another machine", pid=2**22 - 1, pid_started=1, roles=[], concurrency=1
        )

    watch = LivenessWatch()
    assert watch.find_lost() == []
    lost = watch.find_lost()
    dead.wait()

    assert {worker.pk for worker in lost} == {worker.pk for worker in gone}
    assert elsewhere_gone.pk not in {worker.pk for worker in lost}


def test_processes_that_ended_long_ago_are_forgotten(engine: Engine) -> None:
    now = datetime.now(UTC)
    told = {"host": "here", "boot": "b", "pid": 1, "pid_started": 1, "roles": [], "concurrency": 1}
    with system_scope():
        old, young = (
            WorkerProcess.objects.create(**told, ended_at=now - timedelta(days=days)) for days in (91, 89)
        )

    assert [recovery.forget_ended_workers() for _ in range(2)] == [1, 0]
    with system_scope():
        left = set(WorkerProcess.objects.values_list("pk", flat=True))
    assert left == {young.pk, engine.lease.worker_id}
    assert old.pk not in left


def test_work_of_a_lost_worker_runs_again_and_counts_as_a_stall_not_as_an_attempt(
    engine: Engine, acme: Tenant, killed_run: ActivityRun
) -> None:
    lose(engine)
    recovery.reclaim_runs_of_ended_workers()
    relay.flush()
    engine.drain()

    done = engine.get(acme, killed_run.activity_id)
    assert (done.status, done.stalls, done.attempts) == ("done", 1, 1)
    assert [run.status for run in engine.runs(acme, done.pk)] == ["stalled", "completed"]
    assert engine.agent.calls[0].idempotency_key == engine.agent.calls[1].idempotency_key


def test_runs_of_a_living_worker_are_left_alone(
    engine: Engine, acme: Tenant, killed_run: ActivityRun
) -> None:
    assert recovery.reclaim_runs_of_ended_workers() == 0
    assert engine.status(acme, killed_run.activity_id) == "in_progress"

    lose(engine)
    assert recovery.reclaim_runs_of_ended_workers() == 1


def test_a_late_result_of_a_lost_worker_is_refused(
    engine: Engine, acme: Tenant, killed_run: ActivityRun
) -> None:
    token = RunToken(acme.pk, killed_run.activity_id, killed_run.pk, killed_run.fence)
    lose(engine)
    recovery.reclaim_runs_of_ended_workers()
    engine.drain()

    with pytest.raises(RunSuperseded):
        results.record_completed(token, Completed(Output(content="late")), needs_approval=False)

    assert engine.get(acme, killed_run.activity_id).output_ref != killed_run.pk


def test_nothing_that_a_lost_worker_reports_counts_while_another_runs_the_work(
    engine: Engine, acme: Tenant, killed_run: ActivityRun
) -> None:
    old = RunToken(acme.pk, killed_run.activity_id, killed_run.pk, killed_run.fence)
    lose(engine)
    recovery.reclaim_runs_of_ended_workers()
    engine.agent.behaviour = lambda request: Accepted()
    engine.drain()
    reports = (
        lambda: results.record_completed(old, Completed(Output(content="late")), needs_approval=False),
        lambda: results.record_failed(old, results.overdue(1)),
        lambda: results.record_stalled(old),
        lambda: results.record_accepted(old),
    )

    for report in reports:
        with pytest.raises(RunSuperseded):
            report()

    assert engine.status(acme, killed_run.activity_id) == "in_progress"
    assert [run.status for run in engine.runs(acme, killed_run.activity_id)] == ["stalled", "running"]


def test_the_third_stall_is_final(engine: Engine, acme: Tenant, killed_run: ActivityRun) -> None:
    def die(request: Any) -> Completed:
        raise Died

    engine.agent.behaviour = die
    for _ in range(2):
        lose(engine)
        recovery.reclaim_runs_of_ended_workers()
        with pytest.raises(Died):
            engine.deliver()
    lose(engine)
    recovery.reclaim_runs_of_ended_workers()

    failed = engine.get(acme, killed_run.activity_id)
    assert (failed.status, failed.stalls, failed.error["code"]) == ("failed", 2, "stalled")
    assert [run.status for run in engine.runs(acme, failed.pk)] == ["stalled"] * 3


def stall(engine: Engine, tenant: Tenant, activity_id: UUID, times: int = 1) -> None:
    for _ in range(times):
        run = engine.runs(tenant, activity_id)[-1]
        results.record_stalled(RunToken(tenant.pk, activity_id, run.pk, run.fence))
        engine.drain()


@pytest.mark.parametrize("success", ["completed", "suspended"])
def test_stalls_before_a_successful_run_do_not_count(engine: Engine, acme: Tenant, success: str) -> None:
    """Otherwise work that takes weeks, with many answers of people, would fail with the third worker that was killed."""
    engine.agent.behaviour = lambda request: Accepted()
    activity_id, _ = accept_work(engine, acme)
    stall(engine, acme, activity_id, times=2)
    agent = agent_of(engine, activity_id)
    if success == "suspended":
        agent.create_with("report_blocker", type="api_outage", message="It is down.")
        suspension.resolve_blocker(acme.pk, activity_id, actor="Ann", note="It is up.")
    else:
        with tenant_scope(acme.pk):
            outbox.record(engine.get(acme, activity_id), "unblocked")
        agent.post("complete", RESULT)
    engine.drain()

    stall(engine, acme, activity_id, times=2)

    assert (engine.status(acme, activity_id), engine.get(acme, activity_id).stalls) == ("in_progress", 2)
    stall(engine, acme, activity_id)
    assert engine.status(acme, activity_id) == "failed"


def test_a_claim_whose_answer_was_lost_is_handed_back_by_its_own_worker(
    engine: Engine, acme: Tenant, killed_run: ActivityRun
) -> None:
    activity_worker.hand_back_unattended(engine.lease)
    after_one_look = engine.status(acme, killed_run.activity_id)
    activity_worker.hand_back_unattended(engine.lease)
    relay.flush()
    engine.drain()

    done = engine.get(acme, killed_run.activity_id)
    assert after_one_look == "in_progress"
    assert (done.status, done.stalls, done.attempts) == ("done", 1, 1)


def test_a_run_that_its_thread_gave_up_for_an_outage_is_handed_back_and_is_no_stall(
    engine: Engine, acme: Tenant, killed_run: ActivityRun
) -> None:
    with pytest.raises(OperationalError), engine.lease.holding(killed_run.pk):
        raise OperationalError("server closed the connection unexpectedly")

    for _ in range(2):
        activity_worker.hand_back_unattended(engine.lease)
    relay.flush()
    engine.drain()

    done = engine.get(acme, killed_run.activity_id)
    assert (done.status, done.stalls, done.attempts) == ("done", 0, 1)
    assert engine.lease.cut_off == set()


def test_a_run_that_hangs_in_a_living_worker_ends_after_its_time(
    engine: Engine, acme: Tenant, killed_run: ActivityRun
) -> None:
    def has_run_for(seconds: float) -> None:
        with tenant_scope(acme.pk):
            ActivityRun.objects.update(started_at=Now() - timedelta(seconds=seconds))

    has_run_for(killed_run.timeout_seconds + 20)  # its worker may still end it by itself
    assert recovery.end_overdue_runs() == 0

    has_run_for(killed_run.timeout_seconds + 61)
    assert recovery.end_overdue_runs() == 1

    assert engine.get(acme, killed_run.activity_id).error["code"] == "agent_timeout"
