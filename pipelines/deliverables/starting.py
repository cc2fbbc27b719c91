"""Starts the periods of a month with their planners, and cancels periods.

A period and its planner's activity are created in one transaction, so every period has a planner. A second start of the same month, at the
same time or after a crash, creates nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from uuid import UUID

from activities import cancellation as activity_cancellation
from activities.exceptions import TransitionRefused
from activities.models import Activity
from activities.states import FINAL
from activities.submission import submit
from pipelines import period_counts
from pipelines.cancellation import cancel_run
from pipelines.deliverables import planning
from pipelines.exceptions import (
    DeliverableNotActive,
    NotFound,
    PipelineError,
    RunEnded,
)
from pipelines.models import Deliverable, DeliverablePeriod, PipelineRun
from pipelines.models.deliverable import DeliverableState, Month, PeriodState
from pipelines.models.run import RunState
from tenants.context import tenant_scope
from tenants.identifiers import uuid7
from tenants.models import TenantQuerySet

logger = logging.getLogger(__name__)

ACTOR = "schedule:start-new-period"


def start_new_periods(tenant_id: UUID, *, today: date, actor: str = ACTOR) -> list[DeliverablePeriod]:
    """Start the month of `today` for every active deliverable that has no period in it. Returns the new periods.

    Idempotent. A tenant that is switched off gets no periods.
    """
    with tenant_scope(tenant_id):
        # Lock them, so that none is deleted or paused meanwhile, and in a fixed order, because another process may do the same.
        deliverables = list(_active(tenant_id).order_by("pk").select_for_update(of=("self",), no_key=True))
        started = _start(tenant_id, deliverables, Month.of(today), actor)
    if started:
        logger.info(
            "Periods started",
            extra={"action": "periods_started", "tenant": str(tenant_id), "count": len(started)},
        )
    return started


def start_period(
    tenant_id: UUID, deliverable_id: UUID, *, today: date, actor: str
) -> tuple[DeliverablePeriod, bool]:
    """Start or return the period of one deliverable in the month of `today`. The second value says whether it is new.

    Raises `NotFound`, and `DeliverableNotActive` if there is no period yet and none can start.
    """
    with tenant_scope(tenant_id):
        month = Month.of(today)
        active = _active(tenant_id).filter(pk=deliverable_id)
        started = _start(tenant_id, list(active.select_for_update(of=("self",), no_key=True)), month, actor)
        if started:
            return started[0], True
        periods = DeliverablePeriod.objects.for_tenant(tenant_id)
        present = periods.filter(deliverable_id=deliverable_id, starts_on=month.starts_on).first()
        if present is None:
            raise _refusal(tenant_id, deliverable_id)
        return present, False


def _active(tenant_id: UUID) -> TenantQuerySet:
    return Deliverable.objects.for_tenant(tenant_id).filter(
        status=DeliverableState.ACTIVE, tenant__is_active=True
    )


def _start(
    tenant_id: UUID, deliverables: Sequence[Deliverable], month: Month, actor: str
) -> list[DeliverablePeriod]:
    new = _create(tenant_id, deliverables, month)
    due_next = Deliverable.objects.for_tenant(tenant_id).filter(pk__in=[each.pk for each in deliverables])
    due_next.filter(next_on__lt=month.following).update(next_on=month.following)
    if not new:
        return []
    started = [deliverable for deliverable in deliverables if deliverable.pk in new]
    offers = planning.offers_for(tenant_id, started)
    last = planning.last_periods(tenant_id, new, month.starts_on)
    questions = [
        planning.planner_question(
            deliverable,
            period := new[deliverable.pk],
            offers[deliverable.pk].values(),
            last.get(deliverable.pk),
            activity_id=period.planner_activity_id,
        )
        for deliverable in started
    ]
    submit(questions, actor=actor, bounded=False)  # one a month for each deliverable
    return list(new.values())


def _create(
    tenant_id: UUID, deliverables: Sequence[Deliverable], month: Month
) -> dict[UUID, DeliverablePeriod]:
    periods = [
        DeliverablePeriod(
            id=uuid7(), tenant_id=tenant_id, deliverable=deliverable, starts_on=month.starts_on, ends_on=month.ends_on,
            planner_activity_id=uuid7(), target=deliverable.target,
        )
        for deliverable in deliverables
    ]  # fmt: skip
    if not periods:
        return {}
    DeliverablePeriod.objects.bulk_create(periods, ignore_conflicts=True)
    # Conflicting rows were not written, so the rows with our ids are new.
    created = DeliverablePeriod.objects.for_tenant(tenant_id).filter(pk__in=[period.pk for period in periods])
    return {period.deliverable_id: period for period in created.order_by("deliverable_id")}


def _refusal(tenant_id: UUID, deliverable_id: UUID) -> NotFound | DeliverableNotActive:
    deliverable = Deliverable.objects.for_tenant(tenant_id).filter(pk=deliverable_id).first()
    if deliverable is None:
        return NotFound("deliverable", deliverable_id)
    if deliverable.status != DeliverableState.ACTIVE:
        return DeliverableNotActive(
            f"The deliverable {deliverable.key!r} is {deliverable.status}; make it active first."
        )
    return DeliverableNotActive("The tenant is switched off.")


# Cancelling a period: its row is flagged first, then its planner and its runs are cancelled one by one.
#
# Each is a transaction of its own, as for a run and its activities. A crash in between leaves a cancelled period with runs that still work;
# cancelling the period again cancels them.


REASON = "The period was cancelled."


def cancel_period(tenant_id: UUID, period_id: UUID, *, actor: str, reason: str = "") -> DeliverablePeriod:
    """Cancel a period. Raises `NotFound`, and `PipelineError` if it is completed."""
    with tenant_scope(tenant_id):
        planner_id, runs = _flag_cancelled(tenant_id, period_id)
    if planner_id is not None:
        with suppress(TransitionRefused):  # It has just ended.
            activity_cancellation.cancel(tenant_id, planner_id, actor=actor, reason=reason or REASON)
    for run_id in runs:
        with suppress(RunEnded):
            cancel_run(tenant_id, run_id, actor=actor, reason=reason or REASON)
    with tenant_scope(tenant_id):
        return DeliverablePeriod.objects.for_tenant(tenant_id).get(pk=period_id)


def _flag_cancelled(tenant_id: UUID, period_id: UUID) -> tuple[UUID | None, list[UUID]]:
    """Flag the period. Return its planner if that has not ended, and its runs that may have unfinished work."""
    periods = DeliverablePeriod.objects.for_tenant(tenant_id).filter(pk=period_id)
    flagged = periods.filter(status__in=(PeriodState.PLANNING, PeriodState.ACTIVE)).update(
        status=PeriodState.CANCELLED
    )
    period = periods.first_or_raise(NotFound("period", period_id))
    if not flagged and period.status != PeriodState.CANCELLED:
        raise PipelineError(f"The period is {period.status} already.", code="period_ended")
    if flagged:  # otherwise it is counted, and its runs may be deleted
        period_counts.recount(tenant_id, period_id)
    planners = Activity.objects.for_tenant(tenant_id).filter(pk=period.planner_activity_id)
    runs = PipelineRun.objects.for_tenant(tenant_id).filter(
        period_id=period_id, status__in=(RunState.RUNNING, RunState.CANCELLED)
    )
    return (
        planners.exclude(status__in=FINAL).values_list("pk", flat=True).first(),
        list(runs.order_by("pk").values_list("pk", flat=True)),
    )
