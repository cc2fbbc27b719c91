"""Moving on: up to where everything of a schedule is on record, when to look again, and what becomes of one that is over."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from uuid import UUID

from pipelines.models import Schedule
from pipelines.models.schedule import AfterOnce
from pipelines.schedules import beat, plans
from pipelines.schedules.looking import Look
from tenants.context import APP
from tenants.sql import Statement

_MOVE_ON = Statement.load(Path(__file__).parent.parent / "sql", "move_on_schedules")


def move_on(tenant_id: UUID, looks: Sequence[Look], fired: Collection[UUID], now: datetime) -> None:
    """Note up to where everything is on record, and when to look again. A schedule that is over ticks no more."""
    following = {look.key: plans.next_of(look.schedule, after=look.until) for look in looks}
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
            _lay_down(look.schedule, fired=look.key in fired)


def _lay_down(schedule: Schedule, *, fired: bool) -> None:
    """Nothing follows any more. A time that was only skipped stays on record, so then the schedule does, too."""
    if schedule.repeat == "once" and fired and schedule.after_once == AfterOnce.DELETE:
        beat.forget(schedule)
        schedule.delete()
        return
    if schedule.repeat == "once":
        Schedule.objects.for_tenant(schedule.tenant_id).filter(pk=schedule.pk).update(enabled=False)
    beat.stop(schedule)
