"""A period is called off: first its row says so, then its planner and its runs are cancelled one by one.

Each in its own transaction, as for a run and its activities. A crash in between leaves a cancelled period with runs that still work;
cancelling again finishes the job.
"""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

from activities import cancellation as activity_cancellation
from activities.exceptions import TransitionRefused
from activities.models import Activity
from activities.states import FINAL
from pipelines import tally
from pipelines.cancellation import cancel_run
from pipelines.exceptions import PeriodEnded, PeriodNotFound, RunEnded
from pipelines.models import DeliverablePeriod, PipelineRun
from pipelines.models.deliverable import PeriodState
from pipelines.models.run import RunState
from tenants.context import tenant_scope

REASON = "The period was cancelled."


def cancel_period(tenant_id: UUID, period_id: UUID, *, actor: str, reason: str = "") -> DeliverablePeriod:
    """Raises `PeriodNotFound`, and `PeriodEnded` when it is completed."""
    with tenant_scope(tenant_id):
        planner_id, runs = _call_off(tenant_id, period_id)
    if planner_id is not None:
        with suppress(TransitionRefused):  # It ended in this moment.
            activity_cancellation.cancel(tenant_id, planner_id, actor=actor, reason=reason or REASON)
    for run_id in runs:
        with suppress(RunEnded):
            cancel_run(tenant_id, run_id, actor=actor, reason=reason or REASON)
    with tenant_scope(tenant_id):
        return DeliverablePeriod.objects.for_tenant(tenant_id).get(pk=period_id)


def _call_off(tenant_id: UUID, period_id: UUID) -> tuple[UUID | None, list[UUID]]:
    """Flag the period. Returns its planner if that has not ended, and its runs that may have something under way."""
    periods = DeliverablePeriod.objects.for_tenant(tenant_id).filter(pk=period_id)
    flagged = periods.filter(status__in=(PeriodState.PLANNING, PeriodState.ACTIVE)).update(
        status=PeriodState.CANCELLED
    )
    period = periods.first()
    if period is None:
        raise PeriodNotFound(f"There is no period {period_id}.")
    if not flagged and period.status != PeriodState.CANCELLED:
        raise PeriodEnded(f"The period is {period.status} already.")
    tally.recount(tenant_id, period_id)
    planners = Activity.objects.for_tenant(tenant_id).filter(pk=period.planner_activity_id)
    runs = PipelineRun.objects.for_tenant(tenant_id).filter(
        period_id=period_id, status__in=(RunState.RUNNING, RunState.CANCELLED)
    )
    return (
        planners.exclude(status__in=FINAL).values_list("pk", flat=True).first(),
        list(runs.order_by("pk").values_list("pk", flat=True)),
    )
