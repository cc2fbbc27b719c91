"""What system jobs do for schedules. Rows say what there is to do, so a hint that is lost, late or double changes nothing.

    due        times have come                              unexpanded  executions without all of their jobs
    unsettled  batches to start, executions that end        uncancelled jobs of cancelled executions that still run

One execution that fails here hinders no other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar
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
from tenants import clock
from tenants.context import system_scope, tenant_scope
from tenants.current_tenant import current_tenant

logger = logging.getLogger(__name__)

PAGE = 500
TURN_SECONDS = (
    30.0  # Then the queue gets its worker back. While there is something to do, the next hint is on its way.
)


def fire() -> int:
    """Fire what is due, and expand what begins with it; how many executions that are."""
    return _expand(firing.fire_due())


def fire_one(tenant_id: UUID, schedule_id: UUID) -> int:
    """Beat has ticked for a schedule: if one of its times has come, it is fired; how many executions begin."""
    return _expand([(tenant_id, pk) for pk in firing.fire(tenant_id, schedule_id)])


def check() -> int:
    """Everything, once per check interval: what hints that got lost would have said. Takes up a new interval, too.

    How many executions were begun or looked at.
    """
    with system_scope():
        beat.keep_check()
    return fire() + tend()


def tend() -> int:
    """Bring every execution on that has something to do; how many were looked at."""
    return expand() + settle() + close()


def expand() -> int:
    return _expand(_list_keys(list_unexpanded()))


def settle() -> int:
    return _each(_list_keys(list_unsettled()), _settle)


def close() -> int:
    return _each(_list_keys(list_uncancelled()), executions.close_jobs)


def list_unexpanded() -> QuerySet[ScheduleExecution]:
    """Executions that nobody has begun to expand, or whose expansion was cut off."""
    forgotten = Q(touched_at__isnull=True) | Q(touched_at__lt=Now() - lifecycle.PATIENCE)
    return _list_unfinished().filter(forgotten, status=ExecutionStatus.RUNNING, expanded_at__isnull=True)


def list_unsettled() -> QuerySet[ScheduleExecution]:
    """Executions that end, start a batch, or begin: none of their jobs is at work, some wait for room, a batch waits for one that has
    begun, or nothing of their schedule is at work.
    """
    jobs = ScheduleJob.objects.filter(execution_id=OuterRef("pk"), state__in=OPEN)
    first = Coalesce(Subquery(jobs.order_by("batch").values("state")[:1]), Value(""))
    before = ScheduleExecution.objects.filter(
        schedule_id=OuterRef("schedule_id"), status=ExecutionStatus.RUNNING
    )
    put_off = Q(Exists(jobs.filter(state=JobState.WAITING, error__isnull=False)))
    idle = Q(expanded_at__isnull=False) & ~Q(status=ExecutionStatus.QUEUED)
    idle &= ~Q(first=JobState.ENQUEUED) | put_off | Q(Exists(_waiting_for_a_batch_that_has_begun()))
    return (
        _list_unfinished()
        .annotate(first=first)
        .filter(idle | (Q(status=ExecutionStatus.QUEUED) & ~Exists(before)))
    )


def _waiting_for_a_batch_that_has_begun() -> QuerySet[ScheduleJob]:
    """Jobs of an execution whose batches wait for the beginning of those before; where they wait for their end, there are none."""
    at_work = Activity.objects.filter(pk=OuterRef("activity_id"), started_at__isnull=False)
    begun = ScheduleJob.objects.filter(execution_id=OuterRef("execution_id"), batch=OuterRef("batch") - 1)
    begun = begun.filter(Q(ended_at__isnull=False) | Q(pipeline_run_id__isnull=False) | Q(Exists(at_work)))
    waiting = ScheduleJob.objects.filter(
        execution_id=OuterRef("pk"), state=JobState.WAITING, error__isnull=True
    )
    return waiting.filter(Exists(begun), execution__metadata__batch_gate=BatchGate.START)


def list_uncancelled() -> QuerySet[ScheduleExecution]:
    """Cancelled executions with jobs at work."""
    jobs = ScheduleJob.objects.filter(execution_id=OuterRef("pk"), state__in=OPEN)
    return _list_unfinished().filter(Exists(jobs), status=ExecutionStatus.CANCELLED)


def _list_unfinished() -> QuerySet[ScheduleExecution]:
    """By the index of those that have not finished."""
    rows: QuerySet[ScheduleExecution] = ScheduleExecution.objects.filter(finished_at__isnull=True)
    return rows


def _expand(found: Sequence[tuple[UUID, UUID]]) -> int:
    _each(lifecycle.expand_all(found), lifecycle.expand)
    return len(found)


def _list_keys(rows: QuerySet[ScheduleExecution]) -> list[tuple[UUID, UUID]]:
    with system_scope():
        return list(rows.order_by("pk").values_list("tenant_id", "pk")[:PAGE])


def _settle(tenant_id: UUID, execution_id: UUID) -> None:
    lifecycle.begin_queued_alone(tenant_id, execution_id)
    following = lifecycle.settle_jobs(tenant_id, execution_id)
    lifecycle.expand(tenant_id, execution_id if following is None else following)


def _each(found: Iterable[tuple[UUID, UUID]], work: Callable[[UUID, UUID], object]) -> int:
    """Do it for all of them, for as long as a turn lasts; how many it was done for."""
    ends, done = time.monotonic() + TURN_SECONDS, 0
    for tenant_id, execution_id in found:
        done += 1
        try:
            work(tenant_id, execution_id)
        except Exception:
            logger.exception(
                "Execution not tended",
                extra={"action": "execution_not_tended", "execution": str(execution_id)},
            )
        if time.monotonic() > ends:
            break
    return done


# By hand: somebody has a schedule run now, whatever its times and whether or not it is enabled.


class ExecutionUnderWay(PipelineError):
    """The execution before has not ended, and the schedule does not allow another beside it."""

    code: ClassVar[str] = "execution_under_way"


def run_now(tenant_id: UUID, schedule_id: UUID, *, actor: str) -> ScheduleExecution:
    """Begin an execution that belongs to no nominal time. Raises `NotFound`, `ExecutionUnderWay`.

    Within somebody else's transaction it is expanded by the background task, some seconds later; else here.
    """
    is_outermost = current_tenant() is None
    with tenant_scope(tenant_id):
        rows = Schedule.objects.for_tenant(tenant_id).filter(pk=schedule_id)
        schedule = rows.select_for_update(of=("self",)).first()
        if schedule is None:
            raise NotFound("schedule", schedule_id)
        execution = executions.begin(
            schedule, nominal_at=None, status=_status_beside_others(schedule), created_by=actor
        )
        rows.update(last_run_at=clock.now())
    if is_outermost and execution.status == ExecutionStatus.RUNNING:
        lifecycle.expand(tenant_id, execution.pk)
        with tenant_scope(tenant_id):
            execution = ScheduleExecution.objects.for_tenant(tenant_id).get(pk=execution.pk)
    return execution


def _status_beside_others(schedule: Schedule) -> ExecutionStatus:
    under_way = executions.active(schedule).values_list("pk", flat=True).first()
    if schedule.overlap == Overlap.ALLOW or under_way is None:
        return ExecutionStatus.RUNNING
    if schedule.overlap == Overlap.QUEUE_ONE and not executions.is_queued(schedule):
        return ExecutionStatus.QUEUED
    raise ExecutionUnderWay(f"Execution {under_way} has not ended. Cancel it, or wait for it.")
