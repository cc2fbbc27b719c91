"""The lease of a worker process on its runs: a counter that the process raises, and a watchdog that ends the process if it cannot.

Recovery declares a process lost when the counter has not changed for `ORCHESTRATOR_LOST_AFTER_SECONDS` by recovery's own monotonic
clock. No wall clocks are compared, so a clock that jumps neither kills live work nor keeps dead work. A process with runs that could not
raise its counter for `ORCHESTRATOR_WATCHDOG_SECONDS`, which is shorter, ends itself. So it has stopped working on its runs before another
worker gets them. After a freeze the watchdog notices the gap at once.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from uuid import UUID

import psutil
from django.conf import settings
from django.db import close_old_connections, connections
from django.db.models import F
from django.db.models.functions import Now

from activities.models import WorkerProcess
from tenants import outages
from tenants.identifiers import uuid7
from tenants.wording import describe_count

logger = logging.getLogger(__name__)

ALL = "*"  # stands for all roles
DRAINING = "shutting down"

RETRY_SECONDS = 1.0  # until the next beat after one that failed

EXIT_STATUS = 70  # of a process that its watchdog ends: "internal software error" in sysexits.h


@dataclass(slots=True)
class Lease:
    roles: list[str]
    concurrency: int
    # Whether the watchdog may end the process; False in tests, which share the process of pytest.
    watched: bool
    worker_id: UUID = field(default_factory=uuid7)
    check: Callable[[Lease], None] | None = None  # called after each beat
    taken: int = 0  # runs since the process started
    runs: Counter[UUID] = field(default_factory=Counter)  # the number of threads that work on each
    doubtful: set[UUID] = field(default_factory=set)
    cut_off: set[UUID] = field(default_factory=set)  # runs that were abandoned because of an outage
    last_beat: float = field(default_factory=time.monotonic)
    draining: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    closed: str = ""  # the reason why it takes no new work; empty while it does
    load: dict[str, float] | None = None  # the last measured load of the host

    @property
    def active(self) -> int:
        return len(self.runs)

    @contextmanager
    def holding(self, *run_ids: UUID) -> Iterator[None]:
        """Surround the work of a thread on these runs. Enter it before their claim, so that the lease knows every claimed run."""
        with self.lock:
            self.runs.update(run_ids)
            self.taken += len(run_ids)
        try:
            yield
        except Exception as error:
            if outages.is_away(error):
                self.cut_off.update(run_ids)
            raise
        finally:
            with self.lock:
                self.runs.subtract(run_ids)
                for run_id in run_ids:
                    if not self.runs[run_id]:
                        del self.runs[run_id]

    def beat(self) -> None:
        """Raise the counter. If the process was declared lost, register it under a new id, or end it if it has runs."""
        moved = WorkerProcess.objects.filter(pk=self.worker_id, ended_at=None).update(
            counter=F("counter") + 1,
            taken=self.taken,
            beat_at=Now(),
            active=self.active,
            load=self.load,
            closed=self._stored_reason,
            roles=self.roles,
        )
        if not moved and not self.ended.is_set():
            if self.active and self.watched:
                _end_process("declared lost while it had runs")
            self.worker_id = uuid7()
            self.register()
        self.last_beat = time.monotonic()

    def register(self) -> None:
        WorkerProcess.objects.create(
            pk=self.worker_id, host=socket.gethostname(), boot=boot_identity(), pid=os.getpid(), pid_started=start_time_of(os.getpid()),
            roles=self.roles, concurrency=self.concurrency, closed=self._stored_reason, load=self.load, active=self.active,
            version=program_version(),
        )  # fmt: skip

    @property
    def _stored_reason(self) -> dict[str, str]:
        return {ALL: self.closed} if self.closed else {}

    def close(self, reason: str) -> bool:
        """Take no new work; returns False if it was closed already. Runs continue under the lease. Needs no database."""
        with self.lock:
            if self.closed:
                return False
            self.closed = reason
            return True

    def open(self) -> bool:
        """Take new work again; returns False if it was open already, or if this process is shutting down."""
        with self.lock:
            if not self.closed or self.draining.is_set():
                return False
            self.closed = ""
            return True

    def serve(self, roles: list[str]) -> None:
        """Serve these roles from now on. If they cannot be stored, the next beat stores them."""
        self.roles = roles
        WorkerProcess.objects.filter(pk=self.worker_id, ended_at=None).update(roles=roles)

    def open_roles(self) -> list[str]:
        """Return the roles of which this process takes new work."""
        return [] if self.closed else list(self.roles)

    def drain(self) -> None:
        """Take no new work: admission grants no seat of this process any more. Runs continue under the lease."""
        self.draining.set()
        with self.lock:
            self.closed = DRAINING
        self.store_intake()

    def store_intake(self) -> None:
        """Store whether the intake is closed; if that fails, the next beat does it."""
        WorkerProcess.objects.filter(pk=self.worker_id, ended_at=None).update(closed=self._stored_reason)

    def end(self, reason: str = "stopped") -> None:
        """End the lease: admission grants nothing more to this process, and it begins nothing more."""
        self.draining.set()
        self.ended.set()
        with self.lock:
            self.closed = DRAINING
        WorkerProcess.objects.filter(pk=self.worker_id, ended_at=None).update(
            ended_at=Now(), end_reason=reason
        )


_lease: Lease | None = None  # kept after its end: threads of this process may still work under it


def begin(
    *, roles: list[str], concurrency: int, watched: bool = True, check: Callable[[Lease], None] | None = None
) -> Lease:
    """Register this process and keep beating until it ends. First ends a lease that it still has, so that only one beats."""
    global _lease
    end()
    lease = Lease(roles=roles, concurrency=concurrency, watched=watched, check=check)
    lease.register()  # First, because recovery takes away the runs of an unknown process at once.
    _lease = lease
    threading.Thread(target=_keep_beating, args=(lease,), name="heartbeat", daemon=True).start()
    if watched:
        threading.Thread(target=_watch, args=(lease,), name="watchdog", daemon=True).start()
    return lease


def current() -> Lease:
    """Return the lease of this process, also after its end; if none was begun, an ended one that takes no work.

    Never begins a lease: a thread that still works while its process stops would create one that keeps beating and never ends.
    """
    return _lease or _ended_lease()


def _ended_lease() -> Lease:
    lease = Lease(roles=[], concurrency=0, watched=False, closed=DRAINING)
    lease.draining.set()
    lease.ended.set()
    return lease


def end() -> None:
    if _lease:
        _lease.end()


def is_over() -> bool:
    """Whether the runs of this process may be given to others: its lease has ended, or it could not beat for too long."""
    lease = _lease
    if lease is None or lease.ended.is_set():
        return True
    return time.monotonic() - lease.last_beat > settings.ORCHESTRATOR_WATCHDOG_SECONDS


def _keep_beating(lease: Lease) -> None:
    pause = settings.ORCHESTRATOR_HEARTBEAT_SECONDS
    while not lease.ended.wait(pause):
        pause = settings.ORCHESTRATOR_HEARTBEAT_SECONDS
        try:
            close_old_connections()
            lease.beat()
            if lease.check:
                lease.check(lease)
        except Exception as error:
            # Never stop beating, because a process without heartbeats loses all its runs.
            if outages.may_pass(error):
                facts = {"action": "heartbeat_failed", "reason": str(error).strip()}
                logger.warning("Heartbeat failed", extra=facts)
                pause = min(pause, RETRY_SECONDS)  # retry early, because the watchdog acts soon
            else:
                logger.exception("Check after a heartbeat failed", extra={"action": "heartbeat_check_failed"})
    connections.close_all()


def _watch(lease: Lease) -> None:
    while not lease.ended.wait(1.0):
        silence = time.monotonic() - lease.last_beat
        if silence > settings.ORCHESTRATOR_WATCHDOG_SECONDS and lease.active:
            _end_process(
                f"no heartbeat for {silence:.0f} s with {describe_count(lease.active, 'active run')}"
            )


def _end_process(reason: str) -> None:
    logger.critical("Worker process ends itself", extra={"action": "watchdog", "reason": reason})
    os._exit(EXIT_STATUS)


def boot_identity() -> str:
    """Identify the scope in which a pid is unique: this boot of the machine and this process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()}:{psutil.boot_time():.0f}"


def start_time_of(pid: int) -> int:
    """Return the kernel's start time of a process; together with the pid it is unique. Raises `psutil.NoSuchProcess`."""
    try:
        # Field 22. Count from the end of the command name, because the name may contain spaces and brackets.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError:
        return int(psutil.Process(pid).create_time() * 100)


@cache
def program_version() -> str:
    """Return the version of the installed package, or "unknown"."""
    try:
        return version("orchestrator")
    except PackageNotFoundError:
        return "unknown"


def is_gone(worker: WorkerProcess) -> bool:
    """Whether the process certainly no longer exists. False if this host cannot know."""
    if worker.boot != boot_identity():
        return False
    try:
        return (
            start_time_of(worker.pid) != worker.pid_started
            or psutil.Process(worker.pid).status() == psutil.STATUS_ZOMBIE
        )
    except (psutil.NoSuchProcess, ProcessLookupError):
        return True
    except psutil.AccessDenied:
        return False
