"""Creates, finds and cancels executions of schedules.

An execution is active until all of its jobs have ended, even if they wait for people. A cancelled execution gets its status immediately,
and finishes when its last job has ended. After a crash in between, the background task cancels the remaining jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from activities import cancellation
from activities.exceptions import ActivityError
from activities.models import Activity
from pipelines import cancellation as run_cancellation
from pipelines import jobs
from pipelines.exceptions import NotFound, PipelineError
from pipelines.models import Firing, Schedule, ScheduleExecution, ScheduleJob
from pipelines.models.schedule import ExecutionStatus, FiringState, JobState
from pipelines.schedules import expansion
from tenants import clock
from tenants.context import tenant_scope
from tenants.current_tenant import current_tenant

logger = logging.getLogger(__name__)

PORTION = 25  # schedules that fire, or executions of a single job that are expanded, in one transaction
CLOSED_AT_ONCE = 200  # jobs that a cancellation ends before it returns; the background task ends the others
UNSTARTED = "Cancelled while it was queued."


def in_portions(keys: Iterable[tuple[UUID, UUID]]) -> Iterator[tuple[UUID, list[UUID]]]:
    """Yield rows for one transaction each: of one tenant, and few, so that a process that dies loses little work."""
    by_tenant: dict[UUID, list[UUID]] = {}
    for tenant_id, key in keys:
        by_tenant.setdefault(tenant_id, []).append(key)
    for tenant_id, ids in by_tenant.items():
        for start in range(0, len(ids), PORTION):
            yield tenant_id, ids[start : start + PORTION]


def begin(
    schedule: Schedule, *, nominal_at: datetime | None, status: str = ExecutionStatus.RUNNING, created_by: str,
    requested_identity: str = "",
) -> ScheduleExecution:  # fmt: skip
    """Create an execution with a copy of the schedule. The caller's transaction holds the schedule's lock.

    `requested_identity` is that of the caller who starts it by hand.
    """
    execution = new(schedule, nominal_at=nominal_at, status=status, created_by=created_by)
    if requested_identity:
        execution.definition["requested_identity"] = requested_identity
    execution.save(force_insert=True)
    return execution


def new(
    schedule: Schedule, *, nominal_at: datetime | None, status: str, created_by: str
) -> ScheduleExecution:
    """Return an unsaved execution with a copy of the schedule."""
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


def unended_of(tenant_id: UUID, schedule_ids: Iterable[UUID]) -> QuerySet[ScheduleExecution]:
    """Return the executions of schedules that are active or queued behind an active one.

    An execution whose jobs have ended is no longer active, although it has the status `running` until the background task settles it.
    """
    rows: QuerySet[ScheduleExecution] = ScheduleExecution.objects.for_tenant(tenant_id)
    open_jobs = ScheduleJob.objects.for_tenant(tenant_id).filter(
        execution_id=OuterRef("pk"), state__in=jobs.OPEN
    )
    active = Q(Q(expanded_at__isnull=True) | Exists(open_jobs), status=ExecutionStatus.RUNNING)
    return rows.filter(active | Q(status=ExecutionStatus.QUEUED), schedule_id__in=schedule_ids)


def list_started(tenant_id: UUID, page: Sequence[ScheduleJob]) -> set[UUID]:
    """Return the ids of the jobs whose work has started. Call it within a `tenant_scope`."""
    working = Activity.objects.for_tenant(tenant_id).filter(
        pk__in=[job.activity_id for job in page if job.activity_id], started_at__isnull=False
    )
    activities = set(working.values_list("pk", flat=True))
    of_runs = Activity.objects.for_tenant(tenant_id).filter(
        pipeline_run_id__in=[job.pipeline_run_id for job in page if job.pipeline_run_id],
        started_at__isnull=False,
    )
    runs = set(of_runs.values_list("pipeline_run_id", flat=True))
    return {job.pk for job in page if job.activity_id in activities or job.pipeline_run_id in runs}


def lock_execution(
    tenant_id: UUID, execution_id: UUID, *, skip_locked: bool = False
) -> ScheduleExecution | None:
    """Lock and return the execution. Its lock comes after its schedule's and before its jobs'."""
    rows = ScheduleExecution.objects.for_tenant(tenant_id).filter(pk=execution_id)
    return rows.select_for_update(of=("self",), skip_locked=skip_locked).first()


def cancel(tenant_id: UUID, execution_id: UUID, *, actor: str, reason: str = "") -> ScheduleExecution:
    """Cancel an execution: waiting jobs never start, and running jobs are cancelled, each in its own transaction. Idempotent.

    Within a caller's transaction, the background task cancels the running jobs some seconds later. Raises `NotFound`, and
    `PipelineError` if the execution has ended in another way.
    """
    is_outermost = current_tenant() is None
    with tenant_scope(tenant_id):
        execution = lock_execution(tenant_id, execution_id)
        if execution is None:
            raise NotFound("execution", execution_id)
        if execution.status in jobs.ENDED:
            raise PipelineError(
                f"The execution has ended with {execution.status} already.", code="execution_ended"
            )
        mark_cancelled(execution, actor=actor, reason=reason)
    if is_outermost:
        close_jobs(tenant_id, execution_id)
    with tenant_scope(tenant_id):
        return ScheduleExecution.objects.for_tenant(tenant_id).get(pk=execution_id)


def mark_cancelled(execution: ScheduleExecution, *, actor: str, reason: str) -> None:
    """Mark an execution and its waiting jobs as cancelled; `close_jobs` does the rest. The caller holds its lock. Idempotent."""
    if execution.status not in (ExecutionStatus.RUNNING, ExecutionStatus.QUEUED):
        return
    tenant_id, was_queued = execution.tenant_id, execution.status == ExecutionStatus.QUEUED
    execution.status = ExecutionStatus.CANCELLED
    execution.metadata = {**execution.metadata, "cancelled": {"by": actor, "reason": reason}}
    execution.expanded_at = execution.expanded_at or clock.now()
    execution.finished_at = clock.now() if was_queued else None
    execution.save(update_fields=["status", "metadata", "expanded_at", "finished_at"])
    ScheduleJob.objects.for_tenant(tenant_id).filter(
        execution_id=execution.pk, state=JobState.WAITING
    ).update(
        state=JobState.CANCELLED,
        ended_at=Now(),
        error={"code": "cancelled", "message": reason or "The execution was cancelled."},
    )
    if was_queued and execution.schedule_id is not None and execution.nominal_at is not None:
        Firing.objects.for_tenant(tenant_id).filter(
            schedule_id=execution.schedule_id, nominal_at=execution.nominal_at, state=FiringState.QUEUED
        ).update(state=FiringState.SKIPPED, reason=UNSTARTED)


def close_jobs(tenant_id: UUID, execution_id: UUID, *, most: int = CLOSED_AT_ONCE) -> int:
    """Cancel the work of at most `most` jobs of a cancelled execution. Return how many there were. Idempotent."""
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
        # It has just ended or was reassigned: update the job, so that it does not stay open.
        with tenant_scope(job.tenant_id):
            jobs.refresh(job)
