"""Executions from their beginning to their end: they are expanded into jobs, batches start one after the other, and a status is given.

Each job is an activity or a pipeline run. Jobs are recorded a page at a time, in the transaction that creates their work, so nothing runs
that is not on record. An expansion that was cut off continues with the rows that are not on record yet, whatever rows came or went
meanwhile. A job that its agent would not take has failed, and does not stop the others.
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

from django.db.models import Count, Min, Q

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
PORTION = 25  # executions of a single job that are expanded in one transaction
PATIENCE = timedelta(seconds=60)  # without a sign of life, somebody else goes on: a page takes a second
MOST_TRIES = 5


def expand(tenant_id: UUID, execution_id: UUID) -> None:
    """Record the jobs of an execution and start them. Does nothing while somebody else is at it. Idempotent.

    Whatever is wrong with the execution makes it fail, and is recorded with it. Raises the database's error when PostgreSQL cannot be
    reached.
    """
    try:
        execution = _take_up(tenant_id, execution_id)
        if execution is None:
            return
        if execution.expanded_at is None:
            execution = _go_through(execution)
        if execution is not None and not execution.jobs_enqueued:
            _settle(tenant_id, execution_id)
    except ExpansionError as error:
        _give_up(tenant_id, execution_id, error.as_errors())
    except PipelineError as error:
        _give_up(tenant_id, execution_id, [{"message": str(error), "code": error.code}])
    except Exception as error:
        if outages.may_pass(error):
            raise  # Nothing is wrong with the execution: it is taken up again.
        logger.exception(
            "Expansion failed", extra={"action": "expansion_failed", "execution": str(execution_id)}
        )
        message = f"The expansion failed unexpectedly ({type(error).__name__})."
        _give_up(tenant_id, execution_id, [{"message": message, "code": "expansion_failed"}])


def expand_all(found: Iterable[tuple[UUID, UUID]]) -> Iterator[tuple[UUID, UUID]]:
    """Expand those executions that are a single activity, a portion of them in one transaction. The others come back, each for `expand`."""
    by_tenant: dict[UUID, list[UUID]] = {}
    for tenant_id, execution_id in found:
        by_tenant.setdefault(tenant_id, []).append(execution_id)
    for tenant_id, ids in by_tenant.items():
        for portion in (ids[start : start + PORTION] for start in range(0, len(ids), PORTION)):
            try:
                rest = _expand_single(tenant_id, portion)
            except Exception:
                logger.exception("Expansion together failed", extra={"action": "expansion_together_failed"})
                rest = portion  # Alone, only the one wrong fails.
            yield from ((tenant_id, execution_id) for execution_id in rest)


def _expand_single(tenant_id: UUID, ids: Sequence[UUID]) -> Sequence[UUID]:
    """Expand what is a single activity that its agent takes; the others."""
    with tenant_scope(tenant_id):
        rows = ScheduleExecution.objects.for_tenant(tenant_id).filter(pk__in=ids, touched_at__isnull=True)
        locked = rows.order_by("pk").select_for_update(of=("self",), skip_locked=True)
        pairs = [
            (execution, _job(execution, planned, JobState.ENQUEUED))
            for execution in locked
            if _is_to_be_expanded(execution) and (planned := _only_job(execution)) is not None
        ]
        if pairs:
            expansion.submit_each(pairs)
            ScheduleJob.objects.bulk_create(job for _, job in pairs)
            now, done = clock.now(), [execution.pk for execution, _ in pairs]
            single = ScheduleExecution.objects.for_tenant(tenant_id).filter(pk__in=done)
            single.update(
                jobs_created=1, jobs_enqueued=1, metadata={"jobs": 1}, expanded_at=now, touched_at=now
            )
            if put_off := [execution.pk for execution, job in pairs if job.activity_id is None]:
                single.filter(pk__in=put_off).update(jobs_enqueued=0)
    expanded = {execution.pk for execution, _ in pairs}
    return [execution_id for execution_id in ids if execution_id not in expanded]


def _only_job(execution: ScheduleExecution) -> PlannedJob | None:
    if _has_sources(execution.definition):
        return None
    try:
        (planned,) = expansion.plan(
            execution.tenant_id, execution.definition, asked_at=execution.started_at
        ).jobs()
    except ExpansionError:
        return None  # Expanded alone it fails, and says why.
    return planned if expansion.takes(execution, planned.params) else None


def _take_up(tenant_id: UUID, execution_id: UUID) -> ScheduleExecution | None:
    """The execution when it is ours to expand. One without data sources is a single job, which is recorded right here."""
    with tenant_scope(tenant_id):
        execution = executions.lock_execution(tenant_id, execution_id, skip_locked=True)
        if execution is None or not _is_to_be_expanded(execution):
            return None
        if execution.touched_at is not None:
            _count_try(execution)
        if not _has_sources(execution.definition):
            plan = expansion.plan(tenant_id, execution.definition, asked_at=execution.started_at)
            _record(execution, list(plan.jobs()), recorded=0, waits_for_batches=False)
            _expand_plan(execution, plan)
        else:
            execution.touched_at = clock.now()
            execution.save(update_fields=["touched_at", "metadata"])
    return execution


def _is_to_be_expanded(execution: ScheduleExecution) -> bool:
    if execution.status != ExecutionStatus.RUNNING or execution.expanded_at is not None:
        return False
    return execution.touched_at is None or execution.touched_at < clock.now() - PATIENCE


def _count_try(execution: ScheduleExecution) -> None:
    """Whatever ends the process that expands it must not end the next one, too, and so on for ever."""
    tries = execution.metadata.get("tries", 1) + 1
    if tries > MOST_TRIES:
        message = f"The expansion was cut off {MOST_TRIES} times, so it is not tried again."
        raise ExpansionError([{"path": "params", "message": message}])
    execution.metadata = {**execution.metadata, "tries": tries}


def _has_sources(definition: Mapping[str, Any]) -> bool:
    params = definition.get("params")
    return isinstance(params, Mapping) and any(data_sources.looks_like(value) for value in params.values())


def _go_through(execution: ScheduleExecution) -> ScheduleExecution | None:
    """The execution with all its jobs on record; None when it was cancelled, or somebody else goes on with it."""
    tenant_id, execution_id = execution.tenant_id, execution.pk
    plan = expansion.plan(tenant_id, execution.definition, asked_at=execution.started_at)
    with tenant_scope(tenant_id):
        recorded, known = _on_record(tenant_id, execution_id)
    planned = _following(plan, recorded, known)
    while page := list(islice(planned, PAGE)):
        with tenant_scope(tenant_id):
            locked = executions.lock_execution(tenant_id, execution_id)
            if locked is None or not _is_ours(locked, recorded):
                return None
            _record(locked, page, recorded=recorded, waits_for_batches=plan.waits_for_batches)
            locked.save(update_fields=["jobs_created", "jobs_enqueued", "jobs_failed", "touched_at"])
        recorded += len(page)
    with tenant_scope(tenant_id):
        locked = executions.lock_execution(tenant_id, execution_id)
        if locked is None or not _is_ours(locked, recorded):
            return None
        _expand_plan(locked, plan)
    return locked


def _on_record(tenant_id: UUID, execution_id: UUID) -> tuple[int, Counter[bytes]]:
    """How many jobs there are, and which parameters they have: rows may have come and gone since they were read."""
    rows = ScheduleJob.objects.for_tenant(tenant_id).filter(execution_id=execution_id)
    known = Counter(_digest(params) for params in rows.values_list("params", flat=True).iterator())
    return known.total(), known


def _following(plan: Plan, recorded: int, known: Counter[bytes]) -> Iterator[PlannedJob]:
    """What is not on record yet, in the places after what is."""
    for params in plan.inputs():
        if known and known[digest := _digest(params)] > 0:
            known[digest] -= 1
            continue
        yield plan.place(recorded, params)
        recorded += 1


def _digest(params: Mapping[str, Any]) -> bytes:
    # PostgreSQL writes numbers in its own way: what was 1e2 comes back as 100.
    same = json.loads(json.dumps(params), parse_int=_number, parse_float=_number)
    return blake2b(json.dumps(same, sort_keys=True).encode(), digest_size=16).digest()


def _number(text: str) -> str:
    return str(Decimal(text).normalize())


def _is_ours(execution: ScheduleExecution, recorded: int) -> bool:
    """Whether nobody has gone on with it, or cancelled it, since our last page."""
    return (
        execution.status == ExecutionStatus.RUNNING
        and execution.expanded_at is None
        and execution.jobs_created == recorded
    )


def _record(
    execution: ScheduleExecution, page: Sequence[PlannedJob], *, recorded: int, waits_for_batches: bool
) -> None:
    """Record the jobs of a page with their work, and count them on the execution, unsaved. Under the execution's lock."""
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


def _expand_plan(execution: ScheduleExecution, plan: Plan) -> None:
    execution.expanded_at = clock.now()
    figures = plan.figures(execution.jobs_created) | expansion.figures(execution)
    execution.metadata = {**execution.metadata, **figures}
    execution.save(
        update_fields=["expanded_at", "metadata", "jobs_created", "jobs_enqueued", "jobs_failed", "touched_at"]
    )  # fmt: skip


def _give_up(tenant_id: UUID, execution_id: UUID, errors: Iterable[Mapping[str, Any]]) -> None:
    """Nothing more is recorded. What is at work goes on, and the execution ends with it."""
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


# How executions end: batches start one after the other, a status is given, and an execution that waited begins.
#
# Everything is decided from the jobs as they are, under the locks of schedule and execution, in this order. So it may be done at any time,
# by any process, twice; of two jobs that end at the same time the later one is not missed, since the next look sees both.


BATCHES_AT_ONCE = 50  # a batch of which no job could be started makes way for the next at once
BEGUN_AT_ONCE = 100  # of the jobs that wait for room
MOST_ERRORS = 100  # kept with an execution; each job keeps its own
MOST_NAMED = 5  # errors that an alert names
LONGEST_ERROR = 500  # characters


def settle_jobs(tenant_id: UUID, execution_id: UUID) -> UUID | None:
    """Start the next batch, or end the execution, when it is time for either. Idempotent.

    Returns the execution that waited for this one and begins now: it is to be expanded.
    """
    with tenant_scope(tenant_id):
        execution = _lock_with_schedule(tenant_id, execution_id)
        if execution is None or execution.expanded_at is None or execution.finished_at is not None:
            return None
        for _ in range(BATCHES_AT_ONCE):
            first = _first_open(execution)
            if first is None or not _start_jobs(execution, *_jobs_whose_turn_it_is(execution, first.batch)):
                break
        if first is not None:
            _note_batches(execution, first.batch)
            return None
        _end(execution)
        return _begin_queued(execution)


def begin_queued_alone(tenant_id: UUID, execution_id: UUID) -> bool:
    """Begin a queued execution when nothing of its schedule is under way any more."""
    with tenant_scope(tenant_id):
        execution = _lock_with_schedule(tenant_id, execution_id)
        if execution is None or execution.status != ExecutionStatus.QUEUED:
            return False
        return _begin(execution)


def _lock_with_schedule(tenant_id: UUID, execution_id: UUID) -> ScheduleExecution | None:
    """The schedule's lock first: a firing holds it while it looks for what is under way."""
    rows = ScheduleExecution.objects.for_tenant(tenant_id).filter(pk=execution_id)
    schedule_id = rows.values_list("schedule_id", flat=True).first()
    if schedule_id is not None:
        list(Schedule.objects.for_tenant(tenant_id).filter(pk=schedule_id).select_for_update(of=("self",)))
    return executions.lock_execution(tenant_id, execution_id)


def _first_open(execution: ScheduleExecution) -> ScheduleJob | None:
    """Of the jobs that have not ended, one of the earliest batch."""
    rows = ScheduleJob.objects.for_tenant(execution.tenant_id).filter(
        execution_id=execution.pk, state__in=OPEN
    )
    found: ScheduleJob | None = rows.order_by("batch").first()
    return found


def _note_batches(execution: ScheduleExecution, done: int) -> None:
    """How many batches have ended, of an execution that has any. All before the first one with an open job."""
    if execution.metadata.get("batches_done", done) != done:
        execution.metadata = {**execution.metadata, "batches_done": done}
        execution.save(update_fields=["metadata"])


def _jobs_whose_turn_it_is(execution: ScheduleExecution, batch: int) -> tuple[list[ScheduleJob], datetime]:
    """What waits in the earliest batch that has not ended, or after one that has begun, and since when it may; where batches do not wait
    for each other, what waits for room in any of them.
    """
    rows = ScheduleJob.objects.for_tenant(execution.tenant_id).filter(
        execution_id=execution.pk, state=JobState.WAITING
    )
    gate = execution.metadata.get("batch_gate")
    if gate == BatchGate.COMPLETION:
        return list(rows.filter(batch=batch).order_by("ordinal")), clock.now()
    following = rows.filter(error__isnull=True).order_by("batch").first() if gate == BatchGate.START else None
    if following is not None and (begun := _find_begin_of(execution, following.batch - 1)) is not None:
        return list(rows.filter(batch=following.batch).order_by("ordinal")), begun
    without_room = rows.filter(error__isnull=False) if gate == BatchGate.START else rows
    return list(without_room.order_by("ordinal")[:BEGUN_AT_ONCE]), clock.now()


def _find_begin_of(execution: ScheduleExecution, batch: int) -> datetime | None:
    """When the first job of the batch was at work for the first time, or ended without ever being so. None: none was yet."""
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


def _start_jobs(execution: ScheduleExecution, waiting: Sequence[ScheduleJob], since: datetime) -> int:
    """Start jobs whose turn has come; how many do not wait any more. Those of a batch begin the stagger delay after the end of those
    before, or after their beginning; those that had no room, as soon as there is some.
    """
    if not waiting:
        return 0
    begins = since + timedelta(milliseconds=execution.metadata.get("stagger_ms", 0))
    for job in waiting:
        job.due_at = begins if job.error is None else job.due_at
    try:
        expansion.start(execution, waiting)
    except PipelineError as error:
        fail_execution(waiting, error)
    ScheduleJob.objects.bulk_update(
        waiting, ["state", "activity_id", "pipeline_run_id", "due_at", "error", "ended_at"], batch_size=500
    )
    return sum(job.state != JobState.WAITING for job in waiting)


def fail_execution(waiting: Iterable[ScheduleJob], error: PipelineError) -> None:
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
        runs=Count("pk", filter=Q(pipeline_run_id__isnull=False)),
        completed=Count("pk", filter=Q(pipeline_run_id__isnull=False, state=JobState.DONE)),
        cancelled=Count("pk", filter=Q(pipeline_run_id__isnull=False, state=JobState.CANCELLED)),
    )
    execution.metadata = _final(execution.metadata, counts)
    execution.jobs_created = counts["created"]
    execution.jobs_enqueued = counts["enqueued"]
    execution.jobs_failed = counts["failed"]
    if execution.status != ExecutionStatus.CANCELLED:
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
        _tell(execution, scheduler_settings.current())


def _final(metadata: dict[str, Any], counts: dict[str, int]) -> dict[str, Any]:
    """The figures as they stand at the end: every batch has ended, and each run of a pipeline in some way."""
    found = dict(metadata)
    if "batches" in found:
        found["batches_done"] = found["batches"]
    if "pipeline" in found:
        failed = counts["runs"] - counts["completed"] - counts["cancelled"]
        runs = {"completed": counts["completed"], "failed": failed, "cancelled": counts["cancelled"]}
        found["pipeline"] = {**found["pipeline"], "runs": runs}
    return found


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
    named = [f"{error['message']}" for error in execution.errors[:MOST_NAMED]]
    if len(execution.errors) > MOST_NAMED:
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
