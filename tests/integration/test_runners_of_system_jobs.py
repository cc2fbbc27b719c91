"""The threads that run the leader's jobs are kept, with their connections, between jobs."""

from __future__ import annotations

import threading
import time

import pytest

from activities.maintenance import scheduler as scheduling
from activities.maintenance.system_jobs import SystemJob
from tests.engine import eventually, no_threads
from tests.upkeep import new_leader


def test_a_thread_is_kept_while_nothing_is_due_and_runs_the_next_job(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runners: list[threading.Thread] = []
    job = SystemJob("only", 1.0, "tests", 5.0, lambda term: runners.append(threading.current_thread()))
    monkeypatch.setattr(scheduling, "table", lambda: [job])
    scheduler, now = new_leader(), time.monotonic()
    try:
        scheduler._dispatch(now)
        eventually(lambda: runners and scheduler._idle)
        for _ in range(3):
            scheduler._dispatch(now)  # nothing is due
            runners[0].join(0.1)
        assert runners[0].is_alive()

        scheduler._dispatch(time.monotonic() + 1.5)
        eventually(lambda: len(runners) == 2)
        assert runners[1] is runners[0]
    finally:
        scheduler.stopped.set()
        scheduler.end_idle_runners()
        runners[0].join(60)
    assert not runners[0].is_alive()


def test_runners_that_a_hanging_job_had_required_end_although_jobs_go_on(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has two connections. All idle runners in turn would keep them all for ever."""
    monkeypatch.setattr(scheduling, "RUNNER_IDLE_SECONDS", 0.5)
    hanging, may_end = threading.Barrier(4), threading.Event()

    def hang(term: object) -> None:
        hanging.wait(60)
        may_end.wait(60)

    runs: list[float] = []
    jobs = [SystemJob(f"hanging-{number}", 3600.0, "tests", 60.0, hang) for number in range(3)]
    monkeypatch.setattr(
        scheduling,
        "table",
        lambda: [*jobs, SystemJob("often", 0.01, "tests", 60.0, lambda term: runs.append(time.monotonic()))],
    )
    scheduler = new_leader()
    try:
        while hanging.n_waiting < 3:
            scheduler._dispatch(time.monotonic())
        hanging.wait(60)
        may_end.set()

        def dispatch_until_one_is_left() -> bool:
            scheduler._dispatch(time.monotonic())
            return scheduler._runners == 1

        eventually(dispatch_until_one_is_left)
        before = len(runs)
        eventually(lambda: dispatch_until_one_is_left() and len(runs) > before)
    finally:
        scheduler.stopped.set()
        scheduler.end_idle_runners()
        eventually(lambda: scheduler._runners == 0)


def test_jobs_run_as_soon_as_a_thread_can_be_started(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile the lease is renewed, so no other process runs them."""
    runs: list[float] = []
    job = SystemJob("only", 0.01, "tests", 5.0, lambda term: runs.append(time.monotonic()))
    monkeypatch.setattr(scheduling, "table", lambda: [job])
    scheduler, refused = new_leader(), threading.Event()
    dispatch = scheduling.Scheduler._dispatch

    def dispatch_without_threads(self: scheduling.Scheduler, now: float) -> None:
        try:
            with no_threads():
                dispatch(self, now)
        finally:
            monkeypatch.setattr(scheduling.Scheduler, "_dispatch", dispatch)
            refused.set()

    monkeypatch.setattr(scheduling.Scheduler, "_dispatch", dispatch_without_threads)
    dispatching = threading.Thread(target=scheduler.run, daemon=True)
    dispatching.start()
    try:
        assert refused.wait(30)
        eventually(lambda: runs)
    finally:
        scheduler.stopped.set()
        dispatching.join(30)
        eventually(lambda: scheduler._runners == 0)


def test_a_job_that_waits_gets_another_thread_after_a_quarter_of_a_second_however_short_the_tick_is(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread has two connections, so a busy machine must not start one with each pass."""
    hanging, may_end = list[object](), threading.Event()

    def hang(term: object) -> None:
        hanging.append(term)
        may_end.wait(60)

    jobs = [SystemJob(f"hanging-{number}", 3600.0, "tests", 60.0, hang) for number in range(3)]
    monkeypatch.setattr(scheduling, "table", lambda: jobs)
    scheduler, added = new_leader(), list[int]()
    try:
        start = time.monotonic()
        for milliseconds in (0, 50, 100, 200, 240, 260, 300, 500, 520):
            scheduler._dispatch(start + milliseconds / 1000)
            eventually(lambda: len(hanging) == scheduler._runners)
            added.append(scheduler._runners)
    finally:
        may_end.set()
        scheduler.stopped.set()
        scheduler.end_idle_runners()
        eventually(lambda: scheduler._runners == 0)

    assert added == [1, 1, 1, 1, 1, 2, 2, 2, 3]
