"""Rejection inside a pipeline: the step goes on with its revision, or the step that made what a gate refused goes back to work."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import F

from activities import approvals
from activities import cancellation as activity_cancellation
from activities.models import Activity
from activities.states import LinkKind
from pipelines import versions
from pipelines.graph import StepState
from pipelines.models import PipelineRun, StepRun


def follow_rejection(activity: Any) -> bool:
    """Keep the run going after a rejection; False when nothing follows and the step has failed.

    Called under the activity's lock; takes the run's.
    """
    run = (
        PipelineRun.objects.for_tenant(activity.tenant_id)
        .select_for_update()
        .get(pk=activity.pipeline_run_id)
    )
    if run.status == "cancelled":
        _cancel_revision(activity)
    if run.status != "running":
        return True
    if activity.is_approval_gate:
        return _send_back(run, activity)
    return go_on_with(LinkKind.REVISION_OF, activity)


def _cancel_revision(activity: Any) -> None:
    """Nothing new is made in a run that was cancelled: whoever cancelled it has not seen this revision."""
    revisions = Activity.objects.for_tenant(activity.tenant_id).filter(
        parent_id=activity.id, link_kind=LinkKind.REVISION_OF
    )
    for revision_id in revisions.values_list("pk", flat=True):
        activity_cancellation.cancel(
            activity.tenant_id, revision_id, actor="pipeline", reason="The pipeline run was cancelled."
        )


def go_on_with(kind: LinkKind, activity: Any) -> bool:
    """Let the revision or the heir of an activity take its place in the run; False when there is none. Under the activity's lock."""
    successor = (
        Activity.objects.for_tenant(activity.tenant_id).filter(parent_id=activity.id, link_kind=kind).first()
    )
    if successor is None:
        return False
    steps = StepRun.objects.filter(
        run_id=activity.pipeline_run_id, step=activity.step, branch=activity.branch, activity_id=activity.id
    )
    steps.update(activity_id=successor.pk, round=successor.round)
    return True


def _send_back(run: PipelineRun, gate: Any) -> bool:
    """Make the work behind a human gate anew: every agent step that the gate directly depends on."""
    plan = versions.compiled(run.version_id)
    producers = [step for step in plan.graph.dependencies_of(gate.step) if plan.step(step).agent_role]
    if not producers or gate.round >= settings.ORCHESTRATOR_MAX_ROUNDS:
        return False
    made = [revision for step in producers if (revision := _revise(run, step, gate))]
    if not made:
        return False
    StepRun.objects.filter(run_id=run.pk, step=gate.step, branch=gate.branch).update(
        status=StepState.PENDING, activity_id=None, round=gate.round + 1
    )
    return True


def _revise(run: PipelineRun, step: str, gate: Any) -> UUID | None:
    producing = StepRun.objects.select_for_update().get(run_id=run.pk, step=step, branch=gate.branch)
    if producing.activity_id is None or producing.status != StepState.DONE:
        return None
    rejected = Activity.objects.for_tenant(run.tenant_id).get(pk=producing.activity_id)
    # The gate that sent it back asks again; the step's own approval, if it has one, was given before.
    revision = approvals.revise(
        rejected,
        notes=gate.reviewer_notes or "",
        actor=gate.decided_by or "pipeline",
        requires_approval=False,
    )
    StepRun.objects.filter(pk=producing.pk).update(
        status=StepState.ACTIVE, activity_id=revision, round=rejected.round + 1, settled_at=None
    )
    PipelineRun.objects.filter(pk=run.pk).update(unsettled=F("unsettled") + 1)
    return revision
