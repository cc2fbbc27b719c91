"""Background tasks of schedules. Rows say what there is to do, so a lost, late or duplicate hint changes nothing.

    due        times that have come                         unexpanded  executions without all of their jobs
    unsettled  batches to start, executions to end          uncancelled cancelled executions with open jobs

An execution that fails here does not stop the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, Now

from activities.models import Activity
from pipelines.data_sources import BatchGate
from pipelines.exceptions import NotFound, PipelineError
from pipelines.jobs import OPEN
from pipelines.models import Schedule, ScheduleExecution, ScheduleJob
from pipelines.models.schedule import ExecutionStatus, JobState, Overlap
from pipelines.schedules import beat, executions, firing, lifecycle
from tenants import clock, outages, sweeps
from tenants.context import system_scope, tenant_scope
from tenants.current_tenant import current_tenant
from tenants.sweeps import Sweep

logger = logging.getLogger(__name__)

_UNEXPANDED, _UNSETTLED, _UNCANCELLED = (Sweep[Any]() for _ in range(3))
# After this time the worker is free for other work. While there is something to do, another hint follows.
TURN_SECONDS = 30.0


def fire() -> int:
    """Fire due schedules and expand their executions. Return the number of executions."""
    return _expand(firing.fire_due())


def fire_one(tenant_id: UUID, schedule_id: UUID) -> int:
    """Fire a schedule for which beat has ticked, if one of its times has come. Return the number of executions."""
    return _expand([(tenant_id, pk) for pk in firing.fire(tenant_id, schedule_id)])


def check() -> int:
    """Do everything once per check interval, in case hints were lost, and apply a changed interval.

    Returns the number of executions that were begun or checked.
    """
    with system_scope():
        beat.sync_check()
    return fire() + advance_executions()


def advance_executions() -> int:
    """Expand, settle and close all executions that need it. Return how many were checked."""
    return expand() + settle() + close()


def expand() -> int:
    return sum(_expand([key]) for key in _turn(_UNEXPANDED, list_unexpanded()))


def settle() -> int:
    return _each(_turn(_UNSETTLED, list_unsettled()), _settle)


def close() -> int:
    return _each(_turn(_UNCANCELLED, list_uncancelled()), executions.close_jobs)


def list_unexpanded() -> QuerySet[ScheduleExecution]:
    """Return executions whose expansion has not started, or was interrupted."""
    forgotten = Q(touched_at__isnull=True) | Q(touched_at__lt=Now() - lifecycle.PATIENCE)
    return _list_unfinished().filter(forgotten, status=ExecutionStatus.RUNNING, expanded_at__isnull=True)


def list_unsettled() -> QuerySet[ScheduleExecution]:
    """Return executions that may end, start a batch, or begin: no job of their first open batch is running, some jobs wait for room, a
    batch waits for one that has started, or they are queued and no earlier execution of their schedule is running.
    """
    jobs = ScheduleJob.objects.filter(execution_id=OuterRef("pk"), state__in=OPEN)
    first = Coalesce(Subquery(jobs.order_by("batch").values("state")[:1]), Value(""))
    running = _list_unfinished().filter(
        definition__schedule=OuterRef("definition__schedule"), status=ExecutionStatus.RUNNING,
        started_at__lte=OuterRef("started_at"),
    )  # fmt: skip
    without_room = Q(Exists(jobs.filter(state=JobState.WAITING, error__isnull=False)))
    idle = Q(expanded_at__isnull=False) & ~Q(status=ExecutionStatus.QUEUED)
    idle &= ~Q(first=JobState.ENQUEUED) | without_room | Q(Exists(_jobs_after_a_started_batch()))
    return (
        _list_unfinished()
        .annotate(first=first)
        .filter(idle | (Q(status=ExecutionStatus.QUEUED) & ~Exists(running)))
    )


def _jobs_after_a_started_batch() -> QuerySet[ScheduleJob]:
    """Return waiting jobs of an execution with the batch gate `start`, if the batch before theirs has started."""
    working = Activity.objects.filter(pk=OuterRef("activity_id"), started_at__isnull=False)
    started = ScheduleJob.objects.filter(execution_id=OuterRef("execution_id"), batch=OuterRef("batch") - 1)
    started = started.filter(
        Q(ended_at__isnull=False) | Q(pipeline_run_id__isnull=False) | Q(Exists(working))
    )
    waiting = ScheduleJob.objects.filter(
        execution_id=OuterRef("pk"), state=JobState.WAITING, error__isnull=True
    )
    return waiting.filter(Exists(started), execution__metadata__batch_gate=BatchGate.START)


def list_uncancelled() -> QuerySet[ScheduleExecution]:
    """Return cancelled executions with open jobs."""
    jobs = ScheduleJob.objects.filter(execution_id=OuterRef("pk"), state__in=OPEN)
    return _list_unfinished().filter(Exists(jobs), status=ExecutionStatus.CANCELLED)


def _list_unfinished() -> QuerySet[ScheduleExecution]:
    return ScheduleExecution.objects.filter(finished_at__isnull=True)


def _expand(keys: Sequence[tuple[UUID, UUID]]) -> int:
    _each(lifecycle.expand_all(keys), lifecycle.expand)
    return len(keys)


def _turn(sweep: Sweep[Any], rows: QuerySet[ScheduleExecution]) -> Iterator[tuple[UUID, UUID]]:
    for pk, tenant_id in sweep.turn(sweeps.pages(rows, "pk", "tenant_id"), within=TURN_SECONDS):
        yield tenant_id, pk


def _settle(tenant_id: UUID, execution_id: UUID) -> None:
    lifecycle.begin_queued_if_idle(tenant_id, execution_id)
    following = lifecycle.settle_jobs(tenant_id, execution_id)
    lifecycle.expand(tenant_id, execution_id if following is None else following)


def _each(keys: Iterable[tuple[UUID, UUID]], work: Callable[[UUID, UUID], object]) -> int:
    """Do the work for each execution until the turn is over. Return for how many."""
    ends, done = time.monotonic() + TURN_SECONDS, 0
    for tenant_id, execution_id in keys:
        done += 1
        with outages.one_of_many(
            logger,
            "Execution could not be advanced",
            action="execution_not_tended",
            execution=str(execution_id),
        ):
            work(tenant_id, execution_id)
        if time.monotonic() > ends:
            break
    return done


# Runs by hand, independent of the schedule's times, even if it is disabled.


def run_now(
    tenant_id: UUID, schedule_id: UUID, *, actor: str, requested_identity: str = ""
) -> ScheduleExecution:
    """Begin an execution without a nominal time. `requested_identity` is that of the caller. Raises `NotFound`, `PipelineError`.

    Within a caller's transaction, the background task expands it some seconds later.
    """
    is_outermost = current_tenant() is None
    with tenant_scope(tenant_id):
        rows = Schedule.objects.for_tenant(tenant_id).filter(pk=schedule_id)
        schedule = rows.select_for_update(of=("self",)).first_or_raise(NotFound("schedule", schedule_id))
        execution = executions.begin(
            schedule,
            nominal_at=None,
            status=_status_of_new_execution(schedule),
            created_by=actor,
            requested_identity=requested_identity,
        )
        rows.update(last_run_at=clock.now())
    if is_outermost and execution.status == ExecutionStatus.RUNNING:
        lifecycle.expand(tenant_id, execution.pk)
        with tenant_scope(tenant_id):
            execution = ScheduleExecution.objects.for_tenant(tenant_id).get(pk=execution.pk)
    return execution


def _status_of_new_execution(schedule: Schedule) -> ExecutionStatus:
    unended = dict(executions.unended_of(schedule.tenant_id, [schedule.pk]).values_list("status", "pk"))
    if schedule.overlap == Overlap.ALLOW or not unended:
        return ExecutionStatus.RUNNING
    queued = unended.get(ExecutionStatus.QUEUED)
    if schedule.overlap == Overlap.QUEUE_ONE and queued is None:
        return ExecutionStatus.QUEUED
    first = unended.get(ExecutionStatus.RUNNING, queued)
    raise PipelineError(
        f"Execution {first} has not ended. Cancel it, or wait until it ends.", code="execution_under_way"
    )
