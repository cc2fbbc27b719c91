"""A worker with runs that cannot renew its lease exits before its runs may be taken over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from uuid import UUID

import pytest
from django.conf import settings
from django.db import OperationalError, transaction

from activities import leases
from activities.maintenance import recovery
from activities.models import WorkerProcess
from tenants.context import SYSTEM, system_scope
from tests.engine import eventually, in_another_thread
from tests.quick_python import Program

pytestmark = pytest.mark.long

SHORT = {
    "ORCHESTRATOR_HEARTBEAT_SECONDS": "0.2",
    "ORCHESTRATOR_WATCHDOG_SECONDS": "1.5",
    "LOG_LEVEL": "ERROR",
}
#: A worker process that never exits on its own; `busy` has a run.
PROGRAM = """
import django, sys, time, uuid
django.setup()
from activities import leases
lease = leases.begin(roles=["qa"], concurrency=1)
run = lease.holding(uuid.uuid4())
if sys.argv[1] == "busy":
    run.__enter__()
print(lease.worker_id, flush=True)
time.sleep(600)
"""


@contextmanager
def worker(kind: str, environment: dict[str, str]) -> Iterator[tuple[Program, UUID]]:
    with Program(
        [sys.executable, "-c", PROGRAM, kind],
        env=environment | SHORT, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout
            yield process, UUID(process.stdout.readline().strip())
        finally:
            process.kill()


def test_a_worker_that_cannot_renew_its_lease_exits_if_it_has_runs(
    process_environment: dict[str, str],
) -> None:
    with (
        worker("busy", process_environment) as (busy, first),
        worker("idle", process_environment) as (idle, second),
    ):
        with system_scope(), transaction.atomic(using=SYSTEM):
            rows = WorkerProcess.objects.select_for_update().filter(pk__in=(first, second))
            assert len(rows) == 2  # the locks hold up their heartbeats from now on

            assert busy.wait(60) == leases.EXIT_STATUS

            assert idle.poll() is None
            (held_up,) = WorkerProcess.objects.filter(pk=second).values_list("beat_at", flat=True)
        with system_scope():  # it continues after the locks are released
            eventually(WorkerProcess.objects.filter(pk=second, beat_at__gt=held_up).exists)
        assert idle.poll() is None


def test_a_worker_that_was_declared_lost_exits_if_it_has_runs_and_else_takes_a_new_lease(
    process_environment: dict[str, str],
) -> None:
    with (
        worker("busy", process_environment) as (busy, first),
        worker("idle", process_environment) as (idle, second),
    ):
        with system_scope():
            for lost in WorkerProcess.objects.filter(pk__in=(first, second)):
                while not recovery.declare_lost(lost):
                    lost.refresh_from_db()  # it has beaten since

        assert busy.wait(60) == leases.EXIT_STATUS
        with system_scope():
            living = WorkerProcess.objects.filter(ended_at=None)
            eventually(lambda: living.filter(pid=idle.pid).exclude(pk=second).exists())
            assert WorkerProcess.objects.filter(pk__in=(first, second), end_reason="lost").count() == 2


class Impatient(Event):
    """The event that heartbeats wait on: it records each wait, and is set after a number of beats."""

    def __init__(self, beats: int) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self.beats = beats

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return len(self.waits) > self.beats


def test_a_failed_heartbeat_is_repeated_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then an outage that is over just before the watchdog would act ends no process."""
    lease = leases.Lease(roles=[], concurrency=1, watched=False, ended=Impatient(beats=3))
    outcomes = iter([None, OperationalError("server closed the connection unexpectedly"), None])

    def beat(_: leases.Lease) -> None:
        if error := next(outcomes):
            raise error

    monkeypatch.setattr(leases.Lease, "beat", beat)
    monkeypatch.setattr(leases, "close_old_connections", lambda: None)
    in_another_thread(lambda: leases._keep_beating(lease))

    normal = settings.ORCHESTRATOR_HEARTBEAT_SECONDS
    assert lease.ended.waits == [normal, normal, leases.RETRY_SECONDS, normal]  # type: ignore[attr-defined]
    assert normal > leases.RETRY_SECONDS


def test_a_process_exits_before_it_may_be_declared_lost() -> None:
    assert settings.ORCHESTRATOR_WATCHDOG_SECONDS + 2 < settings.ORCHESTRATOR_LOST_AFTER_SECONDS
