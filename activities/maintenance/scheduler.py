"""The scheduler: runs the system jobs of the process that leads, isolated from each other.

A job that is due goes to a runner, a thread with its own connections. Usually one runner is enough. When a job hangs, on a locked table or
an unreachable server, the jobs behind it get another runner a quarter of a second later, up to one for each job, so a job can only delay
itself. The runner that became idle last gets the next job, so that runners that are no longer needed stay idle and end. PostgreSQL limits
the statements, locks and transactions of a runner, and so also releases what a frozen process holds. A failed job is retried with growing
pauses. Its error and its last success are stored in PostgreSQL for health checks, alerts and metrics.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import redis
import structlog
from django.conf import settings
from django.db import Error as DatabaseFault
from django.db import close_old_connections, connections

from activities.admission import Closed
from activities.maintenance.job_records import JobReport, write_jobs
from activities.maintenance.leader import Leader, LeadLost
from activities.maintenance.system_jobs import TICK, SystemJob, Term, table
from tenants import tracing
from tenants.context import APP, POOL, SYSTEM
from tenants.exceptions import LimiterUnavailable
from tenants.lazy_import import lazy_import

if TYPE_CHECKING:
    from pymongo import errors as mongodb
else:
    mongodb = lazy_import("pymongo.errors")

logger = logging.getLogger(__name__)

LOCK_SECONDS = 1.0
IDLE_IN_TRANSACTION_SECONDS = 3.0
CROWDED_SECONDS = 0.25  # a job that waits for longer gets an additional runner
RUNNER_IDLE_SECONDS = 10.0  # after which an idle runner ends
RECORD_SECONDS = 2.0
#: The longest pauses after repeated failures: of jobs with a period of a few seconds, and of the others.
PAUSE_SECONDS, LONG_PAUSE_SECONDS = 5.0, 60.0


@dataclass(slots=True)
class JobProgress:
    """The runs of one job in this term. Times are by the monotonic clock."""

    job: SystemJob
    due_at: float
    ready_at: float = 0.0  # when it began to wait for a runner
    started_at: float | None = None
    finished_at: float | None = None
    succeeded_at: float | None = None
    duration: float = 0.0
    lag: float = 0.0
    failures: int = 0
    error: str = ""
    changed: bool = True  # since it was last recorded

    def pause(self) -> float:
        """Return the pause after failures. There is none while a job only waits for another server, because much depends on it."""
        longest = PAUSE_SECONDS if self.job.every <= PAUSE_SECONDS else LONG_PAUSE_SECONDS
        return min(2.0 ** min(self.failures - 1, 10), longest)

    def report(self, now: float) -> JobReport:
        def age(moment: float | None) -> float | None:
            return None if moment is None else now - moment

        return JobReport(
            name=self.job.name, owner=self.job.owner, period=self.job.every, budget=self.job.budget, started=age(self.started_at),
            finished=age(self.finished_at), succeeded=age(self.succeeded_at), duration=self.duration, lag=self.lag,
            failures=self.failures, error=self.error,
        )  # fmt: skip


@dataclass(slots=True)
class Round:
    term: Term
    progress: dict[str, JobProgress]


@dataclass(slots=True)
class Scheduler:
    """Dispatches due jobs to runners until it is stopped."""

    leader: Leader
    stopped: threading.Event = field(default_factory=threading.Event)
    round: Round | None = None
    passes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # Of each idle runner, the last one became idle last.
    _idle: list[threading.Condition] = field(default_factory=list)
    _ready: deque[tuple[Round, JobProgress]] = field(default_factory=deque)
    _runners: int = 0
    _runner_added_at: float = 0.0
    _busy: set[str] = field(default_factory=set)  # names of jobs that are running, also of earlier terms

    def run(self) -> None:
        """Dispatch until `stopped` is set. Uses no database itself, so a hanging database does not delay the dispatching."""
        while not self.stopped.wait(self._pause()):
            if self.leader.leads():
                try:
                    self._dispatch(time.monotonic())
                except Exception:
                    # Continue after any error, because another thread renews the lease: no other process would run the jobs.
                    logger.exception(
                        "System jobs were not dispatched", extra={"action": "keeper_part_failed"}
                    )
        self.end_idle_runners()

    def end_idle_runners(self) -> None:
        """End the runners without a job, after `stopped` was set."""
        with self._lock:
            for idle in self._idle:
                idle.notify()

    def tick(self) -> None:
        """Run everything that is due, in this thread. Call it only while this process leads."""
        now = time.monotonic()
        round_ = self._round(now)
        self.passes += 1
        for progress in list(round_.progress.values()):
            if progress.due_at <= now or progress.job.period == TICK:
                self._run_job(round_, progress)

    @staticmethod
    def _pause() -> float:
        return min(settings.ORCHESTRATOR_TICK_SECONDS / 4, CROWDED_SECONDS)

    def _round(self, now: float) -> Round:
        if self.round is None or self.round.term.epoch != self.leader.epoch:
            progress = {job.name: JobProgress(job, now) for job in table()}
            record = SystemJob(
                "job records", RECORD_SECONDS, "activities.maintenance.job_records", 5.0, lambda term: self._record()
            )  # fmt: skip
            self.round = Round(Term(self.leader.epoch), progress | {record.name: JobProgress(record, now)})
        return self.round

    def _dispatch(self, now: float) -> None:
        round_ = self._round(now)
        with self._lock:
            waiting = {progress.job.name for _, progress in self._ready}
            for progress in round_.progress.values():
                if progress.due_at <= now and progress.job.name not in self._busy | waiting:
                    progress.ready_at = now
                    self._ready.append((round_, progress))
            if self._ready and (not self._runners or self._is_crowded(now, len(round_.progress))):
                threading.Thread(
                    target=self._run_jobs, name=f"system-jobs-{self._runners + 1}", daemon=True
                ).start()
                self._runners += 1  # counted last: a thread that could not be started would never end
                self._runner_added_at = now
            if self._ready and self._idle:
                self._idle[-1].notify()

    def _is_crowded(self, now: float, most: int) -> bool:
        """Return whether the jobs need one more runner. A short tick adds none sooner, because each costs two connections."""
        since = max(min(progress.ready_at for _, progress in self._ready), self._runner_added_at)
        return self._runners < most and now - since >= CROWDED_SECONDS

    def _run_jobs(self) -> None:
        """Run ready jobs until there has been none for `RUNNER_IDLE_SECONDS`."""
        bounds = Bounds()
        budget: float | None = None
        while (entry := self._take(budget)) is not None:
            round_, progress = entry
            budget = progress.job.budget
            try:
                if self.leader.leads() and self.leader.epoch == round_.term.epoch:
                    self._run_job(round_, progress, bounds)
                if progress.failures:
                    close_old_connections()  # replaces unusable connections
            finally:
                with self._lock:
                    self._busy.discard(progress.job.name)
        connections.close_all()

    def _take(self, budget: float | None) -> tuple[Round, JobProgress] | None:
        """Take the oldest job with this budget, because the connections of the runner are set to it, or else the oldest job."""
        with self._lock:
            if not self._ready:
                self._idle.append(idle := threading.Condition(self._lock))
                # A busy runner may have taken the job meanwhile; then this one continues to wait.
                idle.wait_for(lambda: self._ready or self.stopped.is_set(), RUNNER_IDLE_SECONDS)
                self._idle.remove(idle)
            if not self._ready or self.stopped.is_set():
                self._runners -= 1
                return None
            matches = (
                index for index, (_, progress) in enumerate(self._ready) if progress.job.budget == budget
            )
            index = next(matches, 0)
            round_, progress = self._ready[index]
            del self._ready[index]
            self._busy.add(progress.job.name)
            return round_, progress

    def _run_job(self, round_: Round, progress: JobProgress, bounds: Bounds | None = None) -> None:
        job, began = progress.job, time.monotonic()
        progress.started_at, progress.lag = began, max(0.0, began - progress.due_at)
        failed, error = False, ""
        try:
            if job.when(round_.term):
                if bounds is not None:
                    bounds.apply(job.budget)
                with structlog.contextvars.bound_contextvars(keeper_pass=round_.term.epoch):
                    # A trace is only kept if the job did something, which its result says.
                    tracing.attempt(f"keeper {job.name}", lambda: job.work(round_.term))
        except LeadLost:
            error = "LeadLost"
            logger.warning(
                "System job stopped, because its process is no longer the leader",
                extra={"action": "job_fenced", "job": job.name},
            )
        except (redis.RedisError, Closed, mongodb.PyMongoError, LimiterUnavailable) as reason:
            error = type(reason).__name__
            logger.warning(
                "System job waits for another server",
                extra={"action": "keeper_part_waits", "part": job.name, "reason": error},
            )
        except DatabaseFault as reason:
            # Only the type of the error, because PostgreSQL's message may contain data.
            failed, error = True, type(reason.__cause__ or reason).__name__
            logger.warning(
                "System job could not use PostgreSQL",
                extra={"action": "keeper_waits", "part": job.name, "reason": error},
            )
        except Exception as reason:
            failed, error = True, type(reason).__name__
            logger.exception("System job failed", extra={"action": "keeper_part_failed", "part": job.name})
        ended = time.monotonic()
        progress.finished_at, progress.duration, progress.error = ended, ended - began, error
        progress.failures = progress.failures + 1 if failed else 0
        progress.succeeded_at = progress.succeeded_at if error else ended
        progress.due_at = (
            ended + progress.pause() if failed else max(progress.due_at + job.every, began + job.every / 2)
        )
        progress.changed = True

    def _record(self) -> int:
        """Store what has changed. At first these are all jobs, so that those of other versions are deleted."""
        round_ = self.round
        if round_ is None:
            return 0
        changed = [progress for progress in round_.progress.values() if progress.changed]
        for progress in changed:
            progress.changed = False
        now = time.monotonic()
        try:
            write_jobs(round_.term.epoch, [progress.report(now) for progress in changed])
        except DatabaseFault:
            for progress in changed:
                progress.changed = True  # store it the next time
            raise
        return 0  # so that no trace is kept


@dataclass(slots=True)
class Bounds:
    """The time limits of one runner's connections. They are set again only if the budget or the connection has changed."""

    applied: dict[str, tuple[object, float]] = field(default_factory=dict)

    def apply(self, budget: float) -> None:
        POOL.stay_out()
        for alias in (SYSTEM, APP):
            connection = connections[alias]
            connection.ensure_connection()
            if self.applied.get(alias) == (connection.connection, budget):
                continue
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false),"
                    " set_config('idle_in_transaction_session_timeout', %s, false)",
                    [
                        str(int(seconds * 1000))
                        for seconds in (budget, LOCK_SECONDS, IDLE_IN_TRANSACTION_SECONDS)
                    ],
                )
            self.applied[alias] = (connection.connection, budget)
