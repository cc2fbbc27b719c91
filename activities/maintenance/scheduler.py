"""The scheduler: runs the system jobs of the process that leads, each apart from the others.

A job that is due goes to a runner, a thread with connections of its own. One runner is enough while all goes well. When a job hangs, on
a locked table or a server that does not answer, what waits behind it gets another runner a quarter of a second later, up to one for each
job, so that a job can only ever hold up itself; runners that have nothing to do end again. Statements, locks and transactions of a
runner are bounded by PostgreSQL, which also takes back what a frozen process holds. A job that fails is tried again after a while
that grows; its name, its error and when it last went well are kept in PostgreSQL for health checks, alerts and metrics.
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
#: How long a job waits for a runner before there is another, and how long a runner that has nothing to do stays.
CROWDED_SECONDS = 0.25
RUNNER_IDLE_SECONDS = 10.0
RECORD_SECONDS = 2.0
#: The longest pause after failures in a row, of jobs that are due every few seconds and of the others.
PAUSE_SECONDS, LONG_PAUSE_SECONDS = 5.0, 60.0


@dataclass(slots=True)
class Course:
    """How one job goes in this term. Times are of the monotonic clock."""

    job: SystemJob
    due_at: float
    running: bool = False
    started_at: float | None = None
    finished_at: float | None = None
    succeeded_at: float | None = None
    duration: float = 0.0
    lag: float = 0.0
    failures: int = 0
    error: str = ""
    changed: bool = True  # since it was written down

    def pause(self) -> float:
        """The pause after failures. A job that waits for a server that does not answer has no pause: its check is short, and much waits
        for it.
        """
        longest = PAUSE_SECONDS if self.job.every <= PAUSE_SECONDS else LONG_PAUSE_SECONDS
        return min(2.0 ** min(self.failures - 1, 10), longest)

    def report(self, now: float) -> JobReport:
        def ago(moment: float | None) -> float | None:
            return None if moment is None else now - moment

        return JobReport(
            name=self.job.name, owner=self.job.owner, period=self.job.every, budget=self.job.budget, started=ago(self.started_at),
            finished=ago(self.finished_at), succeeded=ago(self.succeeded_at), duration=self.duration, lag=self.lag,
            failures=self.failures, error=self.error,
        )  # fmt: skip


@dataclass(slots=True)
class Round:
    """The jobs of one term."""

    term: Term
    courses: dict[str, Course]
    reported: bool = False


@dataclass(slots=True)
class Scheduler:
    """Dispatches what is due to runners until it is stopped."""

    leader: Leader
    stopped: threading.Event = field(default_factory=threading.Event)
    round: Round | None = None
    passes: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _ready: deque[tuple[Round, Course]] = field(default_factory=deque)
    _runners: int = 0
    _busy: set[str] = field(
        default_factory=set
    )  # names of jobs that a runner is at, of earlier terms as well

    def run(self) -> None:
        """Until `stopped` is set. Needs no database itself, so nothing that hangs there holds up the dispatching."""
        while not self.stopped.wait(self._pause()):
            if self.leader.leads():
                self._dispatch(time.monotonic())
        with self._changed:
            self._changed.notify_all()

    def tick(self) -> None:
        """Everything that is due, one after the other in this thread. Only while this process leads."""
        now = time.monotonic()
        round_ = self._round(now)
        self.passes += 1
        for course in list(round_.courses.values()):
            if course.due_at <= now or course.job.period == TICK:
                self._carry_out(round_, course)

    @staticmethod
    def _pause() -> float:
        return min(settings.ORCHESTRATOR_TICK_SECONDS / 4, CROWDED_SECONDS)

    def _round(self, now: float) -> Round:
        if self.round is None or self.round.term.epoch != self.leader.epoch:
            courses = {job.name: Course(job, now) for job in table()}
            record = SystemJob(
                "job records", RECORD_SECONDS, "activities.maintenance.job_records", 5.0, lambda term: self._record()
            )  # fmt: skip
            self.round = Round(Term(self.leader.epoch), courses | {record.name: Course(record, now)})
        return self.round

    def _dispatch(self, now: float) -> None:
        round_ = self._round(now)
        with self._changed:
            crowded = bool(self._ready)
            waiting = {course.job.name for _, course in self._ready}
            for course in round_.courses.values():
                if course.due_at <= now and course.job.name not in self._busy | waiting:
                    self._ready.append((round_, course))
            if self._ready and (not self._runners or (crowded and self._runners < len(round_.courses))):
                self._runners += 1
                threading.Thread(
                    target=self._run_jobs, name=f"system-jobs-{self._runners}", daemon=True
                ).start()
            if self._ready:
                self._changed.notify()

    def _run_jobs(self) -> None:
        """A runner: takes what is ready until there has been nothing for a while."""
        bounds = Bounds()
        budget: float | None = None
        while (entry := self._take(budget)) is not None:
            round_, course = entry
            budget = course.job.budget
            try:
                if self.leader.leads() and self.leader.epoch == round_.term.epoch:
                    self._carry_out(round_, course, bounds)
                if course.failures:
                    close_old_connections()  # whatever is unusable is replaced
            finally:
                with self._changed:
                    self._busy.discard(course.job.name)
        connections.close_all()

    def _take(self, budget: float | None) -> tuple[Round, Course] | None:
        """The oldest with this budget, of which PostgreSQL knows, else the oldest. What that makes wait gets a runner of its own."""
        with self._changed:
            # Two runners may be told of one job; who comes too late goes on waiting.
            self._changed.wait_for(lambda: self._ready or self.stopped.is_set(), RUNNER_IDLE_SECONDS)
            if not self._ready or self.stopped.is_set():
                self._runners -= 1
                return None
            like = (place for place, (_, course) in enumerate(self._ready) if course.job.budget == budget)
            place = next(like, 0)
            round_, course = self._ready[place]
            del self._ready[place]
            self._busy.add(course.job.name)
            return round_, course

    def _carry_out(self, round_: Round, course: Course, bounds: Bounds | None = None) -> None:
        job, began = course.job, time.monotonic()
        course.started_at, course.lag = began, max(0.0, began - course.due_at)
        failed, error = False, ""
        try:
            if job.when(round_.term):
                if bounds is not None:
                    bounds.put(job.budget)
                with structlog.contextvars.bound_contextvars(keeper_pass=round_.term.epoch):
                    # What a job returns says whether it has done anything, which is worth a trace.
                    tracing.attempt(f"keeper {job.name}", lambda: job.work(round_.term))
        except LeadLost:
            error = "LeadLost"
            logger.warning(
                "A job of an earlier leader refused", extra={"action": "job_fenced", "job": job.name}
            )
        except (redis.RedisError, Closed, mongodb.PyMongoError, LimiterUnavailable) as reason:
            error = type(reason).__name__
            logger.warning(
                "A part of the keeper waits",
                extra={"action": "keeper_part_waits", "part": job.name, "reason": error},
            )
        except DatabaseFault as reason:
            failed, error = True, _name_error(reason)
            logger.warning(
                "A part of the keeper could not use PostgreSQL",
                extra={"action": "keeper_waits", "part": job.name, "reason": error},
            )
        except Exception as reason:
            failed, error = True, type(reason).__name__
            logger.exception(
                "A part of the keeper failed", extra={"action": "keeper_part_failed", "part": job.name}
            )
        ended = time.monotonic()
        course.finished_at, course.duration, course.error = ended, ended - began, error
        course.failures = course.failures + 1 if failed else 0
        course.succeeded_at = course.succeeded_at if error else ended
        course.due_at = (
            ended + course.pause() if failed else max(course.due_at + job.every, began + job.every / 2)
        )
        course.changed = True

    def _record(self) -> int:
        """Write down what has changed. All jobs at the first time, so that those of another version go."""
        round_ = self.round
        if round_ is None:
            return 0
        courses = [course for course in round_.courses.values() if course.changed or not round_.reported]
        for course in courses:
            course.changed = False
        now = time.monotonic()
        write_jobs(
            round_.term.epoch, [course.report(now) for course in courses], all_of_them=not round_.reported
        )
        round_.reported = True
        return 0  # worth no trace


@dataclass(slots=True)
class Bounds:
    """How long the statements of one runner may take. Set again only where the budget or the connection has changed."""

    in_force: dict[str, tuple[object, float]] = field(default_factory=dict)

    def put(self, budget: float) -> None:
        POOL.stay_out()
        for alias in (SYSTEM, APP):
            connection = connections[alias]
            connection.ensure_connection()
            if self.in_force.get(alias) == (connection.connection, budget):
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
            self.in_force[alias] = (connection.connection, budget)


def _name_error(error: Exception) -> str:
    """The kind of the error alone: what PostgreSQL says may quote rows."""
    return type(error.__cause__ or error).__name__
