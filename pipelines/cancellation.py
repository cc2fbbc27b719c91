"""Cancels a run: flags the run first, then cancels its activities one by one.

These are separate transactions, because an activity's transition locks the activity and then the run. Locking the run first and then its
activities could deadlock. A crash in between leaves a cancelled run with activities that still work. They start no further steps, and
cancelling the run again cancels them.
"""

from __future__ import annotations

from uuid import UUID

from django.db.models.functions import Now

from activities import cancellation as activity_cancellation
from activities.exceptions import TransitionRefused
from activities.models import Activity
from activities.states import FINAL
from pipelines import period_counts
from pipelines.exceptions import NotFound, RunEnded
from pipelines.models import PipelineRun, StepRun
from tenants.context import tenant_scope


def cancel_run(tenant_id: UUID, run_id: UUID, *, actor: str, reason: str = "") -> PipelineRun:
    """Cancel a run. Raises `NotFound`, and `RunEnded` if it has completed or failed."""
    with tenant_scope(tenant_id):
        flagged = (
            PipelineRun.objects.for_tenant(tenant_id)
            .filter(pk=run_id, status="running")
            .update(status="cancelled", finished_at=Now())
        )
        run = PipelineRun.objects.for_tenant(tenant_id).get_or_raise(NotFound, "pipeline run", run_id)
        if not flagged and run.status != "cancelled":
            raise RunEnded(f"The run has {run.status} already.")
        period_counts.run_changed(run)
        # Its pending steps are no longer decided and no longer time out.
        StepRun.objects.for_tenant(tenant_id).filter(run_id=run_id, status="pending").update(
            waits_until=None, reason=""
        )
        open_activities = (
            Activity.objects.for_tenant(tenant_id).filter(pipeline_run_id=run_id).exclude(status__in=FINAL)
        )
        ids = list(open_activities.order_by("pk").values_list("pk", flat=True))
    for activity_id in ids:
        try:
            activity_cancellation.cancel(
                tenant_id, activity_id, actor=actor, reason=reason or "The pipeline run was cancelled."
            )
        except TransitionRefused:
            continue  # It has just ended.
    return run
