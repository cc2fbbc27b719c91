"""Starts steps of a run: builds their activities, and creates them in the statement that marks the steps as active.

Everything here may be repeated, because only a pending step can start. The caller's transaction holds the run's lock, or creates the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import ceil
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from activities import backlog
from activities.decision_rules import DecisionRules, Later
from activities.states import BANDS
from activities.submission import Beginning, NewActivity, begin, newcomers, submit
from pipelines import conditions, inputs, parameters
from pipelines.conditions import Item
from pipelines.definition import StepDefinition
from pipelines.graph import StepState
from pipelines.inputs import Reference, References
from pipelines.models import PipelineRun, StepRun
from pipelines.models.run import StepReason
from pipelines.versions import Compiled
from tenants import clock
from tenants.context import APP
from tenants.sql import Array, Statement

ACTOR = "pipeline"

_SQL = Path(__file__).parent / "sql"
_ACTIVATE = (_SQL / "activate_steps.sql").read_text(encoding="utf-8")
_FAN_OUT = Statement.load(_SQL, "fan_out")


def first_activities(runs: Sequence[PipelineRun], plan: Compiled) -> list[NewActivity]:
    """Return the activities of the first steps of new runs: those without dependencies and conditions."""
    roots = [step for step in plan.graph.roots() if step not in plan.conditional]
    return [_activity(run, plan, step, {}) for run in runs for step in roots]


def start(run: Any, plan: Compiled, steps: Sequence[str], left: References) -> None:
    """Start these steps, which read the outputs that others have `left`. Steps without room wait for `waiting_steps.steps_unadmitted`."""
    items = [_activity(run, plan, step, inputs.of_step(plan, step, left)) for step in steps]
    items = _admit(run, [[item] for item in items])
    steps = [item.step for item in items if item.step]
    if not steps:
        return
    timeouts = _timeouts(plan, steps)
    parameters = {
        "runs": Array([run.id] * len(steps)),
        "steps": Array(steps),
        "activities": Array(item.id for item in items),
        "waiting_runs": Array([run.id] * len(timeouts["waiting"])),
        **timeouts,
    }
    begin(items, Beginning(_ACTIVATE, parameters), actor=ACTOR)


def _admit(run: Any, groups: Sequence[Sequence[NewActivity]]) -> list[NewActivity]:
    """Return the items of those groups for which the backlog has room. The steps of the others are marked as waiting for room."""
    admitted: list[NewActivity] = []
    enter = backlog.entering(run.tenant_id, [newcomers(group) for group in groups])
    for group, enters in zip(groups, enter, strict=True):
        if enters:
            admitted += group
        else:
            pending = StepRun.objects.filter(
                run_id=run.id, step=group[0].step, branch=0, status=StepState.PENDING
            )
            pending.update(reason=StepReason.BACKLOG)
    return admitted


def fan_out(
    run: Any,
    plan: Compiled,
    step: str,
    items: Sequence[Item],
    left: References,
) -> None:
    """Start a step with one branch for each of the items, of which there is at least one. All branches start, or none without room."""
    references = inputs.of_branch(plan, step, left)
    branches = [
        _branch(run, plan, step, references, number, item) for number, item in enumerate(items, start=1)
    ]
    if not _admit(run, [branches]):
        return
    rows = _FAN_OUT.run(
        {
            "tenant": run.tenant_id,
            "run": run.id,
            "step": step,
            "activities": [branch.id for branch in branches],
            **_timeouts(plan, [step]),
        },
        using=APP,
    )
    if rows:
        submit(
            [replace(branch, round=rows[0].round) for branch in branches],
            actor=ACTOR,
            bounded=False,
        )


def waiting_times(plan: Compiled, steps: Iterable[str]) -> dict[str, float]:
    """Return the dependency time-outs, in seconds, of the steps that depend on one of these."""
    return {
        dependent: plan.patience_of(dependent)
        for step in steps
        for dependent in plan.graph.dependents_of(step)
    }


def begin_waiting(run: Any, times: Mapping[str, float]) -> None:
    """Start these dependency time-outs, in seconds, unless they have started already."""
    by_seconds: dict[float, list[str]] = {}
    for step, seconds in times.items():
        by_seconds.setdefault(seconds, []).append(step)
    for seconds, steps in by_seconds.items():
        StepRun.objects.filter(
            run_id=run.id, step__in=steps, branch=0, status=StepState.PENDING, waits_until=None
        ).update(waits_until=Now() + timedelta(seconds=seconds))


def _timeouts(plan: Compiled, steps: Iterable[str]) -> dict[str, Array]:
    """Return the parameters of both statements that start dependency time-outs."""
    times = waiting_times(plan, steps)
    return {"waiting": Array(times), "seconds": Array(times.values())}


def _branch(
    run: Any, plan: Compiled, step: str, references: Mapping[str, Reference], number: int, item: Item
) -> NewActivity:
    whole = _activity(run, plan, step, references)
    return replace(whole, branch=number, params={**whole.params, **of_item(item)})


def of_item(item: Item) -> dict[str, Any]:
    """Return the parameters of a branch in addition to those of its step."""
    return {conditions.ITEM: item.value, conditions.INDEX: item.index}


def _activity(run: Any, plan: Compiled, step_id: str, references: Mapping[str, Reference]) -> NewActivity:
    step = plan.step(step_id)
    edited = run.replay_input if run.replay_input and run.replay_from == step_id else None
    read = [] if edited else list(references.values())
    single = read[0] if len(read) == 1 and isinstance(read[0], UUID) else None
    return NewActivity(
        name=step.title,
        description=step.description,
        agent_role=step.agent_role,
        human_role=step.human_role,
        is_approval_gate=step.is_approval_gate,
        requires_approval=step.requires_approval,
        priority=step.priority or _inherit_priority(run, plan, step),
        params=parameters.of_step(run.params, step),
        input=None if single else edited or _input(run, references),
        input_ref=single,
        deliverable_id=run.deliverable_id,
        pipeline_run_id=run.id,
        pipeline_id=plan.pipeline_id,
        period_id=run.period_id,
        template=step.template,
        step=step_id,
        decision_rules=_rules_of(step, run.requested_identity),
        schedule_id=run.schedule_id,
        not_before=_date(run, plan, step_id),
        # Rounded up, so that no attempt gets less time than requested, or none at all.
        timeout_seconds=ceil(step.timeout_seconds) if step.timeout_seconds else run.timeout_seconds,
        retry=step.retry.to_dict() if step.retry else run.retry,
    )


def _date(run: Any, plan: Compiled, step: str) -> datetime | None:
    """Return the date of the run if it is still to come, for a step before which no other has started."""
    if run.not_before is None or run.not_before <= clock.now():
        return None
    before = StepRun.objects.filter(run_id=run.id, step__in=plan.graph.ancestors_of(step))
    has_begun = plan.graph.dependencies_of(step) and before.filter(activity_id__isnull=False).exists()
    return None if has_begun else run.not_before


def _inherit_priority(run: Any, plan: Compiled, step: StepDefinition) -> int:
    """Return the priority of the run. After a decision of people it is at least that of the `gated` band."""
    dependencies = (plan.step(before) for before in step.depends_on)
    follows_decision = any(before.is_approval_gate or before.requires_approval for before in dependencies)
    priority: int = run.priority
    return min(priority, BANDS["gated"]) if follows_decision else priority


def _input(run: Any, references: Mapping[str, Reference]) -> dict[str, Any] | None:
    if references:
        return {"refs": {name: _write_reference(reference) for name, reference in references.items()}}
    return dict(run.input) if run.input else None


def _write_reference(reference: Reference) -> Any:
    if isinstance(reference, UUID):
        return str(reference)
    return [str(each) if each else None for each in reference]


def _rules_of(step: StepDefinition, asked_by: str) -> dict[str, Any] | None:
    """Return the decision rules of the step, or of the gate for its agent's result, which copies them when it opens."""
    if not (step.human_role or step.requires_approval):
        return None
    rules = DecisionRules.asked(
        due_seconds=step.due_seconds,
        reminders=[Later(later.after_seconds, later.human_role or "") for later in step.reminders],
        escalation=[Later(later.after_seconds, later.human_role) for later in step.escalation],
        on_timeout=step.on_timeout.value if step.on_timeout else None,
        quorum=step.quorum,
        voters=step.voters,
        asked_by=asked_by,
        self_approval=step.self_approval,
    )
    return (replace(rules, asked_by="") if rules.self_approval else rules).as_json()
