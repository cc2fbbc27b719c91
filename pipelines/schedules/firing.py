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
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import DatabaseError
from django.db.models import Exists, QuerySet
from django.db.models.functions import Now

from agents import scheduler_settings
from agents.models import PlatformConfig
from pipelines.models import Schedule
from pipelines.schedules.looking import look
from pipelines.schedules.recording import record
from tenants import clock
from tenants.context import system_scope, tenant_scope

logger = logging.getLogger(__name__)

PAGE = 200
PORTION = 25
TURN_SECONDS = 20.0  # Then what was fired is expanded. While schedules are due, the next hint is on its way.
MARGIN = timedelta(
    seconds=30
)  # beyond the check interval, until a time that nobody has looked at counts as missed
BACK_OFF = timedelta(minutes=5)  # before a schedule that cannot be fired is looked at again


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
        seen.update(schedule_id for _, schedule_id in page)
        for tenant_id, ids in _portions(page):
            begun += [(tenant_id, pk) for pk in _fire_whatever_comes(tenant_id, ids, now)]
            if time.monotonic() > ends:
                return begun
    return begun


def _page(now: datetime | None) -> list[tuple[UUID, UUID]]:
    with system_scope():
        return list(due(now).order_by("next_run_at", "pk").values_list("tenant_id", "pk")[:PAGE])


def _portions(page: Iterable[tuple[UUID, UUID]]) -> Iterator[tuple[UUID, list[UUID]]]:
    """Schedules of one tenant that fire in one transaction: not so many that a process which dies has done much in vain."""
    by_tenant: dict[UUID, list[UUID]] = {}
    for tenant_id, schedule_id in page:
        by_tenant.setdefault(tenant_id, []).append(schedule_id)
    for tenant_id, ids in by_tenant.items():
        for start in range(0, len(ids), PORTION):
            yield tenant_id, ids[start : start + PORTION]


def _fire_whatever_comes(tenant_id: UUID, ids: Sequence[UUID], now: datetime | None) -> list[UUID]:
    """All in one transaction; if that fails, each in one of its own, so that only the one at fault is put off."""
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
        # Skipping what is locked, so that several schedulers neither wait for each other nor for whoever edits a schedule.
        locked = rows.select_related("pipeline").select_for_update(of=("self",), skip_locked=True)
        looks = [look(schedule, now, earliest) for schedule in locked]
        return record(tenant_id, looks, now) if looks else []
