"""Fires schedules. Each nominal time is recorded once with its outcome, however many schedulers are running.

The schedule's row is locked, and its `looked_until` is the time up to which everything is recorded. It changes in the transaction that
records the times and their executions. So a process that dies before the commit has changed nothing, and a second scheduler finds the
work of the first.

    on time   the time came less than the check interval and a margin ago, and after the last pause: it is fired
    missed    no scheduler ran in time, or a pause was on: the schedule's `catch_up` decides how many of the latest missed times are fired
    overlaps  an earlier execution has not ended, or waits for a person: the schedule's `overlap` decides, also for missed
              times that are fired
    early     the jitter of a time has not passed: this time and later ones wait

Times that pass while scheduling is switched off, the tenant is inactive, or the tenant or the schedule is paused, are missed as in an
outage, even if that was short: its end is stored as `missed_until`. Times that pass while the schedule itself is disabled are never
fired.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import DatabaseError
from django.db.models import Exists, QuerySet
from django.db.models.functions import Now

from agents import scheduler_settings
from agents.models import PlatformConfig
from pipelines import timing
from pipelines.models import Firing, Schedule, ScheduleExecution
from pipelines.models.schedule import AfterOnce, ExecutionStatus, FiringState, Overlap
from pipelines.schedules import beat, editing, executions
from pipelines.schedules.expansion import ACTOR
from pipelines.timing import INSTANT, MissedTimes, Timing
from tenants import clock, outages, pausing, sweeps
from tenants.context import APP, SYSTEM, tenant_scope
from tenants.models import PauseKind
from tenants.sql import Statement
from tenants.sweeps import Sweep

logger = logging.getLogger(__name__)

_DUE = Sweep[Any]()
AT_ONCE = 200
TURN_SECONDS = 20.0  # Then the executions are expanded. While schedules are due, another hint follows.
MARGIN = timedelta(seconds=30)  # after the check interval, until a time counts as missed
BACK_OFF = timedelta(minutes=5)  # until a schedule that could not be fired is retried


def list_due(now: datetime | None = None) -> QuerySet[Schedule]:
    """Return schedules whose next time has come, over all tenants; none while scheduling is switched off."""
    off = PlatformConfig.objects.filter(key=scheduler_settings.KEY, value__enabled=False)
    rows: QuerySet[Schedule] = Schedule.objects.filter(
        enabled=True, next_run_at__lte=now or Now(), tenant__is_active=True, tenant__paused=False
    )
    return pausing.with_pauses(rows, PauseKind.SCHEDULE).filter(paused=False).exclude(Exists(off))


def fire_due(now: datetime | None = None, *, within: float = TURN_SECONDS) -> list[tuple[UUID, UUID]]:
    """Fire every schedule whose next time has come. Return tenant and id of the executions to expand.

    A schedule that cannot be fired does not stop the others: it is logged, and retried later. `now` is for tests.
    """
    started: list[tuple[UUID, UUID]] = []
    due = _DUE.turn(sweeps.pages(list_due(now), "next_run_at", "pk", "tenant_id"), within=within)
    while page := [(tenant_id, pk) for _, pk, tenant_id in islice(due, AT_ONCE)]:
        for tenant_id, ids in executions.in_portions(page):
            started += [(tenant_id, pk) for pk in _fire_safely(tenant_id, ids, now)]
    return started


def miss_times(schedules: QuerySet[Schedule]) -> None:
    """Note for these schedules that a pause ends now, so that what has come and was not fired is missed."""
    now = clock.now()
    schedules.filter(enabled=True, next_run_at__lte=now).update(missed_until=now)


def miss_times_of_all() -> None:
    """The same for all tenants. As `SYSTEM`, because whoever switches scheduling on may be bound to a tenant.

    If the caller's transaction is rolled back, scheduling stays off, and these times are missed anyway.
    """
    miss_times(Schedule.objects.using(SYSTEM).filter())


def _fire_safely(tenant_id: UUID, ids: Sequence[UUID], now: datetime | None) -> list[UUID]:
    """Fire all schedules in one transaction. If that fails, fire each in its own, so that only the faulty one is deferred."""
    try:
        return _fire_locked(tenant_id, ids, now)
    except Exception as error:
        if len(ids) > 1:
            return [pk for one in ids for pk in _fire_safely(tenant_id, [one], now)]
        if outages.is_contention(error):
            return []  # Still due, so the next turn fires it.
        logger.exception(
            "Schedule not fired",
            extra={"action": "schedule_not_fired", "schedule": str(ids[0]), "tenant": str(tenant_id)},
        )
        _back_off(tenant_id, ids[0], now or clock.now(), error)
        return []


def _back_off(tenant_id: UUID, schedule_id: UUID, now: datetime, error: Exception) -> None:
    """Retry the schedule later. Nothing is lost: `looked_until` stays, so times that pass meanwhile count as missed."""
    try:
        with tenant_scope(tenant_id):
            Schedule.objects.for_tenant(tenant_id).filter(pk=schedule_id, next_run_at__lte=now).update(
                next_run_at=now + BACK_OFF
            )
    except DatabaseError as reason:
        raise error from reason  # PostgreSQL is unavailable, so the schedule is not at fault.


def fire(tenant_id: UUID, schedule_id: UUID, *, now: datetime | None = None) -> list[UUID]:
    """Record every time up to now and create executions. Return the ids of those to expand.

    Does nothing while another scheduler has locked the schedule. Raises `timing.TimingError` for a row that was changed without its checks.
    """
    return _fire_locked(tenant_id, [schedule_id], now)


def _fire_locked(tenant_id: UUID, ids: Sequence[UUID], now: datetime | None) -> list[UUID]:
    settings = scheduler_settings.current()
    if not settings.enabled:
        return []
    now = now or clock.now()
    earliest = now - timedelta(milliseconds=settings.check_interval_ms) - MARGIN
    with tenant_scope(tenant_id):
        rows = Schedule.objects.for_tenant(tenant_id).filter(
            pk__in=ids, enabled=True, next_run_at__lte=now, tenant__is_active=True, tenant__paused=False
        )
        active = pausing.with_pauses(rows, PauseKind.SCHEDULE).filter(paused=False)
        # Skip locked rows, so that schedulers wait neither for each other nor for a person who edits a schedule.
        locked = active.select_related("pipeline").select_for_update(of=("self",), skip_locked=True)
        all_due = [find_due_times(schedule, now, earliest) for schedule in locked]
        return record(tenant_id, all_due, now) if all_due else []


# Which times of a schedule have come since `looked_until`, and which of them were missed.


@dataclass(frozen=True, slots=True)
class DueTimes:
    """The times of a schedule that have come since its `looked_until`."""

    schedule: Schedule
    timing: Timing
    until: datetime  # everything up to here is decided
    missed: MissedTimes

    @property
    def key(self) -> UUID:
        return self.schedule.pk


def find_due_times(schedule: Schedule, now: datetime, earliest: datetime) -> DueTimes:
    """Find the times that have come. A time that came before `earliest`, or before the end of a pause, is not on time."""
    plan = schedule.timing()
    earliest = max(earliest, schedule.missed_until or earliest)
    since = schedule.looked_until or _beginning(schedule)
    until = _end_of_due_times(schedule, plan, since, now)
    grace = _grace(schedule, plan, since, until, earliest)
    missed = timing.find_missed(plan, last=since, now=until, catch_up=schedule.catch_up_policy(), grace=grace)
    return DueTimes(schedule, plan, until, missed)


def _beginning(schedule: Schedule) -> datetime:
    """Return when the times of a new schedule begin: just before a one-time `start_at`, even if that has passed; else its creation."""
    if schedule.repeat == "once" and schedule.start_at is not None:
        return schedule.start_at - INSTANT
    return schedule.created_at


def _end_of_due_times(schedule: Schedule, plan: Timing, since: datetime, now: datetime) -> datetime:
    """Return up to when times have come. The jitter of the first later time has not passed."""
    if not schedule.jitter_seconds:
        return now
    earliest = max(since, now - timedelta(seconds=schedule.jitter_seconds))
    for nominal in timing.times(plan, after=earliest, until=now):
        if schedule.jitter(nominal) > now:
            return nominal - INSTANT
    return now


def _grace(
    schedule: Schedule, plan: Timing, since: datetime, until: datetime, earliest: datetime
) -> timedelta:
    """Return how long before `until` the first time is that came at `earliest` or later."""
    after = max(since, earliest - timedelta(seconds=schedule.jitter_seconds) - INSTANT)
    for nominal in timing.times(plan, after=after, until=until):
        if schedule.jitter(nominal) >= earliest:
            return until - nominal + INSTANT
    return timedelta()


# Recording the times of several schedules and their executions, in a few statements for all.


def record(tenant_id: UUID, all_due: Sequence[DueTimes], now: datetime) -> list[UUID]:
    """Record the times, in a few statements for all. Return the executions to expand. The caller holds the locks of the schedules."""
    recorded, unended = _recorded_times(tenant_id, all_due), unended_statuses(tenant_id, all_due)
    firings: list[Firing] = []
    new: list[ScheduleExecution] = []
    fired: set[UUID] = set()
    for due in all_due:
        firings += record_missed(due)
        times = [nominal for nominal in due.missed.to_fire if (due.key, nominal) not in recorded]
        for nominal, state, reason in judge_times(due.schedule, times, unended.get(due.key, [])):
            firings.append(record_of(due, nominal, state, reason))
            if state != FiringState.SKIPPED:
                status = ExecutionStatus.QUEUED if state == FiringState.QUEUED else ExecutionStatus.RUNNING
                new.append(executions.new(due.schedule, nominal_at=nominal, status=status, created_by=ACTOR))
                fired.add(due.key)
    cancel_replaced(due.schedule for due in all_due if due.key in fired)
    # Skipped times may be recorded already, if somebody has reset `looked_until`; fired times cannot be.
    Firing.objects.bulk_create(firings, ignore_conflicts=True, batch_size=500)
    ScheduleExecution.objects.bulk_create(new, batch_size=500)
    move_on(tenant_id, all_due, fired, now)
    return [execution.pk for execution in new if execution.status == ExecutionStatus.RUNNING]


def _recorded_times(tenant_id: UUID, all_due: Sequence[DueTimes]) -> set[tuple[UUID, datetime]]:
    """Return the times that are recorded already. There are some only if somebody has reset `looked_until`."""
    times = {nominal for due in all_due for nominal in due.missed.to_fire}
    if not times:
        return set()
    rows = Firing.objects.for_tenant(tenant_id).filter(schedule_id__in=[due.key for due in all_due])
    return set(rows.filter(nominal_at__in=times).values_list("schedule_id", "nominal_at"))


# The records of times: one for each, but only one for many missed times in a row.


MOST_LISTED = 1_000  # missed times in a row that have one record each; more of them share one record
MISSED = "The time was missed, and the schedule does not catch up on it."


def record_missed(due: DueTimes) -> list[Firing]:
    """Return a record for each missed time, or one record for many in a row, as after a long outage."""
    count = due.missed.skipped_count
    if count <= MOST_LISTED:
        return [record_of(due, nominal, FiringState.SKIPPED, MISSED) for nominal in due.missed.list_skipped()]
    to_fire = due.missed.to_fire
    row = record_of(due, next(due.missed.list_skipped()), FiringState.SKIPPED, MISSED)
    until = to_fire[0] - INSTANT if to_fire else due.until
    (row.last_at,) = timing.latest(due.timing, row.nominal_at - INSTANT, until, 1)
    row.count = count
    return [row]


def record_of(due: DueTimes, nominal: datetime, state: str, reason: str) -> Firing:
    tenant_id = due.schedule.tenant_id
    return Firing(tenant_id=tenant_id, schedule_id=due.key, nominal_at=nominal, state=state, reason=reason)


# What happens to a time that comes before an earlier execution has ended.


OVERLAPS = "The execution before has not ended."
ANOTHER_WAITS = "Another execution is queued already."
REPLACED = "The schedule fired again."


def unended_statuses(tenant_id: UUID, all_due: Sequence[DueTimes]) -> dict[UUID, list[str]]:
    """Return the statuses of executions that have not ended, for schedules that do not allow overlaps."""
    statuses: dict[UUID, list[str]] = {}
    keys = [due.key for due in all_due if due.schedule.overlap != Overlap.ALLOW]
    if keys:
        rows = executions.unended_of(tenant_id, keys)
        for schedule_id, status in rows.values_list("schedule_id", "status"):
            statuses.setdefault(schedule_id, []).append(status)
    return statuses


def judge_times(
    schedule: Schedule, times: Sequence[datetime], unended: Sequence[str]
) -> Iterator[tuple[datetime, FiringState, str]]:
    """Yield the outcome of each time, in order, according to the schedule's `overlap`."""
    busy, has_queued = bool(unended), ExecutionStatus.QUEUED in unended
    for number, nominal in enumerate(times, 1):
        if schedule.overlap == Overlap.ALLOW or (not busy and schedule.overlap != Overlap.CANCEL_RUNNING):
            yield nominal, FiringState.FIRED, ""
            busy = True
        elif schedule.overlap == Overlap.CANCEL_RUNNING:
            is_last = number == len(times)
            yield nominal, *((FiringState.FIRED, "") if is_last else (FiringState.SKIPPED, REPLACED))
        elif schedule.overlap == Overlap.QUEUE_ONE and not has_queued:
            yield nominal, FiringState.QUEUED, ""
            has_queued = True
        else:
            yield (
                nominal,
                FiringState.SKIPPED,
                OVERLAPS if schedule.overlap == Overlap.SKIP else ANOTHER_WAITS,
            )


def cancel_replaced(fired: Iterable[Schedule]) -> None:
    """Cancel the executions that have not ended of schedules with the policy `cancel_running`. One is queued if the policy was changed."""
    for schedule in fired:
        if schedule.overlap == Overlap.CANCEL_RUNNING:
            unended = executions.unended_of(schedule.tenant_id, [schedule.pk])
            for execution in unended.order_by("pk").select_for_update(of=("self",)):
                executions.mark_cancelled(execution, actor=ACTOR, reason=REPLACED)


# Afterwards: `looked_until`, the next time, and the end of a schedule.


_MOVE_ON = Statement.load(Path(__file__).parent.parent / "sql", "move_on_schedules")


def move_on(tenant_id: UUID, all_due: Sequence[DueTimes], fired: Collection[UUID], now: datetime) -> None:
    """Update `looked_until` and the next time of the schedules. End those without a next time."""
    following = {due.key: due.schedule.next_time(after=due.until) for due in all_due}
    _MOVE_ON.run(
        {
            "tenant": tenant_id,
            "now": now,
            "ids": [due.key for due in all_due],
            "until": [due.until for due in all_due],
            "next": [following[due.key] for due in all_due],
            "fired": [due.key in fired for due in all_due],
        },
        using=APP,
    )
    for due in all_due:
        if following[due.key] is None:
            _end_schedule(due.schedule, fired=due.key in fired)


def _end_schedule(schedule: Schedule, *, fired: bool) -> None:
    """End a schedule without a next time. A one-time schedule that skipped its time is not deleted, so that the skip stays recorded."""
    if schedule.repeat == "once" and fired and schedule.after_once == AfterOnce.DELETE:
        editing.remove(schedule, actor=ACTOR)
        return
    if schedule.repeat == "once":
        Schedule.objects.for_tenant(schedule.tenant_id).filter(pk=schedule.pk).update(enabled=False)
    beat.stop(schedule)
