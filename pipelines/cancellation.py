"""Cancelling a run: first the run is flagged, then its activities are cancelled one by one.

Two transactions on purpose: an activity's move locks the activity and then the run, so a transaction that held the run first and then
asked for its activities would wait for one that waits for it. A crash in between leaves a cancelled run with activities that
still work; nothing follows from them, and cancelling again finishes the job.
"""

from __future__ import annotations

from uuid import UUID

from django.db.models.functions import Now

from activities import cancellation as activity_cancellation
from activities.exceptions import TransitionRefused
from activities.models import Activity
from activities.states import FINAL
from pipelines.exceptions import NotFound, RunEnded
from pipelines.models import PipelineRun, StepRun
from tenants.context import tenant_scope

from . import period_counts


def cancel_run(tenant_id: UUID, run_id: UUID, *, actor: str, reason: str = "") -> PipelineRun:
    """Raises `NotFound`, and `RunEnded` when it completed or failed before."""
    with tenant_scope(tenant_id):
        flagged = (
            PipelineRun.objects.for_tenant(tenant_id)
            .filter(pk=run_id, status="running")
            .update(status="cancelled", finished_at=Now())
        )
        run = PipelineRun.objects.for_tenant(tenant_id).filter(pk=run_id).first()
        if run is None:
            raise NotFound("pipeline run", run_id)
        if not flagged and run.status != "cancelled":
            raise RunEnded(f"The run has {run.status} already.")
        period_counts.run_changed(run)
        # Nothing is decided or waited for any more.
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
            continue  # It ended in this moment.
    return run
