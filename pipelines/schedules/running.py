"""By hand: somebody has a schedule run now, whatever its times and whether or not it is enabled."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from pipelines.exceptions import PipelineError
from pipelines.models import Schedule, ScheduleExecution
from pipelines.models.execution import ExecutionStatus
from pipelines.models.schedule import Overlap
from pipelines.schedules import executions, expanding
from pipelines.schedules.errors import ScheduleNotFound
from tenants import clock
from tenants.context import current_tenant, tenant_scope


class ExecutionUnderWay(PipelineError):
    """The execution before has not ended, and the schedule does not allow another beside it."""

    code: ClassVar[str] = "execution_under_way"


def run_now(tenant_id: UUID, schedule_id: UUID, *, actor: str) -> ScheduleExecution:
    """Begin an execution that belongs to no nominal time. Raises `ScheduleNotFound`, `ExecutionUnderWay`.

    Within somebody else's transaction it is expanded by the errand, some seconds later; else here.
    """
    is_outermost = current_tenant() is None
    with tenant_scope(tenant_id):
        rows = Schedule.objects.for_tenant(tenant_id).filter(pk=schedule_id)
        schedule = rows.select_for_update(of=("self",)).first()
        if schedule is None:
            raise ScheduleNotFound(f"There is no schedule {schedule_id}.")
        execution = executions.begin(
            schedule, nominal_at=None, status=_status_beside_others(schedule), created_by=actor
        )
        rows.update(last_run_at=clock.now())
    if is_outermost and execution.status == ExecutionStatus.RUNNING:
        expanding.expand(tenant_id, execution.pk)
        with tenant_scope(tenant_id):
            execution = ScheduleExecution.objects.for_tenant(tenant_id).get(pk=execution.pk)
    return execution


def _status_beside_others(schedule: Schedule) -> ExecutionStatus:
    under_way = executions.active(schedule).values_list("pk", flat=True).first()
    if schedule.overlap == Overlap.ALLOW or under_way is None:
        return ExecutionStatus.RUNNING
    if schedule.overlap == Overlap.QUEUE_ONE and not executions.queued(schedule):
        return ExecutionStatus.QUEUED
    raise ExecutionUnderWay(f"Execution {under_way} has not ended. Cancel it, or wait for it.")
