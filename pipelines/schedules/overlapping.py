"""Overlapping: what becomes of a time that comes while an earlier execution is under way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from uuid import UUID

from pipelines.models import Schedule, ScheduleExecution
from pipelines.models.execution import ExecutionStatus
from pipelines.models.firing import FiringState
from pipelines.models.schedule import Overlap
from pipelines.schedules import executions
from pipelines.schedules.looking import Look

ACTOR = "schedule"
OVERLAPS = "The execution before is still under way."
ANOTHER_WAITS = "Another execution waits for the one before already."
REPLACED = "The schedule fired again."


def statuses_under_way(tenant_id: UUID, looks: Sequence[Look]) -> dict[UUID, list[str]]:
    """The statuses of executions that have not ended, for schedules to which these matter."""
    found: dict[UUID, list[str]] = {}
    asked = [look.key for look in looks if look.schedule.overlap != Overlap.ALLOW]
    if asked:
        rows = ScheduleExecution.objects.for_tenant(tenant_id).filter(
            schedule_id__in=asked, status__in=(ExecutionStatus.RUNNING, ExecutionStatus.QUEUED)
        )
        for schedule_id, status in rows.values_list("schedule_id", "status"):
            found.setdefault(schedule_id, []).append(status)
    return found


def judged(
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
    """Call off what is under way where the schedule says so."""
    for schedule in fired:
        if schedule.overlap == Overlap.CANCEL_RUNNING:
            for execution in executions.active(schedule).order_by("pk").select_for_update(of=("self",)):
                executions.call_off(execution, actor=ACTOR, reason=REPLACED)
