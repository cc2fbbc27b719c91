"""Firing: what becomes of each nominal time. Each is on record once, with what came of it, however many schedulers look.

The row of the schedule is the lock, and its `looked_until` says up to where everything is on record. Both move in the transaction that
records the times and their executions. So whoever dies before the commit has done nothing, and two at once find each other's work done.

    on time   the time came less than the check interval and a margin ago: it is fired
    missed    nobody looked in time: the schedule's `catch_up` says how many of the latest are fired after all
    overlaps  an earlier execution is under way, also when it waits for a person: the schedule's `overlap` decides, for
              times that are caught up on, too
    early     the jitter of a time has not passed: it and whatever follows it are left for later

What passes while scheduling is switched off, or while the tenant is paused or inactive, is missed as in an outage. What passes while
the schedule itself is disabled is not made up for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import DatabaseError
from django.db.models import Exists, QuerySet
from django.db.models.functions import Now

from agents import scheduler_settings
from agents.models import PlatformConfig
from pipelines import timing
from pipelines.models import Firing, Schedule
from pipelines.models.schedule import AfterOnce, ExecutionStatus, FiringState, Overlap
from pipelines.schedules import beat, executions, plans
from pipelines.timing import Missed, Timing
from tenants.context import system_scope, tenant_scope

logger = logging.getLogger(__name__)

ACTOR = "schedule"
PAGE = 200
TURN_SECONDS = 20.0  # Then what was fired is expanded. While schedules are due, the next hint is on its way.
MARGIN = timedelta(
    seconds=30
)  # beyond the check interval, until a time that nobody has looked at counts as missed
BACK_OFF = timedelta(minutes=5)  # before a schedule that cannot be fired is looked at again
LISTED = 1_000  # times skipped in one row that get a record each; more of them share one
INSTANT = timedelta(microseconds=1)

MISSED = "The time had passed, and the schedule does not catch up on it."
OVERLAPS = "The execution before is still under way."
ANOTHER_WAITS = "Another execution waits for the one before already."
REPLACED = "The schedule fired again."


def due(now: datetime | None = None) -> QuerySet[Schedule]:
    """Schedules whose next time has come, over all tenants; none while scheduling is switched off."""
    off = PlatformConfig.objects.filter(key=scheduler_settings.KEY, value__enabled=False)
    rows: QuerySet[Schedule] = Schedule.objects.filter(
        enabled=True, next_run_at__lte=now or Now(), tenant__is_active=True, tenant__paused=False
    )
    return rows.exclude(Exists(off))


def fire_due(now: datetime | None = None, *, within: float = TURN_SECONDS) -> list[tuple[UUID, UUID]]:
    """Fire every schedule whose next time has come; tenant and id of the executions that begin, to be expanded.

    One that cannot be fired hinders no other: it is noted, and looked at again after a while. `now` is for tests.
    """
    ends = time.monotonic() + within
    begun: list[tuple[UUID, UUID]] = []
    seen: set[UUID] = set()
    # What another scheduler holds right now stays due, and is not for us.
    while page := [found for found in _page(now) if found[1] not in seen]:
        for tenant_id, schedule_id in page:
            seen.add(schedule_id)
            begun += [(tenant_id, pk) for pk in _fire_whatever_comes(tenant_id, schedule_id, now)]
            if time.monotonic() > ends:
                return begun
    return begun


def _page(now: datetime | None) -> list[tuple[UUID, UUID]]:
    with system_scope():
        return list(due(now).order_by("next_run_at", "pk").values_list("tenant_id", "pk")[:PAGE])


def _fire_whatever_comes(tenant_id: UUID, schedule_id: UUID, now: datetime | None) -> list[UUID]:
    try:
        return fire(tenant_id, schedule_id, now=now)
    except Exception as error:
        logger.exception(
            "Schedule not fired",
            extra={"action": "schedule_not_fired", "schedule": str(schedule_id), "tenant": str(tenant_id)},
        )
        _back_off(tenant_id, schedule_id, now or datetime.now(UTC), error)
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
    settings = scheduler_settings.current()
    if not settings.enabled:
        return []
    now = now or datetime.now(UTC)
    with tenant_scope(tenant_id):
        rows = Schedule.objects.for_tenant(tenant_id).filter(
            pk=schedule_id, enabled=True, next_run_at__lte=now, tenant__is_active=True, tenant__paused=False
        )
        schedule = rows.select_for_update(of=("self",), skip_locked=True).first()
        if schedule is None:
            return []
        return _fire(schedule, now, grace=timedelta(milliseconds=settings.check_interval_ms) + MARGIN)


def _fire(schedule: Schedule, now: datetime, *, grace: timedelta) -> list[UUID]:
    looked = _look(schedule, now, grace)
    to_fire = _not_on_record(schedule, looked.to_fire)
    _record_missed(schedule, looked)
    begun = [pk for nominal in to_fire if (pk := _fire_one(schedule, nominal)) is not None]
    _move_on(schedule, looked, now, fired=bool(to_fire))
    if to_fire:
        logger.info(
            "Schedule fired",
            extra={"action": "schedule_fired", "schedule": str(schedule.pk), "times": len(to_fire)},
        )
    return begun


@dataclass(frozen=True, slots=True)
class _Looked:
    """What has come since the last look."""

    timing: Timing
    since: datetime
    until: datetime  # up to here everything is dealt with by this look
    to_fire: Sequence[datetime]
    missed: Missed


def _look(schedule: Schedule, now: datetime, grace: timedelta) -> _Looked:
    plan = plans.timing_of(schedule)
    since = schedule.looked_until or _beginning(schedule)
    until = _come(schedule, plan, since, now)
    passed = timing.missed(
        plan,
        last=since,
        now=until,
        catch_up=plans.catch_up_of(schedule),
        grace=_on_time(schedule, plan, since, until, now - grace),
    )
    return _Looked(plan, since, until, passed.to_fire, passed)


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
        if plans.jittered(schedule, nominal) > now:
            return nominal - INSTANT
    return now


def _on_time(
    schedule: Schedule, plan: Timing, since: datetime, until: datetime, earliest: datetime
) -> timedelta:
    """How far back from `until` the first time lies that came at `earliest` or later."""
    after = max(since, earliest - timedelta(seconds=schedule.jitter_seconds) - INSTANT)
    for nominal in timing.times(plan, after=after, until=until):
        if plans.jittered(schedule, nominal) >= earliest:
            return until - nominal + INSTANT
    return timedelta()


def _not_on_record(schedule: Schedule, times: Sequence[datetime]) -> list[datetime]:
    """Those of the times that are not on record. There are some only when somebody has turned `looked_until` back."""
    if not times:
        return []
    rows = Firing.objects.for_tenant(schedule.tenant_id).filter(schedule_id=schedule.pk, nominal_at__in=times)
    known = set(rows.values_list("nominal_at", flat=True))
    return [nominal for nominal in times if nominal not in known]


def _record_missed(schedule: Schedule, looked: _Looked) -> None:
    """Each missed time by itself; a long row of them, as after a month without power, as one record."""
    count = looked.missed.skipped_count
    if not count:
        return
    if count <= LISTED:
        _put_on_record(schedule, looked.missed.skipped(), FiringState.SKIPPED, MISSED)
        return
    first = next(looked.missed.skipped())
    last = _latest(looked.timing, looked.to_fire[0] - INSTANT if looked.to_fire else looked.until)
    row = _firing(schedule, first, FiringState.SKIPPED, MISSED)
    row.last_at, row.count = last, count
    Firing.objects.bulk_create([row], ignore_conflicts=True)


def _latest(plan: Timing, until: datetime) -> datetime:
    """The last time up to `until`, found without going through all before it. There is one."""
    span = timedelta(minutes=1)
    while True:
        found = list(timing.times(plan, after=until - span, until=until))
        if found:
            return found[-1]
        span *= 2


def _put_on_record(schedule: Schedule, times: Iterable[datetime], state: str, reason: str = "") -> None:
    rows = [_firing(schedule, nominal, state, reason) for nominal in times]
    Firing.objects.bulk_create(rows, ignore_conflicts=True, batch_size=500)


def _firing(schedule: Schedule, nominal: datetime, state: str, reason: str) -> Firing:
    return Firing(
        tenant_id=schedule.tenant_id, schedule_id=schedule.pk, nominal_at=nominal, state=state, reason=reason
    )


def _fire_one(schedule: Schedule, nominal: datetime) -> UUID | None:
    """The execution of one time if it begins now, unless another is under way and the schedule says that this matters."""
    state, reason = _judge(schedule)
    if state == FiringState.SKIPPED:
        _put_on_record(schedule, [nominal], state, reason)
        return None
    Firing.objects.bulk_create(
        [_firing(schedule, nominal, state, "")]
    )  # A conflict would be a double firing.
    status = ExecutionStatus.QUEUED if state == FiringState.QUEUED else ExecutionStatus.RUNNING
    execution = executions.begin(schedule, nominal_at=nominal, status=status, created_by=ACTOR)
    return execution.pk if status == ExecutionStatus.RUNNING else None


def _judge(schedule: Schedule) -> tuple[FiringState, str]:
    """What overlapping allows, with the reason when it is nothing."""
    if schedule.overlap == Overlap.ALLOW:
        return FiringState.FIRED, ""
    under_way = list(executions.active(schedule).select_for_update(of=("self",)))
    if not under_way:
        return FiringState.FIRED, ""
    if schedule.overlap == Overlap.CANCEL_RUNNING:
        for execution in under_way:
            executions.call_off(execution, actor=ACTOR, reason=REPLACED)
        return FiringState.FIRED, ""
    if schedule.overlap == Overlap.SKIP:
        return FiringState.SKIPPED, OVERLAPS
    return (FiringState.SKIPPED, ANOTHER_WAITS) if executions.queued(schedule) else (FiringState.QUEUED, "")


def _move_on(schedule: Schedule, looked: _Looked, now: datetime, *, fired: bool) -> None:
    """Note up to where everything is on record, and when to look again. A schedule that is over ticks no more."""
    following = plans.next_of(schedule, after=looked.until)
    changes: dict[str, Any] = {"looked_until": looked.until, "next_run_at": following}
    if fired:
        changes["last_run_at"] = now
    over = following is None and schedule.repeat == "once"
    if over and fired and schedule.after_once == AfterOnce.DELETE:
        beat.forget(schedule)
        schedule.delete()
        return
    if over:
        changes["enabled"] = False
    Schedule.objects.for_tenant(schedule.tenant_id).filter(pk=schedule.pk).update(**changes)
    if following is None:
        beat.stop(schedule)
