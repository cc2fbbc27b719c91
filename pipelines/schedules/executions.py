"""Executions: one firing at work. How they begin, which of them are under way, and how they are cancelled.

An execution is active while one of its jobs has not ended, also when that waits for a person. One that is cancelled has the status at
once, and has finished when the last of its jobs has been ended; a crash in between leaves it to the background task.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Now

from activities import cancellation
from activities.exceptions import ActivityError
from activities.models import Activity
from pipelines import cancellation as run_cancellation
from pipelines import jobs
from pipelines.exceptions import NotFound, PipelineError
from pipelines.models import Firing, Schedule, ScheduleExecution, ScheduleJob
from pipelines.models.schedule import ExecutionStatus, FiringState, JobState
from tenants import clock
from tenants.context import tenant_scope
from tenants.current_tenant import current_tenant

from . import expansion

logger = logging.getLogger(__name__)

CLOSED_AT_ONCE = 200  # jobs that a cancellation ends before it returns; the background task ends the others
UNSTARTED = "Cancelled while it waited for the one before."


class ExecutionEnded(PipelineError):
    """The execution has ended and cannot be cancelled any more."""

    code: ClassVar[str] = "execution_ended"


def begin(
    schedule: Schedule, *, nominal_at: datetime | None, status: str = ExecutionStatus.RUNNING, created_by: str
) -> ScheduleExecution:
    """Record an execution with the schedule as it is now. In the caller's transaction, which holds the schedule's lock."""
    execution = new(schedule, nominal_at=nominal_at, status=status, created_by=created_by)
    execution.save(force_insert=True)
    return execution


def new(
    schedule: Schedule, *, nominal_at: datetime | None, status: str, created_by: str
) -> ScheduleExecution:
    """The same, unsaved."""
    return ScheduleExecution(
        tenant_id=schedule.tenant_id,
        schedule_id=schedule.pk,
        schedule_name=schedule.name,
        nominal_at=nominal_at,
        status=status,
        definition=expansion.definition_of(schedule),
        created_by=created_by,
        started_at=clock.now(),
    )


def active(schedule: Schedule) -> QuerySet[ScheduleExecution]:
    """The executions that are under way: they expand, or one of their jobs works or waits."""
    return _of(schedule).filter(status=ExecutionStatus.RUNNING)


def is_queued(schedule: Schedule) -> bool:
    """Whether one waits for the active one already."""
    return _of(schedule).filter(status=ExecutionStatus.QUEUED).exists()


def list_begun(tenant_id: UUID, found: Sequence[ScheduleJob]) -> set[UUID]:
    """Which of these jobs somebody has begun to work on. In the caller's `tenant_scope`."""
    working = Activity.objects.for_tenant(tenant_id).filter(
        pk__in=[job.activity_id for job in found if job.activity_id], started_at__isnull=False
    )
    activities = set(working.values_list("pk", flat=True))
    of_runs = Activity.objects.for_tenant(tenant_id).filter(
        pipeline_run_id__in=[job.pipeline_run_id for job in found if job.pipeline_run_id],
        started_at__isnull=False,
    )
    runs = set(of_runs.values_list("pipeline_run_id", flat=True))
    return {job.pk for job in found if job.activity_id in activities or job.pipeline_run_id in runs}


def _of(schedule: Schedule) -> QuerySet[ScheduleExecution]:
    rows: QuerySet[ScheduleExecution] = ScheduleExecution.objects.for_tenant(schedule.tenant_id)
    return rows.filter(schedule_id=schedule.pk)


def lock_execution(
    tenant_id: UUID, execution_id: UUID, *, skip_locked: bool = False
) -> ScheduleExecution | None:
    """The execution under its lock, which comes after its schedule's and before its jobs'."""
    rows = ScheduleExecution.objects.for_tenant(tenant_id).filter(pk=execution_id)
    found: ScheduleExecution | None = rows.select_for_update(of=("self",), skip_locked=skip_locked).first()
    return found


def cancel(tenant_id: UUID, execution_id: UUID, *, actor: str, reason: str = "") -> ScheduleExecution:
    """What has not started never starts, what runs is stopped, each job in a transaction of its own. Idempotent.

    Within somebody else's transaction the jobs at work are ended by the background task, some seconds later; else here. Raises
    `NotFound`, and `ExecutionEnded` when it ended otherwise before.
    """
    is_outermost = current_tenant() is None
    with tenant_scope(tenant_id):
        execution = lock_execution(tenant_id, execution_id)
        if execution is None:
            raise NotFound("execution", execution_id)
        if execution.status in jobs.ENDED:
            raise ExecutionEnded(f"The execution has ended with {execution.status} already.")
        call_off(execution, actor=actor, reason=reason)
    if is_outermost:
        close_jobs(tenant_id, execution_id)
    with tenant_scope(tenant_id):
        return ScheduleExecution.objects.for_tenant(tenant_id).get(pk=execution_id)


def call_off(execution: ScheduleExecution, *, actor: str, reason: str) -> None:
    """Note that an execution is cancelled; `close_jobs` does the rest. In the transaction that holds its lock. Idempotent."""
    if execution.status not in (ExecutionStatus.RUNNING, ExecutionStatus.QUEUED):
        return
    tenant_id, never_began = execution.tenant_id, execution.status == ExecutionStatus.QUEUED
    execution.status = ExecutionStatus.CANCELLED
    execution.metadata = {**execution.metadata, "cancelled": {"by": actor, "reason": reason}}
    execution.expanded_at = execution.expanded_at or clock.now()
    execution.finished_at = clock.now() if never_began else None
    execution.save(update_fields=["status", "metadata", "expanded_at", "finished_at"])
    ScheduleJob.objects.for_tenant(tenant_id).filter(
        execution_id=execution.pk, state=JobState.WAITING
    ).update(
        state=JobState.CANCELLED,
        ended_at=Now(),
        error={"code": "cancelled", "message": reason or "The execution was cancelled."},
    )
    if never_began and execution.schedule_id is not None and execution.nominal_at is not None:
        Firing.objects.for_tenant(tenant_id).filter(
            schedule_id=execution.schedule_id, nominal_at=execution.nominal_at, state=FiringState.QUEUED
        ).update(state=FiringState.SKIPPED, reason=UNSTARTED)


def close_jobs(tenant_id: UUID, execution_id: UUID, *, most: int = CLOSED_AT_ONCE) -> int:
    """End the work of a cancelled execution, at most so many jobs of it; how many were looked at. Idempotent."""
    with tenant_scope(tenant_id):
        execution = ScheduleExecution.objects.for_tenant(tenant_id).get(pk=execution_id)
        if execution.status != ExecutionStatus.CANCELLED:
            return 0
        rows = ScheduleJob.objects.for_tenant(tenant_id).filter(
            execution_id=execution_id, state=JobState.ENQUEUED
        )
        open_jobs = list(rows.order_by("batch", "ordinal")[:most])
    cancelled = execution.metadata.get("cancelled", {})
    for job in open_jobs:
        _end_work(job, actor=cancelled.get("by") or expansion.ACTOR, reason=cancelled.get("reason") or "")
    return len(open_jobs)


def _end_work(job: ScheduleJob, *, actor: str, reason: str) -> None:
    try:
        if job.pipeline_run_id is not None:
            run_cancellation.cancel_run(job.tenant_id, job.pipeline_run_id, actor=actor, reason=reason)
        elif job.activity_id is not None:
            cancellation.cancel(job.tenant_id, job.activity_id, actor=actor, reason=reason)
    except (ActivityError, PipelineError):
        # It has ended in this moment, or was handed on: whatever it is now, the job must not stay open for it.
        with tenant_scope(job.tenant_id):
            jobs.refresh(job)
