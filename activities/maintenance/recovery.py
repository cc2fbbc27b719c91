"""Recovery: whatever was lost between two steps is found in PostgreSQL and set going again.

Every function may run at any time, in any number of processes, and changes nothing where nothing is wrong. They act on (run, fence)
pairs, so none of them can hit the attempt that has taken over already.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import redis
from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Now

from activities import backlog, cancellation, leases, relay, states
from activities.admission import Closed, Exchange
from activities.admission.exchange import Offer, find_unknown
from activities.exceptions import RunSuperseded, TransitionRefused
from activities.execution import results
from activities.models import Activity, ActivityRun, LeaderLease, Wake, WorkerProcess
from activities.models.activity import in_status
from activities.run_tokens import RunToken
from tenants.context import SYSTEM, system_scope, tenant_scope

from . import counters

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=ActivityRun)

PAGE = 500
GRACE = timedelta(seconds=60)
ENDED_KEPT = timedelta(days=90)  # as runs are, whose pages lead to their process
YOUNG_SECONDS = 2.0  # Younger wakes are on their way; offering them again would only cost.


@dataclass(slots=True)
class WatchedTime:
    """The clock of a watch: it counts only time in which we looked. It almost stops while PostgreSQL does not answer, since a worker or
    agent that could not be seen then was not silent.

    `clock` is monotonic. Time between two looks counts up to `MOST_SECONDS`.
    """

    MOST_SECONDS: ClassVar[float] = 10.0

    clock: Callable[[], float] = time.monotonic
    seconds: float = 0.0
    looked: float | None = None

    def look(self) -> float:
        """The time by which a look is dated that has just succeeded."""
        now = self.clock()
        if self.looked is not None:
            self.seconds += min(now - self.looked, self.MOST_SECONDS)
        self.looked = now
        return self.seconds


@dataclass(slots=True)
class LivenessWatch:
    """Finds lost workers: those whose process is gone, or whose counter did not move for too long while we watched."""

    time: WatchedTime = field(default_factory=WatchedTime)
    seen: dict[UUID, tuple[int, float]] = field(default_factory=dict)
    gone: set[UUID] = field(default_factory=set)

    def find_lost(self) -> list[WorkerProcess]:
        """Compare all live workers with what was seen before. The first look only takes note."""
        with system_scope():
            workers = list(WorkerProcess.objects.filter(ended_at=None))
        now = self.time.look()
        self.seen = {worker.pk: self._note(worker, now) for worker in workers}
        # Seen gone twice, a tick apart: an agent that the dead process was talking to gets a moment to notice.
        gone = {worker.pk for worker in workers if leases.is_gone(worker)}
        surely, self.gone = gone & self.gone, gone
        silent = {
            pk
            for pk, (_, since) in self.seen.items()
            if now - since >= settings.ORCHESTRATOR_LOST_AFTER_SECONDS
        }
        return [worker for worker in workers if worker.pk in surely | silent]

    def _note(self, worker: WorkerProcess, now: float) -> tuple[int, float]:
        counter, since = self.seen.get(worker.pk, (None, now))
        return (worker.counter, now if counter != worker.counter else since)


@dataclass(slots=True)
class HeartbeatWatch:
    """Says which accepted runs have gone silent: their agent has sent heartbeats, and then none for too long.

    An agent that never sends one is bounded by its deadline alone.
    """

    time: WatchedTime = field(default_factory=WatchedTime)
    seen: dict[UUID, tuple[int, float]] = field(default_factory=dict)

    def silent(self) -> list[ActivityRun]:
        """Compare with what was seen before. The first look only takes note."""
        with system_scope():
            runs = list(ActivityRun.objects.filter(status="running", accepted_at__isnull=False, beats__gt=0))
        now = self.time.look()
        before, self.seen = self.seen, {}
        for run in runs:
            beats, since = before.get(run.pk, (run.beats, now))
            self.seen[run.pk] = (run.beats, since if beats == run.beats else now)
        patience = settings.ORCHESTRATOR_AGENT_SILENT_SECONDS
        return [run for run in runs if now - self.seen[run.pk][1] >= patience]


def _always() -> None:
    """Nobody has to be asked: for what is done by hand, once."""


def reclaim_silent_runs(watch: HeartbeatWatch, *, confirm: Callable[[], None] = _always) -> int:
    """Start the work of agents that have gone silent again, or give it up after too many stalls.

    `confirm` raises when the process that watched may no longer act on what it saw. A run that sent a heartbeat since the look continues.
    """
    silent = watch.silent()
    if silent:
        confirm()
    return _each(silent, lambda run: results.record_stalled(_token(run), beats_seen=run.beats))


def forget_ended_workers() -> int:
    """Delete the rows of processes that ended long ago; returns how many. Nothing of the engine asks for them."""
    with system_scope():
        ended = WorkerProcess.objects.filter(ended_at__lt=Now() - ENDED_KEPT)
        return ended.delete()[0]


def declare_lost(worker: WorkerProcess, *, confirm: Callable[[], None] = _always) -> bool:
    """End the worker's lease unless it has beaten again since it was looked at.

    `confirm` is called last in the transaction, and raises when the process that watched may no longer act on what it saw.
    """
    with system_scope(), transaction.atomic(using=SYSTEM):
        ended = WorkerProcess.objects.filter(pk=worker.pk, counter=worker.counter, ended_at=None).update(
            ended_at=Now(), end_reason="lost"
        )
        if ended:
            counters.note("workers_lost")
            confirm()
    if ended:
        logger.warning(
            "Worker lost",
            extra={"action": "worker_lost", "worker": str(worker.pk), "host": worker.host, "pid": worker.pid},
        )
    return bool(ended)


def reclaim_runs_of_ended_workers() -> int:
    """Take the runs of workers that have ended and start them elsewhere, or give them up after too many stalls.

    A worker that did not beat any more after an outage was lost to it: that is no stall.
    """
    own = WorkerProcess.objects.filter(pk=OuterRef("worker_id"))
    with system_scope():
        found = ActivityRun.objects.filter(
            ~Exists(own.filter(ended_at=None)), status="running", worker_id__isnull=False
        )
        was_away = Exists(own.filter(outage_at__gte=F("beat_at")))
        runs = list(found.annotate(was_away=was_away).order_by("pk")[:PAGE])
    return _each(runs, lambda run: results.record_stalled(_token(run), counts=not run.was_away))


def end_overdue_runs() -> int:
    """Fail the runs that an agent accepted and did not finish by its deadline, and those that hang in a living worker.

    A worker bounds its calls itself; one that is over its time by `GRACE` hangs where it cannot be interrupted. After an outage agents
    have the same time again to report what they could not report meanwhile.
    """
    allowed = F("timeout_seconds") * timedelta(seconds=1)
    late = Exists(LeaderLease.objects.filter(outage_ended_at__gt=Now() - GRACE))
    accepted = Q(~late, accepted_at__isnull=False, accepted_at__lt=Now() - allowed)
    hanging = Q(accepted_at=None, started_at__lt=Now() - allowed - GRACE)
    with system_scope():
        runs = list(ActivityRun.objects.filter(accepted | hanging, status="running").order_by("pk")[:PAGE])
    return _each(
        runs,
        lambda run: results.record_failed(
            _token(run), results.overdue(run.timeout_seconds), actor="recovery"
        ),
    )


def offer_forgotten(*, after: UUID | None = None, limit: int = PAGE) -> tuple[int, UUID | None]:
    """Offer pending work that admission does not know, a page at a time in the order of the wakes. Returns how many were looked at, and
    where to go on.

    What was forgotten is read once more before it is offered: an offer of work that ran meanwhile would be granted a slot for nothing.
    """
    with system_scope():
        pending = Wake.objects.filter(
            state="pending", due_at=None, created_at__lt=Now() - timedelta(seconds=YOUNG_SECONDS)
        )
        if after is not None:
            pending = pending.filter(pk__gt=after)
        wakes = list(pending.order_by("pk").values_list("pk", "activity_id")[:limit])
        activities = _claimable(activity_id for _, activity_id in wakes)
    forgotten = _find_unknown_to_admission(activities)
    if forgotten:
        with system_scope():
            offers = [Offer.of(activity) for activity in _claimable(forgotten)]
        relay.hand_over(Exchange(offers=offers))
    return len(activities), wakes[-1][0] if len(wakes) == limit else None


def _find_unknown_to_admission(activities: Sequence[Activity]) -> Collection[UUID]:
    """All of them while admission does not answer: the relay keeps offers until it does."""
    if not activities:
        return ()
    try:
        return find_unknown([Offer.of(activity) for activity in activities])
    except (Closed, redis.RedisError):
        return [activity.pk for activity in activities]


def _claimable(ids: Iterable[UUID]) -> list[Activity]:
    fields = ("tenant_id", "agent_role", "priority", "created_at", "group_key", "group_scope", "files")
    origin = ("pipeline_id", "schedule_id", "run_now_at")
    # By key alone: asked for their status as well, PostgreSQL may read all that waits instead.
    found = Activity.objects.filter(pk__in=set(ids)).only(*fields, *origin, "status", "assignee_type")
    return [
        activity for activity in found if activity.status == "created" and activity.assignee_type == "agent"
    ]


def expire_stale() -> int:
    """Cancel what may no longer start because its time has passed: in line, held, snoozed or blocked. Gates have deadlines instead."""
    with system_scope():
        stale = list(
            Activity.objects.filter(in_status(*states.EXPIRING), expires_at__lte=Now())
            .exclude(link_kind=states.LinkKind.GATE)
            .order_by("expires_at")
            .values_list("tenant_id", "id", "agent_role")[:PAGE]
        )
    for tenant_id, activity_id, role in stale:
        _expire(tenant_id, activity_id, role)
    return len(stale)


def _expire(tenant_id: UUID, activity_id: UUID, role: str | None) -> None:
    with suppress(TransitionRefused), tenant_scope(tenant_id):
        if cancellation.expire(tenant_id, activity_id, actor="recovery") and role:
            backlog.count_refused(tenant_id, backlog.Reason.EXPIRED, {role: 1})


def _token(run: ActivityRun) -> RunToken:
    return RunToken(run.tenant_id, run.activity_id, run.pk, run.fence)


def _each(runs: Sequence[R], action: Callable[[R], Any]) -> int:
    mended = 0
    for run in runs:
        try:
            action(run)
            mended += 1
        except RunSuperseded:
            continue  # It ended by itself, or another recovery was first.
        except Exception:
            # One run that cannot be mended must not keep the others from it.
            logger.exception(
                "Run could not be recovered", extra={"action": "recovery_failed", "run": str(run.pk)}
            )
    return mended
