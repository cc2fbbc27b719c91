"""Keeps jobs of schedules in step with the activities or pipeline runs that do their work, in the same transaction.

Work without a schedule costs nothing here. A job follows the successor or revision that takes the place of its activity. When failed work
is retried, its job and its execution reopen, so that both can still succeed.

Lock order: activity, pipeline run, execution, jobs.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Now

from activities import activity_tree
from activities.models import Activity
from activities.states import SETTLED, Status
from pipelines.models import PipelineRun, ScheduleExecution, ScheduleJob
from pipelines.models.run import RunState
from pipelines.models.schedule import ExecutionStatus, JobState

OPEN = (JobState.WAITING, JobState.ENQUEUED)
ENDED = (ExecutionStatus.SUCCESS, ExecutionStatus.PARTIAL, ExecutionStatus.FAILED)

_OF_ACTIVITY: dict[str, JobState] = {
    Status.DONE: JobState.DONE,
    Status.APPROVED: JobState.DONE,
    Status.CANCELLED: JobState.CANCELLED,
}
_OF_RUN: dict[str, JobState] = {
    RunState.RUNNING: JobState.ENQUEUED,
    RunState.COMPLETED: JobState.DONE,
    RunState.FAILED: JobState.FAILED,
    RunState.CANCELLED: JobState.CANCELLED,
}


def activity_changed(activity: Any) -> None:
    """Update the job of an activity that has settled or is tried again. `activity` is a `transitions.Moved`."""
    if activity.schedule_id is None or activity.pipeline_run_id is not None:
        return
    if activity.link_kind is not None and activity.link_kind not in activity_tree.SUCCESSORS:
        return  # It concerns the job's activity, or is a part of it.
    follow_activity(activity.tenant_id, activity.id, activity.status, _error_of(activity))


def run_changed(run: Any) -> None:
    """Update the job of a pipeline run that has ended or continues. `run` is its row; the caller holds its lock."""
    if run.schedule_id is None:
        return
    rows = PipelineRun.objects.for_tenant(run.tenant_id).filter(pk=run.id)
    follow_run(run.tenant_id, *rows.values_list("pk", "status").get())


def follow_activity(
    tenant_id: UUID, activity_id: UUID, status: str, error: dict[str, Any] | None = None
) -> None:
    """Update the job of this activity to match it. Idempotent. Call it in the transaction that holds the activity's lock."""
    job = ScheduleJob.objects.for_tenant(tenant_id).filter(activity_id=activity_id).first()
    if job is None:
        return
    successor: Activity | None = None
    if status in (Status.REASSIGNED, Status.REJECTED):
        successor = activity_tree.successors_of(tenant_id, activity_id).first()
    if successor is not None:
        _move(job, JobState.ENQUEUED, activity_id=successor.pk)
        follow_activity(tenant_id, successor.pk, successor.status, _error_of(successor))
    elif status not in SETTLED:
        _move(job, JobState.ENQUEUED)
    else:
        state = _OF_ACTIVITY.get(status, JobState.FAILED)
        error = error or {
            "code": status,
            "message": f"The activity ended as {status.replace('_', ' ')}.",
        }
        _move(job, state, error=None if state == JobState.DONE else error)


def follow_run(tenant_id: UUID, run_id: UUID, status: str) -> None:
    """Update the job of this pipeline run to match it. Idempotent."""
    job = ScheduleJob.objects.for_tenant(tenant_id).filter(pipeline_run_id=run_id).first()
    if job is not None:
        state = _OF_RUN[status]
        good = state in (JobState.DONE, JobState.ENQUEUED)
        message = (
            "The pipeline run was cancelled." if state == JobState.CANCELLED else "The pipeline run failed."
        )
        _move(job, state, error=None if good else {"code": status, "message": message})


def refresh(job: ScheduleJob) -> None:
    """Update a job to match the current state of its work; it fails if its work no longer exists. Call it within a `tenant_scope`."""
    if job.activity_id is not None:
        activities = Activity.objects.for_tenant(job.tenant_id).filter(pk=job.activity_id)
        activity = activities.select_for_update().first()
        if activity is not None:
            return follow_activity(job.tenant_id, activity.pk, activity.status, _error_of(activity))
    elif job.pipeline_run_id is not None:
        runs = PipelineRun.objects.for_tenant(job.tenant_id).filter(pk=job.pipeline_run_id)
        run = runs.select_for_update().first()
        if run is not None:
            return follow_run(job.tenant_id, run.pk, run.status)
    return _move(
        job, JobState.FAILED, error={"code": "work_gone", "message": "The work of this job no longer exists."}
    )


def _move(job: ScheduleJob, state: JobState, *, error: dict[str, Any] | None = None, **changes: Any) -> None:
    if job.state == state and not changes:
        return
    if state == JobState.ENQUEUED and job.state != state:
        # Lock it in any status: a process that is about to end it may not have seen that this job is open again.
        executions = ScheduleExecution.objects.for_tenant(job.tenant_id).filter(pk=job.execution_id)
        execution = executions.select_for_update(of=("self",)).first()
        # A cancellation that has not ended all jobs yet continues.
        if execution is not None and execution.finished_at is not None:
            executions.update(status=ExecutionStatus.RUNNING, finished_at=None)
    jobs: QuerySet[ScheduleJob] = ScheduleJob.objects.for_tenant(job.tenant_id).filter(pk=job.pk)
    jobs.update(state=state, error=error, ended_at=None if state == JobState.ENQUEUED else Now(), **changes)


def _error_of(activity: Any) -> dict[str, Any] | None:
    """Return the error of an activity, or None; some callers' rows do not have the column."""
    error = getattr(activity, "error", None)
    if error:
        summary = {"code": error.get("code", "failed"), "message": error.get("message", "")}
        return {**summary, "retryable": error["retryable"]} if "retryable" in error else summary
    reason = getattr(activity, "cancel_reason", None) if activity.status == Status.CANCELLED else None
    return {"code": "cancelled", "message": reason} if reason else None
