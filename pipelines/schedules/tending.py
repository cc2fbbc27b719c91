"""Tending: what errands do for schedules. Rows say what there is to do, so a hint that is lost, late or double changes nothing.

    due        times have come                              unexpanded  executions without all of their jobs
    unsettled  batches to let go, executions that end       uncancelled jobs of cancelled executions that go on

One execution that cannot be tended hinders no other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, Now

from pipelines.jobs import OPEN
from pipelines.models import ScheduleExecution, ScheduleJob
from pipelines.models.execution import ExecutionStatus
from pipelines.models.schedule_job import JobState
from pipelines.schedules import beat, ending, executions, expanding, firing
from tenants.context import system_scope

logger = logging.getLogger(__name__)

PAGE = 500
TURN_SECONDS = (
    30.0  # Then the queue gets its worker back. While there is something to do, the next hint is on its way.
)


def fire() -> int:
    """Fire what is due, and expand what begins with it; how many executions that are."""
    return _expand(firing.fire_due())


def fire_one(tenant_id: UUID, schedule_id: UUID, *, now: datetime | None = None) -> int:
    """Beat has ticked for a schedule: if one of its times has come, it is fired; how many executions begin."""
    return _expand([(tenant_id, pk) for pk in firing.fire(tenant_id, schedule_id, now=now)])


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
    return _expand(_listed(unexpanded()))


def settle() -> int:
    return _each(_listed(unsettled()), _settle)


def close() -> int:
    return _each(_listed(uncancelled()), executions.close_jobs)


def unexpanded() -> QuerySet[ScheduleExecution]:
    """Executions that nobody has begun to expand, or whose expansion was cut off."""
    forgotten = Q(touched_at__isnull=True) | Q(touched_at__lt=Now() - expanding.PATIENCE)
    return _unfinished().filter(forgotten, status=ExecutionStatus.RUNNING, expanded_at__isnull=True)


def unsettled() -> QuerySet[ScheduleExecution]:
    """Executions that end, let a batch go, or begin: none of their jobs is at work, some wait for room, or nothing of their schedule is
    at work.
    """
    jobs = ScheduleJob.objects.filter(execution_id=OuterRef("pk"), state__in=OPEN)
    first = Coalesce(Subquery(jobs.order_by("batch").values("state")[:1]), Value(""))
    before = ScheduleExecution.objects.filter(
        schedule_id=OuterRef("schedule_id"), status=ExecutionStatus.RUNNING
    )
    put_off = Q(Exists(jobs.filter(state=JobState.WAITING, error__isnull=False)))
    idle = Q(expanded_at__isnull=False) & ~Q(status=ExecutionStatus.QUEUED)
    idle &= ~Q(first=JobState.ENQUEUED) | put_off
    return (
        _unfinished()
        .annotate(first=first)
        .filter(idle | (Q(status=ExecutionStatus.QUEUED) & ~Exists(before)))
    )


def uncancelled() -> QuerySet[ScheduleExecution]:
    """Cancelled executions with jobs at work."""
    jobs = ScheduleJob.objects.filter(execution_id=OuterRef("pk"), state__in=OPEN)
    return _unfinished().filter(Exists(jobs), status=ExecutionStatus.CANCELLED)


def _unfinished() -> QuerySet[ScheduleExecution]:
    """By the index of those that have not finished."""
    rows: QuerySet[ScheduleExecution] = ScheduleExecution.objects.filter(finished_at__isnull=True)
    return rows


def _expand(found: Sequence[tuple[UUID, UUID]]) -> int:
    _each(expanding.expand_all(found), expanding.expand)
    return len(found)


def _listed(rows: QuerySet[ScheduleExecution]) -> list[tuple[UUID, UUID]]:
    with system_scope():
        return list(rows.order_by("pk").values_list("tenant_id", "pk")[:PAGE])


def _settle(tenant_id: UUID, execution_id: UUID) -> None:
    ending.begin_stranded(tenant_id, execution_id)
    following = ending.settle(tenant_id, execution_id)
    expanding.expand(tenant_id, execution_id if following is None else following)


def _each(found: Iterable[tuple[UUID, UUID]], deed: Callable[[UUID, UUID], object]) -> int:
    """Do it for all of them, for as long as a turn lasts; how many it was done for."""
    ends, done = time.monotonic() + TURN_SECONDS, 0
    for tenant_id, execution_id in found:
        done += 1
        try:
            deed(tenant_id, execution_id)
        except Exception:
            logger.exception(
                "Execution not tended",
                extra={"action": "execution_not_tended", "execution": str(execution_id)},
            )
        if time.monotonic() > ends:
            break
    return done
