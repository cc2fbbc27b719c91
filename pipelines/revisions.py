"""Rejection inside a pipeline: the step goes on with its revision, or the step that made what a gate refused goes back to work.

The revision itself is made by `activities.human_tasks.approvals`, also for work outside of pipelines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.db.models import F

from activities import cancellation as activity_cancellation
from activities.human_tasks import approvals
from activities.models import Activity
from activities.states import LinkKind
from pipelines import starting, versions
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
    return continue_with(LinkKind.REVISION_OF, activity)


def _cancel_revision(activity: Any) -> None:
    """Nothing new is made in a run that was cancelled: whoever cancelled it has not seen this revision."""
    revisions = Activity.objects.for_tenant(activity.tenant_id).filter(
        parent_id=activity.id, link_kind=LinkKind.REVISION_OF
    )
    for revision_id in revisions.values_list("pk", flat=True):
        activity_cancellation.cancel(
            activity.tenant_id, revision_id, actor="pipeline", reason="The pipeline run was cancelled."
        )


def continue_with(kind: LinkKind, activity: Any) -> bool:
    """Let the revision or the successor of an activity take its place in the run; False when there is none. Under the activity's lock."""
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
    """Make the work behind a human gate anew: every agent step that the gate directly depends on, with all its branches.

    A gate that is asked for each item of a `for_each` sends nothing back: which part of the work its item is about, nobody can tell.
    """
    plan = versions.compiled(run.version_id)
    producers = [step for step in plan.graph.dependencies_of(gate.step) if plan.step(step).agent_role]
    if gate.branch or not producers or gate.round >= settings.ORCHESTRATOR_MAX_ROUNDS:
        return False
    steps = StepRun.objects.filter(run_id=run.pk)
    rejected = list(
        steps.filter(step__in=producers, status=StepState.DONE, activity_id__isnull=False)
        .order_by("position", "branch")
        .select_for_update()
    )
    if not rejected:
        return False
    _revise(run, rejected, gate)
    again = {row.step for row in rejected}
    fanned_out = Counter(row.step for row in rejected if row.branch)
    for step, count in fanned_out.items():
        steps.filter(step=step, branch=0).update(
            status=StepState.ACTIVE, settled_at=None, unsettled_branches=F("unsettled_branches") + count
        )
    steps.filter(step=gate.step, branch=0).update(
        status=StepState.PENDING, activity_id=None, round=gate.round + 1
    )
    starting.let_wait(run, {gate.step: starting.waiting_times(plan, again)[gate.step]})
    runs = PipelineRun.objects.filter(pk=run.pk)
    runs.update(unsettled=F("unsettled") + len(again))
    # What a replay gave the gate to decide on was refused with it: it asks about what is made anew.
    runs.filter(replay_from=gate.step).update(replay_input=None)
    return True


def _revise(run: PipelineRun, rows: Sequence[StepRun], gate: Any) -> None:
    """Make what these rows stand for anew, in one go."""
    activities = Activity.objects.for_tenant(run.tenant_id).in_bulk([row.activity_id for row in rows])
    revisions = [
        # The gate that sent it back asks again; the step's own approval, if it has one, was given before.
        # In a replay the work may be that of the run before, but its next round belongs to this one.
        replace(
            approvals.revision_of(
                activities[row.activity_id], notes=gate.reviewer_notes or "", requires_approval=False
            ),
            pipeline_run_id=run.pk,
        )
        for row in rows
        if row.activity_id
    ]
    made = approvals.submit_revisions(run.tenant_id, revisions, actor=gate.decided_by or "pipeline")
    for row, revision, revision_id in zip(rows, revisions, made, strict=True):
        row.status, row.settled_at = StepState.ACTIVE, None
        row.activity_id, row.round = revision_id, revision.round
    StepRun.objects.bulk_update(rows, ("status", "settled_at", "activity_id", "round"))
