"""Runs executions: expands them into jobs, starts batches one after the other, and sets the final status.

Each job is an activity or a pipeline run. Jobs are recorded a page at a time, in the transaction that creates their work, so all work
is on record. An interrupted expansion continues with the rows that are not recorded yet, even if rows were added or removed meanwhile. A
job that its agent refuses fails, and does not stop the others.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from itertools import islice
from typing import Any
from uuid import UUID

from django.db.models import Count, Max, Min, Q, QuerySet

from activities.alerts import raise_alert
from activities.models import Activity
from activities.models.alert import AlertKind, ChannelKind
from agents import scheduler_settings
from agents.scheduler_settings import SchedulerSettings
from pipelines import data_sources
from pipelines.data_sources import BatchGate
from pipelines.exceptions import PipelineError
from pipelines.jobs import OPEN
from pipelines.models import Firing, PipelineRun, Schedule, ScheduleExecution, ScheduleJob
from pipelines.models.schedule import ExecutionStatus, FiringState, JobState
from pipelines.schedules import executions, expansion
from pipelines.schedules.expansion import ExpansionError, Plan, PlannedJob
from tenants import clock, outages
from tenants.context import tenant_scope

logger = logging.getLogger(__name__)

PAGE = 500
PATIENCE = timedelta(seconds=60)  # without a sign of life, another process continues; a page takes a second
MOST_TRIES = 5


def expand(tenant_id: UUID, execution_id: UUID) -> None:
    """Record the jobs of an execution and start them. Does nothing while another process expands it. Idempotent.

    An error of the execution is recorded and fails it. Raises the database's error if PostgreSQL is unavailable.
    """
    try:
        execution = _claim_execution(tenant_id, execution_id)
        if execution is None:
            return
        if execution.expanded_at is None:
            execution = _record_pages(execution)
        if execution is not None and not execution.jobs_enqueued:
            _settle(tenant_id, execution_id)
    except ExpansionError as error:
        _give_up(tenant_id, execution_id, error.as_errors())
    except PipelineError as error:
        _give_up(tenant_id, execution_id, [{"message": str(error), "code": error.code}])
    except Exception as error:
        if outages.may_pass(error):
            raise  # The execution is not at fault: it is retried.
        logger.exception(
            "Expansion failed", extra={"action": "expansion_failed", "execution": str(execution_id)}
        )
        message = f"The expansion failed unexpectedly ({type(error).__name__})."
        _give_up(tenant_id, execution_id, [{"message": message, "code": "expansion_failed"}])


def expand_all(keys: Iterable[tuple[UUID, UUID]]) -> Iterator[tuple[UUID, UUID]]:
    """Expand the executions that are a single activity, several in one transaction. Yield the others, for `expand`."""
    for tenant_id, ids in executions.in_portions(keys):
        rest: Sequence[UUID]
        try:
            rest = _expand_single(tenant_id, ids)
        except Exception:
            logger.exception("Joint expansion failed", extra={"action": "expansion_together_failed"})
            rest = ids  # Expand each alone, so that only the faulty one fails.
        yield from ((tenant_id, execution_id) for execution_id in rest)


def _expand_single(tenant_id: UUID, ids: Sequence[UUID]) -> Sequence[UUID]:
    """Expand executions that are a single activity which its agent accepts. Return the others."""
    with tenant_scope(tenant_id):
        rows = ScheduleExecution.objects.for_tenant(tenant_id).filter(pk__in=ids, touched_at__isnull=True)
        locked = rows.order_by("pk").select_for_update(of=("self",), skip_locked=True)
        pairs = [
            (execution, _job(execution, planned, JobState.ENQUEUED))
            for execution in locked
            if _is_unexpanded(execution) and (planned := _only_job(execution)) is not None
        ]
        if pairs:
            expansion.submit_each(pairs)
            ScheduleJob.objects.bulk_create(job for _, job in pairs)
            now, ids_of_pairs = clock.now(), [execution.pk for execution, _ in pairs]
            single = ScheduleExecution.objects.for_tenant(tenant_id).filter(pk__in=ids_of_pairs)
            single.update(
                jobs_created=1, jobs_enqueued=1, metadata={"jobs": 1}, expanded_at=now, touched_at=now
            )
            if without_room := [execution.pk for execution, job in pairs if job.activity_id is None]:
                single.filter(pk__in=without_room).update(jobs_enqueued=0)
    expanded = {execution.pk for execution, _ in pairs}
    return [execution_id for execution_id in ids if execution_id not in expanded]


def _only_job(execution: ScheduleExecution) -> PlannedJob | None:
    if _has_sources(execution.definition):
        return None
    try:
        (planned,) = expansion.plan(
            execution.tenant_id, execution.definition, starts_at=execution.started_at
        ).jobs()
    except ExpansionError:
        return None  # `expand` fails it with the reason.
    return planned if expansion.accepts(execution, planned.params) else None


def _claim_execution(tenant_id: UUID, execution_id: UUID) -> ScheduleExecution | None:
    """Claim an execution to expand, or return None. Without data sources it is a single job, which is recorded here."""
    with tenant_scope(tenant_id):
        execution = executions.lock_execution(tenant_id, execution_id, skip_locked=True)
        if execution is None or not _is_unexpanded(execution):
            return None
        if execution.touched_at is not None:
            # The expansion may be what kills the processes.
            tries = execution.metadata.get("tries", 1) + 1
            if tries > MOST_TRIES:
                message = f"The expansion was interrupted {MOST_TRIES} times, so it is not retried."
                raise ExpansionError([{"path": "params", "message": message}])
            execution.metadata = {**execution.metadata, "tries": tries}
        if not _has_sources(execution.definition):
            plan = expansion.plan(tenant_id, execution.definition, starts_at=execution.started_at)
            _record(execution, list(plan.jobs()), recorded=0, waits_for_batches=False)
            _mark_expanded(execution, plan)
        else:
            execution.touched_at = clock.now()
            execution.save(update_fields=["touched_at", "metadata"])
    return execution


def _is_unexpanded(execution: ScheduleExecution) -> bool:
    if execution.status != ExecutionStatus.RUNNING or execution.expanded_at is not None:
        return False
    return execution.touched_at is None or execution.touched_at < clock.now() - PATIENCE


def _has_sources(definition: Mapping[str, Any]) -> bool:
    params = definition.get("params")
    return isinstance(params, Mapping) and any(data_sources.looks_like(value) for value in params.values())


def _record_pages(execution: ScheduleExecution) -> ScheduleExecution | None:
    """Record all jobs page by page. Return None if the execution was cancelled, or another process continues it."""
    tenant_id, execution_id = execution.tenant_id, execution.pk
    plan = expansion.plan(
        tenant_id, execution.definition, starts_at=execution.started_at, figures=execution.metadata
    )
    with tenant_scope(tenant_id):
        recorded, known = _recorded_jobs(tenant_id, execution_id)
    planned = _unrecorded_jobs(plan, recorded, known)
    while page := list(islice(planned, PAGE)):
        with tenant_scope(tenant_id):
            locked = executions.lock_execution(tenant_id, execution_id)
            if locked is None or not _is_ours(locked, recorded):
                return None
            figures = _pipeline_figures(locked)
            _record(locked, page, recorded=recorded, waits_for_batches=plan.waits_for_batches)
            # Stored with the first page, because the batches wait for each other even if the expansion fails later.
            locked.metadata = {**figures, **locked.metadata, **plan.pacing_figures()}
            locked.save(
                update_fields=["jobs_created", "jobs_enqueued", "jobs_failed", "touched_at", "metadata"]
            )
        recorded += len(page)
    with tenant_scope(tenant_id):
        locked = executions.lock_execution(tenant_id, execution_id)
        if locked is None or not _is_ours(locked, recorded):
            return None
        _mark_expanded(locked, plan)
    return locked


def _recorded_jobs(tenant_id: UUID, execution_id: UUID) -> tuple[int, Counter[bytes]]:
    """Return the number of recorded jobs, and their parameters, because rows may have been added and removed since."""
    rows = ScheduleJob.objects.for_tenant(tenant_id).filter(execution_id=execution_id)
    known = Counter(_digest(params) for params in rows.values_list("params", flat=True).iterator())
    return known.total(), known


def _unrecorded_jobs(plan: Plan, recorded: int, known: Counter[bytes]) -> Iterator[PlannedJob]:
    """Yield the jobs that are not recorded yet, numbered after those that are."""
    for params in plan.inputs():
        if known and known[digest := _digest(params)] > 0:
            known[digest] -= 1
            continue
        yield plan.place(recorded, params)
        recorded += 1


def _digest(params: Mapping[str, Any]) -> bytes:
    # Normalize numbers, because PostgreSQL returns 1e2 as 100.
    normalized = json.loads(json.dumps(params), parse_int=_number, parse_float=_number)
    return blake2b(json.dumps(normalized, sort_keys=True).encode(), digest_size=16).digest()


def _number(text: str) -> str:
    return str(Decimal(text).normalize())


def _is_ours(execution: ScheduleExecution, recorded: int) -> bool:
    """Whether no other process has continued or cancelled it since our last page."""
    return (
        execution.status == ExecutionStatus.RUNNING
        and execution.expanded_at is None
        and execution.jobs_created == recorded
    )


def _record(
    execution: ScheduleExecution, page: Sequence[PlannedJob], *, recorded: int, waits_for_batches: bool
) -> None:
    """Record the jobs of a page with their work, and count them on the execution, unsaved. The caller holds the execution's lock."""
    rows = [
        _job(
            execution,
            planned,
            JobState.WAITING if waits_for_batches and planned.batch else JobState.ENQUEUED,
        )
        for planned in page
    ]
    expansion.start(execution, [row for row in rows if row.state == JobState.ENQUEUED])
    ScheduleJob.objects.bulk_create(rows)
    execution.jobs_created = recorded + len(rows)
    execution.jobs_enqueued += sum(1 for row in rows if row.activity_id or row.pipeline_run_id)
    execution.jobs_failed += sum(1 for row in rows if row.state == JobState.FAILED)
    execution.touched_at = clock.now()


def _job(execution: ScheduleExecution, planned: PlannedJob, state: JobState) -> ScheduleJob:
    return ScheduleJob(
        tenant_id=execution.tenant_id,
        execution_id=execution.pk,
        ordinal=planned.ordinal,
        batch=planned.batch,
        due_at=planned.due_at,
        params=planned.params,
        state=state,
    )


def _pipeline_figures(execution: ScheduleExecution) -> dict[str, Any]:
    """Return the figures of the pipeline with the first jobs: they stay, even if later runs begin with a newer version."""
    return {} if "pipeline" in execution.metadata else expansion.pipeline_figures(execution)


def _mark_expanded(execution: ScheduleExecution, plan: Plan) -> None:
    execution.expanded_at = clock.now()
    figures = plan.figures(execution.jobs_created)
    execution.metadata = {**_pipeline_figures(execution), **execution.metadata, **figures}
    execution.save(
        update_fields=["expanded_at", "metadata", "jobs_created", "jobs_enqueued", "jobs_failed", "touched_at"]
    )  # fmt: skip


def _give_up(tenant_id: UUID, execution_id: UUID, errors: Iterable[Mapping[str, Any]]) -> None:
    """Record the errors and no more jobs. Running jobs continue, and the execution ends with them."""
    with tenant_scope(tenant_id):
        execution = executions.lock_execution(tenant_id, execution_id)
        if execution is None or execution.expanded_at is not None:
            return
        noted = [*execution.errors, *(as_error(dict(error)) for error in errors)]
        execution.errors = noted[:MOST_ERRORS]
        execution.expanded_at = clock.now()
        execution.save(update_fields=["errors", "expanded_at"])
    _settle(tenant_id, execution_id)


def _settle(tenant_id: UUID, execution_id: UUID) -> None:
    following = settle_jobs(tenant_id, execution_id)
    if following is not None:
        expand(tenant_id, following)


# Settling executions: batches start one after the other, the final status is set, and a queued execution begins.
#
# All decisions depend on the current jobs only, under the locks of schedule and execution, in this order. So any process may settle an
# execution at any time, and twice. When two jobs end at the same time, the next call sees both.


BATCHES_AT_ONCE = 50  # if no job of a batch could be started, the next batch starts immediately
STARTED_AT_ONCE = 100  # of the jobs that wait for room
MOST_ERRORS = 100  # stored with an execution; each job stores its own
MOST_NAMED = 5  # errors that an alert lists
LONGEST_ERROR = 500  # characters


def settle_jobs(tenant_id: UUID, execution_id: UUID) -> UUID | None:
    """Start the next batch or end the execution, if it is time for either. Idempotent.

    Returns the queued execution that begins now, which the caller must expand.
    """
    with tenant_scope(tenant_id):
        execution = _lock_with_schedule(tenant_id, execution_id)
        if execution is None or execution.expanded_at is None or execution.finished_at is not None:
            return None
        open_jobs = ScheduleJob.objects.for_tenant(tenant_id).filter(
            execution_id=execution_id, state__in=OPEN
        )
        for _ in range(BATCHES_AT_ONCE):
            first = open_jobs.order_by("batch").first()
            if first is None or not _start_jobs(execution, *_next_jobs(execution, first.batch)):
                break
        if first is not None:
            # All batches before the first with an open job have ended.
            if execution.metadata.get("batches_done", first.batch) != first.batch:
                execution.metadata = {**execution.metadata, "batches_done": first.batch}
                execution.save(update_fields=["metadata"])
            return None
        _end(execution)
        return _begin_next(execution)


def begin_queued_if_idle(tenant_id: UUID, execution_id: UUID) -> bool:
    """Begin a queued execution if no earlier execution of its schedule is running."""
    with tenant_scope(tenant_id):
        execution = _lock_with_schedule(tenant_id, execution_id)
        if execution is None or execution.status != ExecutionStatus.QUEUED:
            return False
        return _begin(execution)


def _lock_with_schedule(tenant_id: UUID, execution_id: UUID) -> ScheduleExecution | None:
    """Lock the schedule before the execution, because a firing holds the schedule's lock while it checks for overlaps."""
    rows = ScheduleExecution.objects.for_tenant(tenant_id).filter(pk=execution_id)
    schedule_id = rows.values_list("schedule_id", flat=True).first()
    if schedule_id is not None:
        list(Schedule.objects.for_tenant(tenant_id).filter(pk=schedule_id).select_for_update(of=("self",)))
    return executions.lock_execution(tenant_id, execution_id)


def _next_jobs(execution: ScheduleExecution, batch: int) -> tuple[list[ScheduleJob], datetime]:
    """Return the waiting jobs that may start, and since when. They are in the earliest batch that has not ended, or in the batch after one
    that has started. If batches do not wait for each other, they are all jobs that wait for room.
    """
    rows = ScheduleJob.objects.for_tenant(execution.tenant_id).filter(
        execution_id=execution.pk, state=JobState.WAITING
    )
    gate = execution.metadata.get("batch_gate")
    if gate == BatchGate.COMPLETION:
        return list(rows.filter(batch=batch).order_by("ordinal")), _end_of_batch(execution, batch - 1)
    following = rows.filter(error__isnull=True).order_by("batch").first() if gate == BatchGate.START else None
    if following is not None and (started := _start_of_batch(execution, following.batch - 1)) is not None:
        return list(rows.filter(batch=following.batch).order_by("ordinal")), started
    without_room = rows.filter(error__isnull=False) if gate == BatchGate.START else rows
    return list(without_room.order_by("ordinal")[:STARTED_AT_ONCE]), clock.now()


def _start_of_batch(execution: ScheduleExecution, batch: int) -> datetime | None:
    """Return when the first job of the batch started to work or ended, or None if none has."""
    tenant_id = execution.tenant_id
    jobs = ScheduleJob.objects.for_tenant(tenant_id).filter(execution_id=execution.pk, batch=batch)
    activities = Activity.objects.for_tenant(tenant_id).filter(pk__in=jobs.values("activity_id"))
    runs = PipelineRun.objects.for_tenant(tenant_id).filter(pk__in=jobs.values("pipeline_run_id"))
    moments = (
        jobs.aggregate(first=Min("ended_at"))["first"],
        activities.aggregate(first=Min("started_at"))["first"],
        runs.aggregate(first=Min("started_at"))["first"],
    )
    return min((each for each in moments if each is not None), default=None)


def _end_of_batch(execution: ScheduleExecution, batch: int) -> datetime:
    """Return when the last job of the batch ended; now if there is no such batch."""
    jobs = ScheduleJob.objects.for_tenant(execution.tenant_id).filter(execution_id=execution.pk, batch=batch)
    return jobs.aggregate(last=Max("ended_at"))["last"] or clock.now()


def _start_jobs(execution: ScheduleExecution, waiting: Sequence[ScheduleJob], since: datetime) -> int:
    """Start jobs, and return how many no longer wait.

    The jobs of a batch start the stagger delay after `since`; jobs that had no room start as soon as there is room.
    """
    if not waiting:
        return 0
    due_at = since + timedelta(milliseconds=execution.metadata.get("stagger_ms", 0))
    for job in waiting:
        job.due_at = due_at if job.error is None else job.due_at
    try:
        expansion.start(execution, waiting)
    except PipelineError as error:
        _fail_jobs(waiting, error)
    ScheduleJob.objects.bulk_update(
        waiting, ["state", "activity_id", "pipeline_run_id", "due_at", "error", "ended_at"], batch_size=500
    )
    return sum(job.state != JobState.WAITING for job in waiting)


def _fail_jobs(waiting: Iterable[ScheduleJob], error: PipelineError) -> None:
    for job in waiting:
        job.state, job.ended_at = JobState.FAILED, clock.now()
        job.error = {"code": error.code, "message": str(error)}


def _end(execution: ScheduleExecution) -> None:
    jobs = ScheduleJob.objects.for_tenant(execution.tenant_id).filter(execution_id=execution.pk)
    counts = jobs.aggregate(
        created=Count("pk"),
        enqueued=Count("pk", filter=Q(activity_id__isnull=False) | Q(pipeline_run_id__isnull=False)),
        failed=Count("pk", filter=Q(state__in=(JobState.FAILED, JobState.CANCELLED))),
        runs=Count("pk", filter=Q(pipeline_run_id__isnull=False)),
        completed=Count("pk", filter=Q(pipeline_run_id__isnull=False, state=JobState.DONE)),
        cancelled=Count("pk", filter=Q(pipeline_run_id__isnull=False, state=JobState.CANCELLED)),
    )
    # Every batch has ended, and every run of a pipeline.
    final = dict(execution.metadata)
    if "batches" in final:
        final["batches_done"] = final["batches"]
    if "pipeline" in final:
        failed = counts["runs"] - counts["completed"] - counts["cancelled"]
        runs = {"completed": counts["completed"], "failed": failed, "cancelled": counts["cancelled"]}
        final["pipeline"] = {**final["pipeline"], "runs": runs}
    execution.metadata = final
    execution.jobs_created = counts["created"]
    execution.jobs_enqueued = counts["enqueued"]
    execution.jobs_failed = counts["failed"]
    if "cancelled" in execution.metadata:  # also if a job was retried since
        execution.status = ExecutionStatus.CANCELLED
    else:
        execution.errors = _errors(execution)
        execution.status = _status_of(execution)
    execution.finished_at = clock.now()
    execution.save(
        update_fields=[
            "jobs_created", "jobs_enqueued", "jobs_failed", "errors", "status", "finished_at", "metadata",
        ]
    )  # fmt: skip
    logger.info(
        "Schedule execution ended",
        extra={"action": "schedule_execution_ended", "execution": str(execution.pk), "status": execution.status},
    )  # fmt: skip
    if execution.status in (ExecutionStatus.FAILED, ExecutionStatus.PARTIAL):
        _raise_alert(execution, scheduler_settings.current())


def _status_of(execution: ScheduleExecution) -> str:
    if not execution.errors and not execution.jobs_failed:
        return ExecutionStatus.SUCCESS
    return (
        ExecutionStatus.PARTIAL if execution.jobs_failed < execution.jobs_created else ExecutionStatus.FAILED
    )


def _errors(execution: ScheduleExecution) -> list[dict[str, Any]]:
    """Return the errors of the expansion, and those of the first failed jobs."""
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
    """Return an error as executions store it: with message, code and timestamp."""
    return {
        "message": str(error.get("message", ""))[:LONGEST_ERROR],
        "code": error.get("code", "failed"),
        "timestamp": (at or clock.now()).astimezone(UTC).isoformat().replace("+00:00", "Z"),
    }


def _raise_alert(execution: ScheduleExecution, settings: SchedulerSettings) -> None:
    """Alert people once per execution, however often its jobs are retried."""
    if not (settings.monitoring_enabled and settings.notify_on_failure):
        return
    named = [f"{error['message']}" for error in execution.errors[:MOST_NAMED]]
    if len(execution.errors) > MOST_NAMED:
        named.append("and more; see the execution")
    counted = f"{execution.jobs_failed} of {execution.jobs_created} jobs failed."
    raise_alert(
        execution.tenant_id,
        AlertKind.SCHEDULE_FAILED,
        f"The schedule {execution.schedule_name} has "
        + ("partly failed" if execution.status == ExecutionStatus.PARTIAL else "failed"),
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


def _begin_next(ended: ScheduleExecution) -> UUID | None:
    """Begin the queued execution of the schedule, if there is one and no earlier one is running. Return its id."""
    queued = _of_same_schedule(ended).filter(status=ExecutionStatus.QUEUED).first()
    return queued.pk if queued is not None and _begin(queued) else None


def _begin(queued: ScheduleExecution) -> bool:
    rows = _of_same_schedule(queued)
    # Later ones run beside it if the schedule allows overlaps since a change.
    if rows.filter(status=ExecutionStatus.RUNNING, started_at__lte=queued.started_at).exists():
        return False
    has_begun = rows.filter(pk=queued.pk, status=ExecutionStatus.QUEUED).update(
        status=ExecutionStatus.RUNNING, started_at=clock.now()
    )
    if has_begun and queued.schedule_id is not None and queued.nominal_at is not None:
        Firing.objects.for_tenant(queued.tenant_id).filter(
            schedule_id=queued.schedule_id, nominal_at=queued.nominal_at
        ).update(state=FiringState.FIRED)
    return bool(has_begun)


def _of_same_schedule(execution: ScheduleExecution) -> QuerySet[ScheduleExecution]:
    """Return the unfinished executions of its schedule, which may have been deleted."""
    rows: QuerySet[ScheduleExecution] = ScheduleExecution.objects.for_tenant(execution.tenant_id)
    return rows.filter(finished_at__isnull=True, definition__schedule=execution.definition["schedule"])
