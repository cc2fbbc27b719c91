"""Starts pipeline runs: creates a run with all its steps, and starts the steps without dependencies."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from pathlib import Path
from typing import Any
from uuid import UUID

from activities import backlog
from activities.submission import begin, newcomers
from pipelines import parameters, progression, starting, subjects, versions
from pipelines.conditions import RESERVED
from pipelines.definition import InputError, StepDefinition
from pipelines.definition.errors import at
from pipelines.exceptions import InvalidParams, NotFound, PipelineDisabled
from pipelines.graph import Advance, StepState
from pipelines.models import PipelineRun
from pipelines.models.run import StepReason
from pipelines.versions import Compiled
from tenants import clock
from tenants.context import APP, tenant_scope
from tenants.identifiers import uuid7
from tenants.sql import Rows, Statement

_NEWEST_VERSION, _START_RUNS = (
    Statement.load(Path(__file__).parent / "sql", name) for name in ("newest_version", "start_runs")
)

#: The columns of a run that `start_runs.sql` takes.
_OF_RUN = (
    "id", "params", "input", "deliverable_id", "period_id", "plan_item", "name", "schedule_id", "priority", "retry", "timeout_seconds",
    "requested_identity", "labels", "not_before",
)  # fmt: skip


class WhenFull(Enum):
    """What to do if the backlogs have no room for the first steps of all runs."""

    REFUSE = auto()  # start none and raise `BacklogFull`
    FEWER = auto()  # start as many as there is room for, from the first on
    WAIT = auto()  # start all; their steps wait for `waiting_steps.steps_unadmitted`


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to start. `input`: `content` and `data` for its first steps, which start at `not_before`.

    `period_id`, `plan_item`: the item of a deliverable's plan that the run fulfils. `retry`, `timeout_seconds`: for steps without their
    own.
    """

    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    input: Mapping[str, Any] | None = None
    deliverable_id: UUID | None = None
    period_id: UUID | None = None
    plan_item: int | None = None
    schedule_id: UUID | None = None
    priority: int = 10
    retry: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: int | None = None
    not_before: datetime | None = None
    requested_identity: str = ""


def start_run(tenant_id: UUID, pipeline_key: str, new: NewRun, *, actor: str) -> PipelineRun:
    """Start one run of the pipeline's newest version. Raises `NotFound`, `PipelineDisabled`, `InvalidParams`, `BacklogFull`."""
    return start_runs(tenant_id, pipeline_key, [new], actor=actor)[0]


def start_runs(
    tenant_id: UUID,
    pipeline_key: str,
    news: Sequence[NewRun],
    *,
    actor: str,
    when_full: WhenFull = WhenFull.REFUSE,
) -> list[PipelineRun]:
    """Start many runs of one pipeline in one transaction, with a handful of statements for all of them.

    `when_full`: what to do if the backlogs have no room for their first steps. Raises as `start_run`.
    """
    with tenant_scope(tenant_id):
        version_id = _newest_version(tenant_id, pipeline_key)
        plan = versions.compile_version(version_id)
        _refuse_reserved(plan, news)
        for new in news:
            if errors := _errors(tenant_id, plan, new.params):
                raise InvalidParams((error.path, error.message) for error in errors)
        if when_full == WhenFull.FEWER:
            news = news[: backlog.count_admitted(tenant_id, [_first_newcomers(plan, new) for new in news])]
        runs = [
            PipelineRun(
                id=uuid7(), tenant_id=tenant_id, version_id=version_id, params={**plan.definition.params, **new.params},
                input=new.input, deliverable_id=new.deliverable_id, period_id=new.period_id, plan_item=new.plan_item,
                name=new.name or subjects.render(plan.definition.subject, {**plan.definition.params, **new.params}),
                labels=dict(new.labels), priority=new.priority, unsettled=len(plan.definition.steps), created_by=actor,
                requested_identity=new.requested_identity, schedule_id=new.schedule_id, retry=dict(new.retry),
                timeout_seconds=new.timeout_seconds, not_before=new.not_before,
            )
            for new in news
        ]  # fmt: skip
        first = starting.first_activities(runs, plan)
        if when_full == WhenFull.WAIT:
            enter = backlog.entering(tenant_id, [newcomers([item]) for item in first])
            first = [item for item, enters in zip(first, enter, strict=True) if enters]
        started = {(item.pipeline_run_id, item.step): item.id for item in first}
        until = _waiting_deadlines(plan)
        steps = [
            _step_run(run, step, position, started, until, plan)
            for run in runs
            for position, step in enumerate(plan.definition.steps)
        ]
        if when_full == WhenFull.REFUSE:
            backlog.make_room(tenant_id, newcomers(first))
        created = _create(tenant_id, version_id, runs, steps, actor) if runs else None
        if first:
            begin(first, actor=actor)
        conditional = tuple(step for step in plan.graph.roots() if step in plan.conditional)
        for run in runs if conditional else ():
            progression.start_following(run, plan, Advance(start=conditional))
    _mark_started(runs, created.fetch() if created else ())
    return runs


def errors_of(
    tenant_id: UUID,
    pipeline_key: str,
    param_sets: Iterable[Mapping[str, Any]],
    *,
    unknown: Collection[str] = (),
) -> list[list[InputError]]:
    """Return, for each set of parameters, the errors with which a run would be refused. Needs a `tenant_scope`.

    `unknown`: as in `parameters`. Raises `NotFound`, `PipelineDisabled`.
    """
    plan = versions.compile_version(_newest_version(tenant_id, pipeline_key))
    return [_errors(tenant_id, plan, params, unknown) for params in param_sets]


def reserved_errors(
    tenant_id: UUID, pipeline_keys: Iterable[str], params: Mapping[str, Any]
) -> dict[str, str]:
    """Return the errors, by name, of parameters for all runs of these pipelines that have the name of one that a fan-out sets."""
    if not set(RESERVED) & set(params):
        return {}
    errors: dict[str, str] = {}
    with tenant_scope(tenant_id):
        for key in pipeline_keys:
            with suppress(NotFound, PipelineDisabled):
                plan = versions.compile_version(_newest_version(tenant_id, key))
                for name in _find_reserved(plan, params):
                    errors.setdefault(name, f"In the pipeline {key}: {_explain_reserved(plan, name)}")
    return errors


def _errors(
    tenant_id: UUID, plan: Compiled, params: Mapping[str, Any], unknown: Collection[str] = ()
) -> list[InputError]:
    whole = {**plan.definition.params, **params}
    reserved = [
        InputError(at("params", name), _explain_reserved(plan, name))
        for name in _find_reserved(plan, {*params, *unknown})
    ]
    return reserved + parameters.errors_of_run(tenant_id, plan.definition.steps, whole, unknown=unknown)


def _first_newcomers(plan: Compiled, new: NewRun) -> list[backlog.Newcomer]:
    """Return the first steps of a run as the backlog counts them, without conditional steps."""
    steps = [plan.step(step) for step in plan.graph.roots() if step not in plan.conditional]
    return [
        backlog.Newcomer(step.agent_role, step.priority or new.priority) for step in steps if step.agent_role
    ]


def _refuse_reserved(plan: Compiled, news: Sequence[NewRun]) -> None:
    """Raise `InvalidParams` if a parameter of a run has the name of one that each branch of a fan-out gets."""
    if taken := _find_reserved(plan, {name for new in news for name in new.params}):
        errors = ((at("params", name), _explain_reserved(plan, name)) for name in taken)
        raise InvalidParams(errors, code="reserved_params")


def _find_reserved(plan: Compiled, names: Collection[str]) -> list[str]:
    return [name for name in RESERVED if name in names] if plan.fanned_out else []


def _explain_reserved(plan: Compiled, name: str) -> str:
    return f"Each branch of {min(plan.fanned_out)} gets its own {name}: name the parameter otherwise."


def _waiting_deadlines(plan: Compiled) -> dict[str, datetime]:
    """Return the dependency deadlines of the steps after the first ones."""
    first = [step for step in plan.graph.roots() if step not in plan.conditional]
    now = clock.now()
    times = starting.waiting_times(plan, first)
    return {step: now + timedelta(seconds=seconds) for step, seconds in times.items()}


def _step_run(
    run: PipelineRun,
    definition: StepDefinition,
    position: int,
    started: Mapping[tuple[UUID | None, str | None], UUID],
    until: Mapping[str, datetime],
    plan: Compiled,
) -> dict[str, Any]:
    """Return the row of a step for `start_runs.sql`."""
    step = definition.id
    activity_id = started.get((run.pk, step))
    put_off = activity_id is None and step not in plan.conditional and step in plan.graph.roots()
    return {
        "run_id": run.pk,
        "step": step,
        "position": position,
        "status": StepState.ACTIVE if activity_id else StepState.PENDING,
        "reason": StepReason.BACKLOG if put_off else "",
        "activity_id": activity_id,
        "waits_until": until.get(step),
    }


def _create(
    tenant_id: UUID,
    version_id: UUID,
    runs: Sequence[PipelineRun],
    steps: Sequence[Mapping[str, Any]],
    actor: str,
) -> Rows:
    """Create the runs. The statement is sent together with the next one of the transaction."""
    return _START_RUNS.run_with_next(
        {
            "tenant": tenant_id,
            "version": version_id,
            "created_by": actor,
            "unsettled": runs[0].unsettled,
            "runs": _write_rows([{name: getattr(run, name) for name in _OF_RUN} for run in runs]),
            "steps": _write_rows(steps),
        },
        using=APP,
    )


def _write_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    # `json` keeps all digits of large numbers, which `wire_json` does not. `str` is for ids and times.
    return json.dumps(rows, default=str)


def _mark_started(runs: Iterable[PipelineRun], created: Iterable[Any]) -> None:
    """Make the models equal to their rows."""
    started_at = {row.id: row.started_at for row in created}
    for run in runs:
        run.started_at = started_at[run.pk]
        run._state.adding, run._state.db = False, APP


def _newest_version(tenant_id: UUID, pipeline_key: str) -> UUID:
    """Return the version that new runs of the pipeline get."""
    rows = _NEWEST_VERSION.run({"tenant": tenant_id, "key": pipeline_key}, using=APP)
    if not rows:
        raise NotFound("pipeline", pipeline_key)
    if not rows[0].enabled:
        raise PipelineDisabled(f"The pipeline {pipeline_key!r} is switched off.")
    version_id: UUID = rows[0].version
    return version_id
