"""The threads that run the leader's jobs are kept, with their connections, between jobs."""

from __future__ import annotations

import threading
import time

import pytest

from activities.maintenance import scheduler as scheduling
from activities.maintenance.system_jobs import SystemJob
from tests.engine import eventually
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
        eventually(lambda: runners and scheduler.round is not None and scheduler.round.reported)
        for _ in range(3):
            scheduler._dispatch(now)  # nothing is due
            runners[0].join(0.1)
        assert runners[0].is_alive()

        scheduler._dispatch(time.monotonic() + 1.5)
        eventually(lambda: len(runners) == 2)
        assert runners[1] is runners[0]
    finally:
        scheduler.stopped.set()
        with scheduler._changed:
            scheduler._changed.notify_all()
        runners[0].join(60)
    assert not runners[0].is_alive()
