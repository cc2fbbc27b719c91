"""Saving: schedules made, changed, switched and deleted, by the API, the admin and files alike.

What is saved has passed `checking`. A change of the times makes the next time anew from now; so does switching on, since what passes
while a schedule is off is not made up for. Only a one-time schedule whose time has passed when it is given that time is still due: its
policy of catching up decides what becomes of it. Beat's row is written in the same transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from pipelines.models import Schedule
from pipelines.models.schedule import Repeat
from pipelines.schedules import beat, checking, given, plans
from pipelines.schedules.errors import ScheduleChanged, ScheduleExists, ScheduleNotFound
from tenants import clock
from tenants.context import current_alias, tenant_scope
from tenants.identifiers import uuid7
from tenants.models import Tenant

logger = logging.getLogger(__name__)

INSTANT = timedelta(microseconds=1)
TIMING_COLUMNS = given.TIMING  # they have the names of the members


def create(tenant_id: UUID, members: Any, *, actor: str, now: datetime | None = None) -> Schedule:
    """A new schedule. Raises `InvalidSchedule` with every fault, and `ScheduleExists` for a name that is taken."""
    with tenant_scope(tenant_id):
        checked = checking.check(tenant_id, members)
        checked.raise_if_any()
        schedule = Schedule(id=uuid7(), tenant_id=tenant_id, created_by=actor, **checked.columns)
        _plan_anew(schedule, now or clock.now(), is_new_time=True)
        _store(schedule, made=True)
        _tell("schedule_created", schedule, actor)
        return schedule


def change(
    tenant_id: UUID,
    schedule_id: UUID,
    members: Mapping[str, Any],
    *,
    actor: str,
    expected_version: int | None = None,
    now: datetime | None = None,
) -> Schedule:
    """Set these members; others stay as they are, and null is the default. Nothing is written when nothing changes.

    Raises `ScheduleNotFound`, `InvalidSchedule`, `ScheduleExists`, and `ScheduleChanged` when `expected_version` is not the present one.
    """
    with tenant_scope(tenant_id):
        schedule = _locked(tenant_id, schedule_id, expected_version)
        if isinstance(members, Mapping) and members.keys() <= {"enabled"} and members.get("enabled") is False:
            # Switching off works even when the target has gone meanwhile.
            return _switch(schedule, False, actor, now)
        whole = given.merged(given.members_of(schedule), members) if isinstance(members, Mapping) else members
        checked = checking.check(tenant_id, whole)
        checked.raise_if_any()
        before = {name: getattr(schedule, name) for name in checked.columns}
        if before == dict(checked.columns):
            return schedule
        for name, value in checked.columns.items():
            setattr(schedule, name, value)
        times_changed = any(before[name] != checked.columns[name] for name in TIMING_COLUMNS)
        if times_changed or schedule.enabled != before["enabled"]:
            is_new_time = before["start_at"] != schedule.start_at or before["repeat"] != schedule.repeat
            _plan_anew(schedule, now or clock.now(), is_new_time=is_new_time)
        _store(schedule)
        _tell("schedule_changed", schedule, actor)
        return schedule


def set_enabled(
    tenant_id: UUID, schedule_id: UUID, enabled: bool, *, actor: str, now: datetime | None = None
) -> Schedule:
    """Switch a schedule on or off. What is under way goes on. Raises `ScheduleNotFound`."""
    with tenant_scope(tenant_id):
        return _switch(_locked(tenant_id, schedule_id), enabled, actor, now)


def delete(tenant_id: UUID, schedule_id: UUID, *, actor: str, expected_version: int | None = None) -> None:
    """The schedule and the record of its times go; its executions stay, and what is under way goes on.

    Raises `ScheduleNotFound`, and `ScheduleChanged` as `change` does.
    """
    with tenant_scope(tenant_id):
        schedule = _locked(tenant_id, schedule_id, expected_version)
        beat.forget(schedule)
        _tell("schedule_deleted", schedule, actor)
        schedule.delete()


def _switch(schedule: Schedule, enabled: bool, actor: str, now: datetime | None) -> Schedule:
    if schedule.enabled == enabled:
        return schedule
    schedule.enabled = enabled
    _plan_anew(schedule, now or clock.now(), is_new_time=False)
    _store(schedule)
    _tell("schedule_enabled" if enabled else "schedule_disabled", schedule, actor)
    return schedule


def _locked(tenant_id: UUID, schedule_id: UUID, expected_version: int | None = None) -> Schedule:
    rows = Schedule.objects.for_tenant(tenant_id).select_related("pipeline").select_for_update(of=("self",))
    found: Schedule | None = rows.filter(pk=schedule_id).first()
    if found is None:
        raise ScheduleNotFound(f"There is no schedule {schedule_id}.")
    if expected_version is not None and found.version != expected_version:
        raise ScheduleChanged(f"The schedule is at version {found.version} by now, not {expected_version}.")
    return found


def _plan_anew(schedule: Schedule, now: datetime, *, is_new_time: bool) -> None:
    """From when on times count, and the first of them."""
    schedule.looked_until = now
    if schedule.repeat == Repeat.ONCE and is_new_time and schedule.start_at is not None:
        schedule.looked_until = min(now, schedule.start_at - INSTANT)
    schedule.next_run_at = plans.next_of(schedule, after=schedule.looked_until) if schedule.enabled else None


def _store(schedule: Schedule, *, made: bool = False) -> None:
    """Write the row and beat's. Raises `ScheduleExists`."""
    if not made:
        schedule.version += 1
        schedule.updated_at = Now()
    try:
        with transaction.atomic(using=current_alias()):
            schedule.save(force_insert=made, force_update=not made)
    except IntegrityError as error:
        if "schedule_name_once" not in str(error):
            raise
        raise ScheduleExists(f"There is a schedule {schedule.name!r} already.") from error
    slug = Tenant.objects.values_list("slug", flat=True).get(pk=schedule.tenant_id)
    beat.keep_in_step(schedule, slug)
    schedule.refresh_from_db()


def _tell(action: str, schedule: Schedule, actor: str) -> None:
    facts = {
        "action": action,
        "tenant": str(schedule.tenant_id),
        "schedule": str(schedule.pk),
        "actor": actor,
    }
    logger.info("Schedule saved", extra=facts)
