"""Firing: what becomes of each nominal time. Each is on record once, with what came of it, however many schedulers look.

The row of the schedule is the lock, and its `looked_until` says up to where everything is on record. Both move in the transaction that
records the times and their executions. So a process that dies before the commit has done nothing, and of two at the same time the second
finds the work of the first.

    on time   the time came less than the check interval and a margin ago: it is fired
    missed    nobody looked in time: the schedule's `catch_up` says how many of the latest are fired after all
    overlaps  an earlier execution is under way, also when it waits for a person: the schedule's `overlap` decides, for
              times that are caught up on, too
    early     the jitter of a time has not passed: it and whatever follows it are left for later

What passes while scheduling is switched off, or while the tenant or the schedule is paused, or the tenant inactive, is missed as in an
outage. What passes while
the schedule itself is disabled is not made up for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from django.db import DatabaseError
from django.db.models import Exists, QuerySet
from django.db.models.functions import Now

from agents import scheduler_settings
from agents.models import PlatformConfig
from pipelines import timing
from pipelines.models import Firing, Schedule, ScheduleExecution
from pipelines.models.schedule import AfterOnce, ExecutionStatus, FiringState, Overlap
from pipelines.schedules import beat, executions
from pipelines.timing import MissedTimes, Timing
from tenants import clock, pausing
from tenants.context import APP, system_scope, tenant_scope
from tenants.models import PauseKind
from tenants.sql import Statement

logger = logging.getLogger(__name__)

PAGE = 200
PORTION = 25
TURN_SECONDS = 20.0  # Then what was fired is expanded. While schedules are due, the next hint is on its way.
MARGIN = timedelta(
    seconds=30
)  # beyond the check interval, until a time that nobody has looked at counts as missed
BACK_OFF = timedelta(minutes=5)  # before a schedule that cannot be fired is looked at again


def list_due(now: datetime | None = None) -> QuerySet[Schedule]:
    """Schedules whose next time has come, over all tenants; none while scheduling is switched off."""
    off = PlatformConfig.objects.filter(key=scheduler_settings.KEY, value__enabled=False)
    rows: QuerySet[Schedule] = Schedule.objects.filter(
        enabled=True, next_run_at__lte=now or Now(), tenant__is_active=True, tenant__paused=False
    )
    return pausing.with_pauses(rows, PauseKind.SCHEDULE).filter(paused=False).exclude(Exists(off))


def fire_due(now: datetime | None = None, *, within: float = TURN_SECONDS) -> list[tuple[UUID, UUID]]:
    """Fire every schedule whose next time has come; tenant and id of the executions that begin, to be expanded.

    One that cannot be fired hinders no other: it is noted, and looked at again after a while. `now` is for tests.
    """
    ends = time.monotonic() + within
    begun: list[tuple[UUID, UUID]] = []
    seen: set[UUID] = set()
    # What another scheduler holds right now stays due, and is not for us.
    while page := [found for found in _page(now) if found[1] not in seen]:
        seen.update(schedule_id for _, schedule_id in page)
        for tenant_id, ids in _portions(page):
            begun += [(tenant_id, pk) for pk in _fire_whatever_comes(tenant_id, ids, now)]
            if time.monotonic() > ends:
                return begun
    return begun


def _page(now: datetime | None) -> list[tuple[UUID, UUID]]:
    with system_scope():
        return list(list_due(now).order_by("next_run_at", "pk").values_list("tenant_id", "pk")[:PAGE])


def _portions(page: Iterable[tuple[UUID, UUID]]) -> Iterator[tuple[UUID, list[UUID]]]:
    """Schedules of one tenant that fire in one transaction: not so many that a process which dies has done much in vain."""
    by_tenant: dict[UUID, list[UUID]] = {}
    for tenant_id, schedule_id in page:
        by_tenant.setdefault(tenant_id, []).append(schedule_id)
    for tenant_id, ids in by_tenant.items():
        for start in range(0, len(ids), PORTION):
            yield tenant_id, ids[start : start + PORTION]


def _fire_whatever_comes(tenant_id: UUID, ids: Sequence[UUID], now: datetime | None) -> list[UUID]:
    """All in one transaction; if that fails, each in one of its own, so that only the one that is wrong is put off."""
    try:
        return _fire_locked(tenant_id, ids, now)
    except Exception as error:
        if len(ids) > 1:
            return [pk for one in ids for pk in _fire_whatever_comes(tenant_id, [one], now)]
        logger.exception(
            "Schedule not fired",
            extra={"action": "schedule_not_fired", "schedule": str(ids[0]), "tenant": str(tenant_id)},
        )
        _back_off(tenant_id, ids[0], now or clock.now(), error)
        return []


def _back_off(tenant_id: UUID, schedule_id: UUID, now: datetime, error: Exception) -> None:
    """Look at it again later. Nothing is lost: `looked_until` stays, and what has passed by then counts as missed."""
    try:
        with tenant_scope(tenant_id):
            Schedule.objects.for_tenant(tenant_id).filter(pk=schedule_id, next_run_at__lte=now).update(
                next_run_at=now + BACK_OFF
            )
    except DatabaseError as reason:
        raise error from reason  # PostgreSQL does not answer, so it is not this schedule.


def fire(tenant_id: UUID, schedule_id: UUID, *, now: datetime | None = None) -> list[UUID]:
    """Put every time up to now on record and begin what is to begin; the ids of executions to expand.

    Does nothing while another scheduler is at it. Raises `timing.TimingError` for a row that was changed past its checks.
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
        # Skipping what is locked, so that schedulers wait neither for each other nor for a person who edits a schedule.
        locked = active.select_related("pipeline").select_for_update(of=("self",), skip_locked=True)
        looks = [find_due_times(schedule, now, earliest) for schedule in locked]
        return record(tenant_id, looks, now) if looks else []


# Which times of a schedule have come since the last look, and which of them were missed.


INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Look:
    """What has come of a schedule since the last look."""

    schedule: Schedule
    timing: Timing
    until: datetime  # up to here everything is dealt with by this look
    missed: MissedTimes

    @property
    def key(self) -> UUID:
        return self.schedule.pk


def find_due_times(schedule: Schedule, now: datetime, earliest: datetime) -> Look:
    """`earliest` is when a time may have come at the earliest to be on time."""
    plan = schedule.timing()
    since = schedule.looked_until or _beginning(schedule)
    until = _come(schedule, plan, since, now)
    grace = _on_time(schedule, plan, since, until, earliest)
    passed = timing.find_missed(plan, last=since, now=until, catch_up=schedule.catch_up_policy(), grace=grace)
    return Look(schedule, plan, until, passed)


def _beginning(schedule: Schedule) -> datetime:
    """A time that was given has not passed unseen, however late the schedule was made; of others none is before it was made."""
    if schedule.repeat == "once" and schedule.start_at is not None:
        return schedule.start_at - INSTANT
    return schedule.created_at


def _come(schedule: Schedule, plan: Timing, since: datetime, now: datetime) -> datetime:
    """Up to where times have come: the jitter of the first one after that has not passed."""
    if not schedule.jitter_seconds:
        return now
    earliest = max(since, now - timedelta(seconds=schedule.jitter_seconds))
    for nominal in timing.times(plan, after=earliest, until=now):
        if schedule.jitter(nominal) > now:
            return nominal - INSTANT
    return now


def _on_time(
    schedule: Schedule, plan: Timing, since: datetime, until: datetime, earliest: datetime
) -> timedelta:
    """How far back from `until` the first time lies that came at `earliest` or later."""
    after = max(since, earliest - timedelta(seconds=schedule.jitter_seconds) - INSTANT)
    for nominal in timing.times(plan, after=after, until=until):
        if schedule.jitter(nominal) >= earliest:
            return until - nominal + INSTANT
    return timedelta()


# The times of several schedules go on record, and their executions begin, with a handful of statements for all of them.


def record(tenant_id: UUID, looks: Sequence[Look], now: datetime) -> list[UUID]:
    """Put on record what has come, with a handful of statements for all of it. Under the locks of the schedules."""
    known, under_way = _on_record(tenant_id, looks), statuses_under_way(tenant_id, looks)
    firings: list[Firing] = []
    begin: list[ScheduleExecution] = []
    fired: set[UUID] = set()
    for look in looks:
        firings += record_missed(look)
        times = [nominal for nominal in look.missed.to_fire if (look.key, nominal) not in known]
        for nominal, state, reason in judge_times(look.schedule, times, under_way.get(look.key, [])):
            firings.append(record_of(look, nominal, state, reason))
            if state != FiringState.SKIPPED:
                status = ExecutionStatus.QUEUED if state == FiringState.QUEUED else ExecutionStatus.RUNNING
                begin.append(
                    executions.new(look.schedule, nominal_at=nominal, status=status, created_by=ACTOR)
                )
                fired.add(look.key)
    replace(look.schedule for look in looks if look.key in fired)
    # What was skipped may be on record when somebody turned `looked_until` back; what is fired cannot be.
    Firing.objects.bulk_create(firings, ignore_conflicts=True, batch_size=500)
    ScheduleExecution.objects.bulk_create(begin, batch_size=500)
    move_on(tenant_id, looks, fired, now)
    return [execution.pk for execution in begin if execution.status == ExecutionStatus.RUNNING]


def _on_record(tenant_id: UUID, looks: Sequence[Look]) -> set[tuple[UUID, datetime]]:
    """Those of the times that are on record. There are some only when somebody has turned `looked_until` back."""
    times = {nominal for look in looks for nominal in look.missed.to_fire}
    if not times:
        return set()
    rows = Firing.objects.for_tenant(tenant_id).filter(schedule_id__in=[look.key for look in looks])
    return set(rows.filter(nominal_at__in=times).values_list("schedule_id", "nominal_at"))


# The records of times: one for each, and one for a long row of those that were missed.


LISTED = 1_000  # times skipped in one row that get a record each; more of them share one
MISSED = "The time had passed, and the schedule does not catch up on it."


def record_missed(look: Look) -> list[Firing]:
    """A record for each missed time; one record for a long row of them, as after a month without power."""
    count = look.missed.skipped_count
    if count <= LISTED:
        return [
            record_of(look, nominal, FiringState.SKIPPED, MISSED) for nominal in look.missed.list_skipped()
        ]
    to_fire = look.missed.to_fire
    row = record_of(look, next(look.missed.list_skipped()), FiringState.SKIPPED, MISSED)
    row.last_at, row.count = _latest(look.timing, to_fire[0] - INSTANT if to_fire else look.until), count
    return [row]


def _latest(plan: Timing, until: datetime) -> datetime:
    """The last time up to `until`, found without going through all before it. There is one."""
    span = timedelta(minutes=1)
    while True:
        found = list(timing.times(plan, after=until - span, until=until))
        if found:
            return found[-1]
        span *= 2


def record_of(look: Look, nominal: datetime, state: str, reason: str) -> Firing:
    tenant_id = look.schedule.tenant_id
    return Firing(tenant_id=tenant_id, schedule_id=look.key, nominal_at=nominal, state=state, reason=reason)


# What happens to a time that comes while an earlier execution is under way.


ACTOR = "schedule"
OVERLAPS = "The execution before is still under way."
ANOTHER_WAITS = "Another execution waits for the one before already."
REPLACED = "The schedule fired again."


def statuses_under_way(tenant_id: UUID, looks: Sequence[Look]) -> dict[UUID, list[str]]:
    """The statuses of executions that have not ended, for schedules to which these matter."""
    found: dict[UUID, list[str]] = {}
    keys = [look.key for look in looks if look.schedule.overlap != Overlap.ALLOW]
    if keys:
        rows = ScheduleExecution.objects.for_tenant(tenant_id).filter(
            schedule_id__in=keys, status__in=(ExecutionStatus.RUNNING, ExecutionStatus.QUEUED)
        )
        for schedule_id, status in rows.values_list("schedule_id", "status"):
            found.setdefault(schedule_id, []).append(status)
    return found


def judge_times(
    schedule: Schedule, times: Sequence[datetime], under_way: Sequence[str]
) -> Iterator[tuple[datetime, FiringState, str]]:
    """What overlapping allows for each of the times that came since the last look, in order."""
    busy, waits = ExecutionStatus.RUNNING in under_way, ExecutionStatus.QUEUED in under_way
    for number, nominal in enumerate(times, 1):
        if schedule.overlap == Overlap.ALLOW or (not busy and schedule.overlap != Overlap.CANCEL_RUNNING):
            yield nominal, FiringState.FIRED, ""
            busy = True
        elif schedule.overlap == Overlap.CANCEL_RUNNING:
            is_last = number == len(times)
            yield nominal, *((FiringState.FIRED, "") if is_last else (FiringState.SKIPPED, REPLACED))
        elif schedule.overlap == Overlap.QUEUE_ONE and not waits:
            yield nominal, FiringState.QUEUED, ""
            waits = True
        else:
            yield (
                nominal,
                FiringState.SKIPPED,
                OVERLAPS if schedule.overlap == Overlap.SKIP else ANOTHER_WAITS,
            )


def replace(fired: Iterable[Schedule]) -> None:
    """Cancel what is under way, where the schedule says so."""
    for schedule in fired:
        if schedule.overlap == Overlap.CANCEL_RUNNING:
            for execution in executions.active(schedule).order_by("pk").select_for_update(of=("self",)):
                executions.call_off(execution, actor=ACTOR, reason=REPLACED)


# Afterwards: up to where everything of a schedule is on record, when to look again, and what happens to a schedule that is over.


_MOVE_ON = Statement.load(Path(__file__).parent.parent / "sql", "move_on_schedules")


def move_on(tenant_id: UUID, looks: Sequence[Look], fired: Collection[UUID], now: datetime) -> None:
    """Note up to where everything is on record, and when to look again. A schedule that is over ticks no more."""
    following = {look.key: look.schedule.next_time(after=look.until) for look in looks}
    _MOVE_ON.run(
        {
            "tenant": tenant_id,
            "now": now,
            "ids": [look.key for look in looks],
            "until": [look.until for look in looks],
            "next": [following[look.key] for look in looks],
            "fired": [look.key in fired for look in looks],
        },
        using=APP,
    )
    for look in looks:
        if following[look.key] is None:
            _end_schedule(look.schedule, fired=look.key in fired)


def _end_schedule(schedule: Schedule, *, fired: bool) -> None:
    """No time follows. A one-time schedule that only skipped its time is not deleted, so that the record of the skip stays."""
    if schedule.repeat == "once" and fired and schedule.after_once == AfterOnce.DELETE:
        beat.forget(schedule)
        schedule.delete()
        return
    if schedule.repeat == "once":
        Schedule.objects.for_tenant(schedule.tenant_id).filter(pk=schedule.pk).update(enabled=False)
    beat.stop(schedule)
