"""Working: portions of bulk jobs, one transaction each, until nothing waits or the time is up.

The row of the job is locked for the portion, so of two workers one deals with it and the other goes on to the next job. Whoever dies
loses the portion's transaction with everything in it.
"""

from __future__ import annotations

import logging
import time
from uuid import UUID

from django.db.models import F, QuerySet
from django.db.models.functions import Coalesce, Now

from activities.bulk import deeds
from activities.bulk.deeds import Outcome
from activities.models import BulkItem, BulkJob
from activities.models.bulk import BulkStatus, ItemState
from tenants import outages
from tenants.context import system_scope, tenant_scope

logger = logging.getLogger(__name__)

PORTION = 100  # activities that one statement moves; its cost grows with the square of their number
TURN_SECONDS = 20.0  # of one task; the leader hints again while jobs are left


def waiting() -> QuerySet[BulkJob]:
    """Jobs with something to do, of all tenants."""
    return BulkJob.objects.filter(status=BulkStatus.RUNNING)


def work(within: float = TURN_SECONDS) -> int:
    """Deal with what waits, a portion of each job in turn; how many items that were. Safe to run twice at once."""
    until, dealt_with = time.monotonic() + within, 0
    while time.monotonic() < until:
        with system_scope():
            jobs = list(waiting().order_by("created_at").values_list("tenant_id", "pk"))
        found = [_safely(tenant_id, job_id) for tenant_id, job_id in jobs]
        dealt_with += sum(found)
        if not any(found):
            break
    return dealt_with


def _safely(tenant_id: UUID, job_id: UUID) -> int:
    try:
        return portion(tenant_id, job_id)
    except Exception as error:
        if outages.may_pass(error):
            # A deadlock, or a server that goes away: the portion has not happened, and is tried again.
            facts = {"action": "bulk_portion_failed", "job": str(job_id), "reason": type(error).__name__}
            logger.warning("A portion of a bulk job failed", extra=facts)
            return 0
        # One that cannot be helped must not keep the jobs behind it from their turn. It is tried again at the next one.
        logger.exception("A bulk job broke", extra={"action": "bulk_job_broke", "job": str(job_id)})
        return 0


def portion(tenant_id: UUID, job_id: UUID) -> int:
    """Deal with the next items of one job; how many. 0 when somebody else is at it, or it has ended."""
    with tenant_scope(tenant_id):
        running = BulkJob.objects.for_tenant(tenant_id).filter(pk=job_id, status=BulkStatus.RUNNING)
        job = running.select_for_update(skip_locked=True, no_key=True).first()
        if job is None:
            return 0
        items = BulkItem.objects.for_tenant(tenant_id).filter(job_id=job_id, state=ItemState.WAITING)
        chosen = list(items.filter(alone=False).order_by("activity_id")[:PORTION])
        if chosen:
            outcomes = deeds.together(job, [item.activity_id for item in chosen])
        elif chosen := list(items.filter(alone=True).order_by("activity_id")[:1]):
            outcomes = {item.activity_id: deeds.alone(job, item.activity_id) for item in chosen}
        else:
            running.update(
                status=BulkStatus.COMPLETED, finished_at=Now(), started_at=Coalesce(F("started_at"), Now())
            )
            return 0
        _record(job, chosen, outcomes)
        return len(chosen)


def _record(job: BulkJob, items: list[BulkItem], outcomes: dict[UUID, Outcome]) -> None:
    counts = dict.fromkeys((ItemState.DONE, ItemState.SKIPPED, ItemState.FAILED), 0)
    by_state: dict[ItemState | None, list[UUID]] = {}
    for item in items:
        outcome = outcomes[item.activity_id]
        if outcome.error is not None:
            item.error = dict(outcome.error)
        by_state.setdefault(outcome.state, []).append(item.pk)
    BulkItem.objects.bulk_update([item for item in items if item.error], ("error",))
    rows = BulkItem.objects.for_tenant(job.tenant_id)
    for state, ids in by_state.items():
        if state is None:
            rows.filter(pk__in=ids).update(alone=True)
        else:
            counts[state] += len(ids)
            rows.filter(pk__in=ids).update(state=state, ended_at=Now())
    BulkJob.objects.for_tenant(job.tenant_id).filter(pk=job.pk).update(
        updated_at=Now(),
        started_at=Coalesce(F("started_at"), Now()),
        **{state.value: F(state.value) + count for state, count in counts.items()},
    )
