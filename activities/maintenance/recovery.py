"""Recovery: finds work that was lost between two steps in PostgreSQL, and starts it again.

Every function may run at any time and in any number of processes, and changes nothing if nothing is wrong. They act on (run, fence)
pairs, so they cannot end an attempt that has already taken over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import redis
from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Now

from activities import activity_tree, cancellation, leases, relay, states
from activities.admission import Closed, Exchange
from activities.admission.exchange import Offer, find_unknown
from activities.exceptions import RunSuperseded, TransitionRefused
from activities.execution import results
from activities.human_tasks import approvals
from activities.maintenance import counters
from activities.models import Activity, ActivityRun, LeaderLease, Wake, WorkerProcess
from activities.models.activity import in_status
from activities.models.decision import answered_before
from activities.run_tokens import RunToken
from tenants import outages, sweeps
from tenants.context import SYSTEM, system_scope, tenant_scope
from tenants.sql import Statement
from tenants.sweeps import PAGE, Read, Sweep

logger = logging.getLogger(__name__)

_OF_TOKEN = ("id", "tenant_id", "activity_id", "fence")
_START = (UUID(int=0), UUID(int=0))
_ORPHANED, _OVERDUE, _STALE, _OBSOLETE = (Sweep[Any]() for _ in range(4))
GRACE = timedelta(seconds=60)
ENDED_KEPT = timedelta(days=90)  # as long as runs, whose pages link to their worker process
_OBSOLETE_APPROVALS = Statement.load(Path(__file__).parents[1] / "sql", "obsolete_approvals")
YOUNG_SECONDS = 2.0  # Younger wakes are not offered again, because the relay is about to do it.


@dataclass(slots=True)
class WatchedTime:
    """A clock that counts only the time in which we could observe. It almost stops while PostgreSQL does not answer, because a worker or
    agent that could not be observed then was not silent.

    `clock` is monotonic. The time between two observations counts up to `MOST_SECONDS`.
    """

    MOST_SECONDS: ClassVar[float] = 10.0

    clock: Callable[[], float] = time.monotonic
    seconds: float = 0.0
    observed_at: float | None = None

    def observe(self) -> float:
        """Record an observation that has just succeeded, and return its time on this clock."""
        now = self.clock()
        if self.observed_at is not None:
            self.seconds += min(now - self.observed_at, self.MOST_SECONDS)
        self.observed_at = now
        return self.seconds


@dataclass(slots=True)
class LivenessWatch:
    """Finds lost workers: their process is gone, or their counter did not move for too long while we observed them."""

    time: WatchedTime = field(default_factory=WatchedTime)
    seen: dict[UUID, tuple[int, float]] = field(default_factory=dict)
    gone: set[UUID] = field(default_factory=set)

    def find_lost(self) -> list[WorkerProcess]:
        """Compare all live workers with the previous observation. The first call only records them."""
        with system_scope():
            workers = list(WorkerProcess.objects.filter(ended_at=None))
        now = self.time.observe()
        self.seen = {worker.pk: self._last_change(worker, now) for worker in workers}
        # Two observations, a tick apart, give an agent that the dead process was calling a moment to notice.
        gone = {worker.pk for worker in workers if leases.is_gone(worker)}
        gone_twice, self.gone = gone & self.gone, gone
        silent = {
            pk
            for pk, (_, since) in self.seen.items()
            if now - since >= settings.ORCHESTRATOR_LOST_AFTER_SECONDS
        }
        return [worker for worker in workers if worker.pk in gone_twice | silent]

    def _last_change(self, worker: WorkerProcess, now: float) -> tuple[int, float]:
        counter, since = self.seen.get(worker.pk, (None, now))
        return (worker.counter, now if counter != worker.counter else since)


@dataclass(slots=True)
class HeartbeatWatch:
    """Finds silent runs: their agent accepted them, has sent heartbeats, and then none for too long.

    An agent that never sends a heartbeat is only limited by its deadline.
    """

    time: WatchedTime = field(default_factory=WatchedTime)
    seen: dict[UUID, tuple[int, float]] = field(default_factory=dict)

    def find_silent(self) -> list[ActivityRun]:
        """Compare all accepted runs with the previous observation. The first call only records them."""
        with system_scope():
            runs = list(ActivityRun.objects.filter(status="running", accepted_at__isnull=False, beats__gt=0))
        now = self.time.observe()
        before, self.seen = self.seen, {}
        for run in runs:
            beats, since = before.get(run.pk, (run.beats, now))
            self.seen[run.pk] = (run.beats, since if beats == run.beats else now)
        patience = settings.ORCHESTRATOR_AGENT_SILENT_SECONDS
        return [run for run in runs if now - self.seen[run.pk][1] >= patience]


def _no_confirmation() -> None:
    """For commands that people run by hand, which need no lead."""


def reclaim_silent_runs(watch: HeartbeatWatch, *, confirm: Callable[[], None] = _no_confirmation) -> int:
    """Restart the work of agents that have gone silent, or fail it after too many stalls.

    `confirm` raises if this process may no longer act on its observations. A run that has sent a heartbeat since then continues.
    """
    silent = watch.find_silent()
    if silent:
        confirm()
    return _each(silent, lambda run: results.record_stalled(_token(run), beats_seen=run.beats))


def forget_ended_workers() -> int:
    """Delete the rows of processes that ended long ago. The engine does not need them. Returns their number."""
    with system_scope():
        ended = WorkerProcess.objects.filter(ended_at__lt=Now() - ENDED_KEPT)
        return ended.delete()[0]


def declare_lost(worker: WorkerProcess, *, confirm: Callable[[], None] = _no_confirmation) -> bool:
    """End the worker's lease, unless it has sent a heartbeat since it was observed.

    `confirm` is called last in the transaction, and raises if this process may no longer act on its observations.
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


def declare_all_lost(
    workers: Iterable[WorkerProcess], *, confirm: Callable[[], None] = _no_confirmation
) -> int:
    """Declare each of these workers lost, as `declare_lost` does. Returns how many. One whose row is locked is left for the next turn."""
    lost = 0
    for worker in workers:
        try:
            lost += declare_lost(worker, confirm=confirm)
        except DatabaseError as error:
            if not outages.is_contention(error):
                raise
    return lost


def reclaim_runs_of_ended_workers() -> int:
    """End the runs of workers that have ended, so that their work starts again elsewhere, or fails after too many stalls.

    A run does not count as a stall if its worker has not sent a heartbeat since an outage of PostgreSQL.
    """
    runs = _ORPHANED.turn(_orphaned_runs())
    return _each(runs, lambda run: results.record_stalled(_token(run), counts=not run.was_away))


@cache
def _orphaned_runs() -> Read[Any]:
    own = WorkerProcess.objects.filter(pk=OuterRef("worker_id"))
    orphans = ActivityRun.objects.filter(
        ~Exists(own.filter(ended_at=None)), status="running", worker_id__isnull=False
    )
    was_away = Exists(own.filter(outage_at__gte=F("beat_at")))
    rows = orphans.annotate(was_away=was_away)
    return sweeps.prepared_pages("orphaned_runs", rows, *_OF_TOKEN, "was_away", start=_START)


def end_overdue_runs() -> int:
    """Fail runs that an agent accepted but did not finish by its deadline, and runs that hang in a live worker.

    Workers limit the time of their calls, so a run that exceeds it by `GRACE` hangs where it cannot be interrupted. After an outage agents
    get `GRACE` to report what they could not report before.
    """
    return _each(_OVERDUE.turn(_overdue_runs()), _end_overdue)


def _end_overdue(run: Any) -> None:
    token = _token(run)
    with tenant_scope(run.tenant_id):
        # The items after the activity and before the budgets, as in a cancellation.
        activity_tree.lock_live(token, with_parent=True)
        cancellation.drop_batch_items(run.tenant_id, [run.activity_id])
        results.record_failed(token, results.overdue(run.timeout_seconds), actor="recovery")


@cache
def _overdue_runs() -> Read[Any]:
    allowed = F("timeout_seconds") * timedelta(seconds=1)
    after_outage = Exists(LeaderLease.objects.filter(outage_ended_at__gt=Now() - GRACE))
    accepted = Q(~after_outage, accepted_at__isnull=False, accepted_at__lt=Now() - allowed)
    hanging = Q(accepted_at=None, started_at__lt=Now() - allowed - GRACE)
    rows = ActivityRun.objects.filter(accepted | hanging, status="running")
    return sweeps.prepared_pages("overdue_runs", rows, *_OF_TOKEN, "timeout_seconds", start=_START)


def offer_forgotten(*, after: UUID | None = None, limit: int = PAGE) -> tuple[int, UUID | None]:
    """Offer one page of pending work that admission does not know. Returns the number of activities checked, and the last wake of the page
    if there may be more.

    The work is read again before it is offered, because an offer of work that has started since would waste a slot.
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
    """Return the activities that admission does not know. If it does not answer, return all: the relay keeps offers until it does."""
    if not activities:
        return ()
    try:
        return find_unknown([Offer.of(activity) for activity in activities])
    except (Closed, redis.RedisError):
        return [activity.pk for activity in activities]


def _claimable(ids: Iterable[UUID]) -> list[Activity]:
    fields = ("tenant_id", "agent_role", "priority", "created_at", "group_key", "group_scope", "files")
    origin = ("pipeline_id", "schedule_id", "run_now_at")
    # Filter the status here: in the query, it could make PostgreSQL read everything that waits.
    rows = Activity.objects.filter(pk__in=set(ids)).only(*fields, *origin, "status", "assignee_type")
    return [
        activity for activity in rows if activity.status == "created" and activity.assignee_type == "agent"
    ]


def expire_stale() -> int:
    """Cancel waiting activities (queued, held, snoozed or blocked) whose `expires_at` has passed. Gates have deadlines instead.

    Returns the number of cancelled ones, because the command `recover` repeats this until there are none.
    """
    expired = 0
    for activity in _STALE.turn(_stale_activities()):
        with (
            outages.one_of_many(
                logger, "Work could not be expired", action="recovery_failed", activity=str(activity.id)
            ),
            suppress(TransitionRefused),
            tenant_scope(activity.tenant_id),
        ):
            if cancellation.expire(activity.tenant_id, activity.id, actor="recovery"):
                expired += 1
    return expired


@cache
def _stale_activities() -> Read[Any]:
    rows = Activity.objects.filter(
        ~answered_before("pk", "expires_at"), in_status(*states.EXPIRING), expires_at__lte=Now()
    ).exclude(link_kind=states.LinkKind.GATE)
    return sweeps.prepared_pages(
        "stale_activities", rows, "expires_at", "id", "tenant_id", start=("-infinity", UUID(int=0))
    )


def withdraw_obsolete_approvals() -> int:
    """Withdraw open approvals about activities that have all ended since they were asked. Returns how many."""
    withdrawn = 0
    for row in _OBSOLETE.turn(_obsolete_approvals):
        with outages.one_of_many(
            logger, "Approval could not be withdrawn", action="recovery_failed", activity=str(row.id)
        ):
            withdrawn += approvals.withdraw_obsolete(row.tenant_id, row.id)
    return withdrawn


def _obsolete_approvals(last: Any) -> Sequence[Any]:
    """Return the next page of approvals about ended activities. Those that a gate may still need stay."""
    after = UUID(int=0) if last is None else last.id
    ended = [status.value for status in activity_tree.ENDED]
    return _OBSOLETE_APPROVALS.run({"ended": ended, "after": after, "most": sweeps.PAGE}, using=SYSTEM)


def _token(run: Any) -> RunToken:
    return RunToken(run.tenant_id, run.activity_id, run.id, run.fence)


def _each(runs: Iterable[Any], action: Callable[[Any], object]) -> int:
    recovered = 0
    for run in runs:
        with (
            outages.one_of_many(
                logger, "Run could not be recovered", action="recovery_failed", run=str(run.id)
            ),
            suppress(RunSuperseded),  # the run has ended, or another process recovered it first
        ):
            action(run)
            recovered += 1
    return recovered
