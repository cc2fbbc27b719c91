"""Recording: what has come of several schedules goes on record, and what is to begin begins, with a handful of statements for all of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from pipelines.models import Firing, ScheduleExecution
from pipelines.models.execution import ExecutionStatus
from pipelines.models.firing import FiringState
from pipelines.schedules import executions
from pipelines.schedules.looking import Look
from pipelines.schedules.moving_on import move_on
from pipelines.schedules.overlapping import ACTOR, judged, replace, statuses_under_way
from pipelines.schedules.records import missed_times, record_of


def record(tenant_id: UUID, looks: Sequence[Look], now: datetime) -> list[UUID]:
    """Put on record what has come, with a handful of statements for all of it. Under the locks of the schedules."""
    known, under_way = _on_record(tenant_id, looks), statuses_under_way(tenant_id, looks)
    firings: list[Firing] = []
    begin: list[ScheduleExecution] = []
    fired: set[UUID] = set()
    for look in looks:
        firings += missed_times(look)
        times = [nominal for nominal in look.missed.to_fire if (look.key, nominal) not in known]
        for nominal, state, reason in judged(look.schedule, times, under_way.get(look.key, [])):
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
