"""Replays an ended run from one of its steps, as a new run of the same version.

The steps before it keep their state and refer to the old outputs, so completed work is not paid for twice. The step itself and all steps
after it run again, and so do parallel steps that failed or never ended. The old run does not change.

A replay is one transaction under the lock of the old run. Until it has ended, a second replay is refused, and so is a retry of failed work
of the old run. The same holds for replays of replays, see `relatives`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from pipelines import progression, relatives, starting, versions
from pipelines.exceptions import (
    NotFound,
    NotReplayable,
    PipelineDisabled,
    PipelineError,
    ReplayUnderWay,
)
from pipelines.graph import StepState
from pipelines.models import PipelineRun, StepRun
from pipelines.models.run import RunState, StepReason
from pipelines.versions import Compiled
from tenants.context import tenant_scope
from tenants.identifiers import uuid7

logger = logging.getLogger(__name__)

#: Columns that a step's row copies from the old run, all but its id and its time limit.
_COPIED = (
    "step", "branch", "position", "status", "reason", "error", "activity_id", "output_ref", "round", "branches",
    "unsettled_branches", "failed_branches", "settled_at",
)  # fmt: skip


def replay(
    tenant_id: UUID,
    run_id: UUID,
    *,
    from_step: str,
    new_input: Mapping[str, Any] | None = None,
    actor: str,
    requested_identity: str = "",
) -> PipelineRun:
    """Start the new run. `new_input` replaces the outputs of earlier steps as the input of `from_step`.

    Raises `NotFound`, `PipelineDisabled`, `PipelineError` for a live run, `ReplayUnderWay`, and `NotReplayable` with the error's path.
    """
    with tenant_scope(tenant_id):
        old = _lock_ended_run(tenant_id, run_id)
        plan = versions.compile_version(old.version_id)
        rows = list(StepRun.objects.for_tenant(tenant_id).filter(run_id=run_id))
        repeated = _steps_to_repeat(plan, {row.step: row for row in rows if not row.branch}, from_step)
        run = PipelineRun.objects.create(
            id=uuid7(), tenant_id=tenant_id, version_id=old.version_id, params=old.params, input=old.input,
            deliverable_id=old.deliverable_id, name=old.name, labels=old.labels, priority=old.priority, retry=old.retry,
            timeout_seconds=old.timeout_seconds, unsettled=len(repeated), created_by=actor,
            requested_identity=requested_identity, replay_of=old.pk, replay_from=from_step,
            replay_input=dict(new_input) if new_input else None,
        )  # fmt: skip
        StepRun.objects.bulk_create(
            _row(run, row, repeated) for row in rows if not row.branch or row.step not in repeated
        )
        starting.begin_waiting(run, {
            step: seconds
            for step, seconds in starting.waiting_times(plan, plan.position.keys() - repeated).items()
            if step in repeated
        })  # fmt: skip
        progression.start_following(run, plan, plan.graph.advance(progression.states_of(run.pk)))
        run.refresh_from_db()
    facts = {"action": "run_replayed", "tenant": str(tenant_id), "run": str(run.pk), "replay_of": str(run_id)}
    logger.info("Pipeline run replayed", extra=facts)
    return run


def first_failed_step(tenant_id: UUID, run_id: UUID) -> str:
    """Return the first failed step, from which to replay a failed run. Raises `NotFound`, and `PipelineError` if there is none."""
    with tenant_scope(tenant_id):
        if not PipelineRun.objects.for_tenant(tenant_id).filter(pk=run_id).exists():
            raise NotFound("pipeline run", run_id)
        failed = StepRun.objects.for_tenant(tenant_id).filter(
            run_id=run_id, branch=0, status=StepState.FAILED
        )
        step = failed.order_by("position").values_list("step", flat=True).first()
    if step is None:
        raise PipelineError("No step of the run has failed.", code="nothing_failed")
    return str(step)


def _lock_ended_run(tenant_id: UUID, run_id: UUID) -> PipelineRun:
    """Lock and return the run if it may be replayed now."""
    run, working = relatives.lock(tenant_id, run_id)
    if run.status == RunState.RUNNING:
        raise PipelineError("The run has not ended. Cancel it, or wait until it ends.", code="run_under_way")
    pipeline = run.version.pipeline
    if not pipeline.enabled:
        raise PipelineDisabled(f"The pipeline {pipeline.key!r} is switched off.")
    if working is not None:
        raise ReplayUnderWay(working)
    return run


def _steps_to_repeat(plan: Compiled, wholes: Mapping[str, StepRun], from_step: str) -> set[str]:
    """Return the steps that run again. Raises `NotReplayable` unless `from_step` would start immediately."""
    if from_step not in wholes:
        raise NotReplayable(f"is not a step of this run; it has {', '.join(plan.position)}")
    before = plan.graph.ancestors_of(from_step)
    for step in plan.graph.in_order(before):
        if wholes[step].status in (StepState.PENDING, StepState.ACTIVE):
            raise NotReplayable(f"comes after {step}, which never ended: replay from there")
    repeated = {from_step}
    for step, row in wholes.items():
        if step not in before and not _is_kept(row):
            repeated.add(step)
    for step in tuple(repeated):
        repeated |= plan.graph.descendants_of(step)
    states = {step: StepState.PENDING if step in repeated else row.status for step, row in wholes.items()}
    if from_step not in plan.graph.advance(states).start:
        broken = [step for step in plan.graph.in_order(before) if states[step] == StepState.FAILED]
        text = f"comes after {broken[0]}, which failed" if broken else "comes after no completed step"
        raise NotReplayable(f"{text}, so it would be skipped: replay from there")
    return repeated


def _is_kept(row: StepRun) -> bool:
    """Whether a step that is not before `from_step` keeps its outcome: it is done, or its own condition skipped it."""
    return row.status == StepState.DONE or (
        row.status == StepState.SKIPPED and row.reason == StepReason.CONDITION
    )


def _row(run: PipelineRun, row: StepRun, repeated: set[str]) -> StepRun:
    if row.step in repeated:
        return StepRun(tenant_id=run.tenant_id, run_id=run.pk, step=row.step, position=row.position)
    return StepRun(tenant_id=run.tenant_id, run_id=run.pk, **{name: getattr(row, name) for name in _COPIED})
