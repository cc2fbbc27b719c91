"""Progression: what follows in a pipeline's run when one of its activities has settled.

Runs inside the transaction that settled the activity, so result and next step are recorded together or not at all. The run's row is
locked before any step is looked at: two last steps that finish together would each see the other as under way. Everything here may
be repeated: a step that is not active settles nothing, a step that is not pending starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Now

from activities.decision_rules import DecisionRules, Later
from activities.exceptions import TransitionRefused
from activities.states import LinkKind, Status
from activities.submission import NewActivity, submit
from pipelines import revisions, tally, versions
from pipelines.definition import StepDefinition
from pipelines.graph import Advance, RunOutcome, StepState
from pipelines.models import PipelineRun, StepRun
from pipelines.versions import Compiled
from tenants.context import APP
from tenants.identifiers import uuid7
from tenants.sql import Statement

_FOLDER = Path(__file__).parent / "sql"
_SETTLE, _ACTIVATE = (Statement.load(_FOLDER, name) for name in ("settle_step", "activate_steps"))

_ACTOR = "pipeline"
_GOOD = (Status.DONE, Status.APPROVED)
#: These are about an activity of a step; they are not the step.
_ASIDE = (
    LinkKind.GATE, LinkKind.APPROVAL, LinkKind.RESOLUTION, LinkKind.REVIEW, LinkKind.ESCALATION, LinkKind.SUBTASK,
)  # fmt: skip


def first_activities(runs: Sequence[PipelineRun], plan: Compiled) -> list[NewActivity]:
    """What the steps that depend on nothing have to do, for runs that are being created."""
    return [_activity(run, plan, step, None, uuid7(), 1) for run in runs for step in plan.graph.roots()]


def advance(activity: Any) -> None:
    """Move on the run of an activity that has just settled. `activity` is a `transitions.Moved`."""
    if _is_aside(activity):
        return
    if activity.status == Status.REASSIGNED:
        _go_on_with_heir(activity)
        return
    if activity.status == Status.REJECTED and revisions.follow_rejection(activity):
        return
    good = activity.status in _GOOD
    rows = _SETTLE.run(
        {
            "tenant": activity.tenant_id,
            "run": activity.pipeline_run_id,
            "step": activity.step,
            "branch": activity.branch,
            "state": StepState.DONE if good else StepState.FAILED,
            # A gate has no output of its own: what it approved goes on.
            "output": activity.output_ref or activity.input_ref,
        },
        using=APP,
    )
    if not rows or not rows[0].settled or rows[0].status != "running":
        return
    run, plan = rows[0], versions.compiled(rows[0].version_id)
    following = _following(run, plan, activity, good)
    _skip(run, following.skip)
    _start(run, plan, following.start, activity)
    if run.unsettled - len(following.skip) == 0:
        finish(run.tenant_id, run.id, plan)
        tally.run_changed(run)


def _is_aside(activity: Any) -> bool:
    """Whether no step of a run hangs on it: it belongs to none, or is about an activity that does."""
    return activity.pipeline_run_id is None or activity.step is None or activity.link_kind in _ASIDE


def _go_on_with_heir(activity: Any) -> None:
    """The step is the heir's from now on. One that had failed is under way again, and what was skipped because of it waits.

    Raises `TransitionRefused` in a run that was cancelled: whoever cancelled it has not seen this heir.
    """
    run = (
        PipelineRun.objects.for_tenant(activity.tenant_id)
        .select_for_update()
        .get(pk=activity.pipeline_run_id)
    )
    if run.status == "cancelled":
        raise TransitionRefused(
            activity.id, "reassign", activity.source, f"Pipeline run {run.pk} was cancelled."
        )
    if activity.source in (Status.FAILED, Status.NEEDS_REVIEW):
        reopen(activity)
    revisions.go_on_with(LinkKind.REASSIGNED_FROM, activity)


def _following(run: Any, plan: Compiled, activity: Any, good: bool) -> Advance:
    """What starts and what is skipped. A chain needs no look at the other steps; a join waits for its last one."""
    dependents = plan.graph.dependents_of(activity.step)
    if good and all(plan.graph.dependencies_of(step) == (activity.step,) for step in dependents):
        return Advance(start=dependents)
    if good and all(_still_waits(run, plan, step) for step in dependents):
        return Advance()
    return plan.graph.after(activity.step, states_of(run.id))


def _still_waits(run: Any, plan: Compiled, step: str) -> bool:
    """Whether one of the steps that `step` depends on has not settled."""
    dependencies = plan.graph.dependencies_of(step)
    # More steps are unsettled than there are others: one of them must be a dependency. Spares a wide join a thousand looks.
    if run.unsettled > len(plan.graph.dependencies) - len(dependencies):
        return True
    unsettled = StepRun.objects.filter(run_id=run.id, status__in=(StepState.PENDING, StepState.ACTIVE))
    return unsettled.filter(step__in=dependencies).exists()


def states_of(run_id: UUID) -> dict[str, str]:
    return dict(StepRun.objects.filter(run_id=run_id).values_list("step", "status"))


def _skip(run: Any, steps: Sequence[str]) -> None:
    if steps:
        StepRun.objects.filter(run_id=run.id, step__in=steps, status=StepState.PENDING).update(
            status=StepState.SKIPPED, settled_at=Now()
        )
        PipelineRun.objects.filter(pk=run.id).update(unsettled=F("unsettled") - len(steps))


def _start(run: Any, plan: Compiled, steps: Sequence[str], activity: Any) -> None:
    if not steps:
        return
    outputs = {activity.step: activity.output_ref or activity.input_ref}
    if any(len(plan.graph.dependencies_of(step)) > 1 for step in steps):
        outputs = dict(
            StepRun.objects.filter(run_id=run.id, output_ref__isnull=False).values_list("step", "output_ref")
        )
    items = [_activity(run, plan, step, outputs, uuid7(), 1) for step in steps]
    rounds = _activate(run.tenant_id, run.id, items)
    submit([_in_round(item, rounds[item.step]) for item in items if item.step in rounds], actor=_ACTOR)


def _activate(tenant_id: UUID, run_id: UUID, items: Sequence[NewActivity]) -> dict[str, int]:
    rows = _ACTIVATE.run(
        {
            "tenant": tenant_id,
            "run": run_id,
            "steps": [item.step for item in items],
            "activities": [item.id for item in items],
        },
        using=APP,
    )
    return {row.step: row.round for row in rows}


def _in_round(item: NewActivity, number: int) -> NewActivity:
    return item if number == 1 else replace(item, round=number)


def _activity(
    run: Any, plan: Compiled, step_id: str, outputs: Mapping[str, UUID] | None, activity_id: UUID, number: int
) -> NewActivity:
    step = plan.step(step_id)
    references = (
        [(name, outputs[name]) for name in plan.graph.dependencies_of(step_id) if name in outputs]
        if outputs
        else []
    )
    given = dict(run.input) if run.input and not references else None
    if len(references) > 1:
        given = {"refs": {name: str(reference) for name, reference in references}}
    return NewActivity(
        id=activity_id,
        name=step.title,
        description=step.description,
        agent_role=step.agent_role,
        human_role=step.human_role,
        is_approval_gate=step.is_approval_gate,
        requires_approval=step.requires_approval,
        priority=step.priority or run.priority,
        params={**run.params, **step.params},
        input=given,
        input_ref=references[0][1] if references else None,
        deliverable_id=run.deliverable_id,
        pipeline_run_id=run.id,
        step=step_id,
        round=number,
        decision_rules=_rules_of(step, run.requested_identity),
        schedule_id=run.schedule_id,
        timeout_seconds=int(step.timeout_seconds) if step.timeout_seconds else run.timeout_seconds,
        retry=step.retry.to_dict() if step.retry else run.retry,
    )


def _rules_of(step: StepDefinition, asked_by: str) -> dict[str, Any] | None:
    """How people decide the step, or the result of its agent, whose gate takes the rules over when it is opened."""
    if not (step.human_role or step.requires_approval):
        return None
    quorum = step.quorum or 1
    alone = quorum == 1 and (step.voters or 1) == 1
    self_approval = alone if step.self_approval is None else step.self_approval
    rules = DecisionRules(
        due_seconds=step.due_seconds,
        reminders=[Later(later.after_seconds, later.human_role or "") for later in step.reminders],
        escalation=[Later(later.after_seconds, later.human_role) for later in step.escalation],
        on_timeout=step.on_timeout.value if step.on_timeout else None,
        quorum=quorum,
        voters=step.voters,
        asked_by="" if self_approval else asked_by,
        self_approval=self_approval,
    )
    return rules.stored()


def finish(tenant_id: UUID, run_id: UUID, plan: Compiled) -> None:
    """End a run whose steps have all settled. In the transaction that holds its lock."""
    failed = plan.graph.outcome(states_of(run_id)) == RunOutcome.FAILED
    PipelineRun.objects.for_tenant(tenant_id).filter(pk=run_id, status="running").update(
        status="failed" if failed else "completed", failed=failed, finished_at=Now()
    )


def reopen(activity: Any) -> None:
    """An operator tries a failed step again: its run goes on, and what was skipped because of it waits again."""
    if _is_aside(activity):
        return
    run = (
        PipelineRun.objects.for_tenant(activity.tenant_id)
        .select_for_update()
        .get(pk=activity.pipeline_run_id)
    )
    if run.status == "cancelled":
        return
    steps = StepRun.objects.filter(run_id=run.pk)
    revived = steps.filter(step=activity.step, branch=activity.branch, status=StepState.FAILED).update(
        status=StepState.ACTIVE, settled_at=None
    )
    if not revived:
        return
    downstream = _downstream(versions.compiled(run.version_id), activity.step)
    waiting = steps.filter(step__in=downstream, status=StepState.SKIPPED).update(
        status=StepState.PENDING, settled_at=None
    )
    PipelineRun.objects.filter(pk=run.pk).update(
        status="running", failed=False, finished_at=None, unsettled=F("unsettled") + revived + waiting
    )
    tally.run_changed(run)


def _downstream(plan: Compiled, step: str) -> set[str]:
    found: set[str] = set()
    to_visit = [step]
    while to_visit:
        for dependent in plan.graph.dependents_of(to_visit.pop()):
            if dependent not in found:
                found.add(dependent)
                to_visit.append(dependent)
    return found
