"""How executions come to an end: batches are let go one after the other, statuses are given, and whoever waited gets its turn.

Everything is decided from the jobs as they are, under the locks of schedule and execution, in this order. So it may be done at any time, by
anybody, twice; of two jobs that end at once the later one is not missed, since whoever looks afterwards sees both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, Q

from activities.alerts import raise_alert
from activities.models.alert import AlertKind, ChannelKind
from agents import scheduler_settings
from agents.scheduler_settings import SchedulerSettings
from pipelines.data_sources import BatchGate
from pipelines.exceptions import PipelineError
from pipelines.jobs import OPEN
from pipelines.models import Firing, Schedule, ScheduleExecution, ScheduleJob
from pipelines.models.execution import ExecutionStatus
from pipelines.models.firing import FiringState
from pipelines.models.schedule_job import JobState
from pipelines.schedules import executions, targets
from tenants import clock
from tenants.context import tenant_scope

logger = logging.getLogger(__name__)

BATCHES_AT_ONCE = 50  # a batch of which no job could be started makes way for the next at once
PORTION = 100  # of the jobs that wait for room
MOST_ERRORS = 100  # kept with an execution; each job keeps its own
TOLD = 5  # errors that an alert names
LONGEST_ERROR = 500  # characters


def settle(tenant_id: UUID, execution_id: UUID) -> UUID | None:
    """Let the next batch go, or end the execution, when it is time for either. Idempotent.

    Returns the execution that waited for this one and begins now: it is to be expanded.
    """
    with tenant_scope(tenant_id):
        execution = _locked_with_schedule(tenant_id, execution_id)
        if execution is None or execution.expanded_at is None or execution.finished_at is not None:
            return None
        for _ in range(BATCHES_AT_ONCE):
            first = _first_open(execution)
            if first is None or not _let_go(execution, _whose_turn_it_is(execution, first.batch)):
                break
        if first is not None:
            return None
        _end(execution)
        return _begin_queued(execution)


def begin_stranded(tenant_id: UUID, execution_id: UUID) -> bool:
    """Let a queued execution begin when nothing of its schedule is under way any more."""
    with tenant_scope(tenant_id):
        execution = _locked_with_schedule(tenant_id, execution_id)
        if execution is None or execution.status != ExecutionStatus.QUEUED:
            return False
        return _begin(execution)


def _locked_with_schedule(tenant_id: UUID, execution_id: UUID) -> ScheduleExecution | None:
    """The schedule's lock first: a firing holds it while it looks for what is under way."""
    rows = ScheduleExecution.objects.for_tenant(tenant_id).filter(pk=execution_id)
    schedule_id = rows.values_list("schedule_id", flat=True).first()
    if schedule_id is not None:
        list(Schedule.objects.for_tenant(tenant_id).filter(pk=schedule_id).select_for_update(of=("self",)))
    return executions.locked(tenant_id, execution_id)


def _first_open(execution: ScheduleExecution) -> ScheduleJob | None:
    """Of the jobs that have not ended, one of the earliest batch."""
    rows = ScheduleJob.objects.for_tenant(execution.tenant_id).filter(
        execution_id=execution.pk, state__in=OPEN
    )
    found: ScheduleJob | None = rows.order_by("batch").first()
    return found


def _whose_turn_it_is(execution: ScheduleExecution, batch: int) -> list[ScheduleJob]:
    """What waits in the earliest batch that has not ended; where batches do not wait for each other, what waits for room in any of them."""
    rows = ScheduleJob.objects.for_tenant(execution.tenant_id).filter(
        execution_id=execution.pk, state=JobState.WAITING
    )
    if execution.metadata.get("batch_gate") == BatchGate.COMPLETION:
        return list(rows.filter(batch=batch).order_by("ordinal"))
    return list(rows.order_by("ordinal")[:PORTION])


def _let_go(execution: ScheduleExecution, waiting: Sequence[ScheduleJob]) -> int:
    """Start jobs whose turn has come; how many do not wait any more. Those of a batch begin the stagger delay after the end of those
    before; those that had no room, as soon as there is some.
    """
    if not waiting:
        return 0
    begins = clock.now() + timedelta(milliseconds=execution.metadata.get("stagger_ms", 0))
    for job in waiting:
        job.due_at = begins if job.error is None else job.due_at
    try:
        targets.start(execution, waiting)
    except PipelineError as error:
        fail(waiting, error)
    ScheduleJob.objects.bulk_update(
        waiting, ["state", "activity_id", "pipeline_run_id", "due_at", "error", "ended_at"], batch_size=500
    )
    return sum(job.state != JobState.WAITING for job in waiting)


def fail(waiting: Iterable[ScheduleJob], error: PipelineError) -> None:
    """Note on jobs that cannot be started why not, unsaved."""
    for job in waiting:
        job.state, job.ended_at = JobState.FAILED, clock.now()
        job.error = {"code": error.code, "message": str(error)}


def _end(execution: ScheduleExecution) -> None:
    jobs = ScheduleJob.objects.for_tenant(execution.tenant_id).filter(execution_id=execution.pk)
    counts = jobs.aggregate(
        created=Count("pk"),
        enqueued=Count("pk", filter=Q(activity_id__isnull=False) | Q(pipeline_run_id__isnull=False)),
        failed=Count("pk", filter=Q(state__in=(JobState.FAILED, JobState.CANCELLED))),
    )
    execution.jobs_created = counts["created"]
    execution.jobs_enqueued = counts["enqueued"]
    execution.jobs_failed = counts["failed"]
    if execution.status != ExecutionStatus.CANCELLED:
        execution.errors = _errors(execution)
        execution.status = _status_of(execution)
    execution.finished_at = clock.now()
    execution.save(
        update_fields=["jobs_created", "jobs_enqueued", "jobs_failed", "errors", "status", "finished_at"]
    )
    logger.info(
        "Schedule execution ended",
        extra={"action": "schedule_execution_ended", "execution": str(execution.pk), "status": execution.status},
    )  # fmt: skip
    if execution.status in (ExecutionStatus.FAILED, ExecutionStatus.PARTIAL):
        _tell(execution, scheduler_settings.current())


def _status_of(execution: ScheduleExecution) -> str:
    if not execution.errors and not execution.jobs_failed:
        return ExecutionStatus.SUCCESS
    return (
        ExecutionStatus.PARTIAL if execution.jobs_failed < execution.jobs_created else ExecutionStatus.FAILED
    )


def _errors(execution: ScheduleExecution) -> list[dict[str, Any]]:
    """What went wrong before there were jobs, and the errors of the first jobs that failed."""
    general = [error for error in execution.errors if "job" not in error]
    failed = ScheduleJob.objects.for_tenant(execution.tenant_id).filter(
        execution_id=execution.pk, state__in=(JobState.FAILED, JobState.CANCELLED)
    )
    of_jobs = [
        {**as_error(job.error or {}, job.ended_at), "job": job.ordinal}
        for job in failed.order_by("ordinal")[:MOST_ERRORS]
    ]
    return (general + of_jobs)[:MOST_ERRORS]


def as_error(error: dict[str, Any], at: datetime | None = None) -> dict[str, Any]:
    """An error as executions keep it: message, timestamp, and a code for programs."""
    return {
        "message": str(error.get("message", ""))[:LONGEST_ERROR],
        "code": error.get("code", "failed"),
        "timestamp": (at or clock.now()).astimezone(UTC).isoformat().replace("+00:00", "Z"),
    }


def _tell(execution: ScheduleExecution, settings: SchedulerSettings) -> None:
    """Once per execution, however often it is tried again."""
    if not (settings.monitoring_enabled and settings.notify_on_failure):
        return
    named = [f"{error['message']}" for error in execution.errors[:TOLD]]
    if len(execution.errors) > TOLD:
        named.append("and more, which are shown with the execution")
    counted = f"{execution.jobs_failed} of {execution.jobs_created} jobs failed."
    raise_alert(
        execution.tenant_id,
        AlertKind.SCHEDULE_FAILED,
        f"The schedule {execution.schedule_name} has failed"
        + (" in part" if execution.status == ExecutionStatus.PARTIAL else ""),
        body="\n".join([counted, *named]),
        facts={
            "execution": execution.pk,
            "schedule": execution.definition.get("schedule"),
            "nominal_at": execution.nominal_at,
            "status": execution.status,
            "jobs_created": execution.jobs_created,
            "jobs_failed": execution.jobs_failed,
        },
        dedup_key=f"schedule_failed:{execution.pk}",
        without={ChannelKind.EMAIL, ChannelKind.SLACK} - set(settings.notification_channels),
    )


def _begin_queued(ended: ScheduleExecution) -> UUID | None:
    """The execution that waited for this one, if there is one and nothing else of the schedule is under way."""
    if ended.schedule_id is None:
        return None
    rows = ScheduleExecution.objects.for_tenant(ended.tenant_id)
    waiting = rows.filter(schedule_id=ended.schedule_id, status=ExecutionStatus.QUEUED).first()
    return waiting.pk if waiting is not None and _begin(waiting) else None


def _begin(waiting: ScheduleExecution) -> bool:
    rows = ScheduleExecution.objects.for_tenant(waiting.tenant_id)
    if (
        waiting.schedule_id is not None
        and rows.filter(schedule_id=waiting.schedule_id, status=ExecutionStatus.RUNNING).exists()
    ):
        return False
    begun = rows.filter(pk=waiting.pk, status=ExecutionStatus.QUEUED).update(
        status=ExecutionStatus.RUNNING, started_at=clock.now()
    )
    if begun and waiting.schedule_id is not None and waiting.nominal_at is not None:
        Firing.objects.for_tenant(waiting.tenant_id).filter(
            schedule_id=waiting.schedule_id, nominal_at=waiting.nominal_at
        ).update(state=FiringState.FIRED)
    return bool(begun)
