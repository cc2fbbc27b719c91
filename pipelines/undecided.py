"""Steps whose conditions read outputs that have moved to MongoDB: read outside of any transaction, then decided under the run's lock.

A step is marked in the transaction in which the last of its dependencies settled, and stays so until it is decided. Whoever dies
meanwhile leaves the mark, and two who decide at once do so one after the other: the second finds nothing left to decide.
"""

from __future__ import annotations

import logging
from uuid import UUID

from django.db.models import QuerySet

from activities import outputs
from activities.exceptions import OutputUnavailable
from pipelines import inputs, progression, versions
from pipelines.graph import StepState
from pipelines.models import PipelineRun, StepRun
from pipelines.models.run import RunState, StepReason
from pipelines.progression import Known
from tenants.context import system_scope, tenant_scope

logger = logging.getLogger(__name__)

TASK = "pipelines.decide"
AT_ONCE = 1_000  # runs that are looked at in one go


def waiting() -> QuerySet[StepRun]:
    """What is to be decided, of all tenants."""
    return StepRun.objects.filter(reason=StepReason.EVALUATING)


def decide_waiting() -> int:
    """Decide all there is; how many runs went on. What fails is tried again at the next hint, and stands in nobody's way."""
    with system_scope():
        runs = list(waiting().values_list("tenant_id", "run_id").distinct()[:AT_ONCE])
    return sum(_decide_safely(tenant_id, run_id) for tenant_id, run_id in runs)


def _decide_safely(tenant_id: UUID, run_id: UUID) -> bool:
    try:
        decide_run(tenant_id, run_id)
    except OutputUnavailable:
        return False  # MongoDB is away: the mark stays.
    except Exception:
        logger.exception(
            "A step could not be decided",
            extra={"action": "step_undecided", "tenant": str(tenant_id), "run": str(run_id)},
        )
        return False
    return True


def decide_run(tenant_id: UUID, run_id: UUID) -> None:
    """Decide the marked steps of one run. Idempotent. Raises `OutputUnavailable`."""
    steps, known = _read(tenant_id, run_id)
    if not steps:
        return
    with tenant_scope(tenant_id):
        run = progression.locked(tenant_id).get(pk=run_id)
        marked = StepRun.objects.for_tenant(tenant_id).filter(
            run_id=run_id, step__in=steps, reason=StepReason.EVALUATING, status=StepState.PENDING
        )
        # From the states as they are now: what a step depends on may have been sent back meanwhile.
        if marked.update(reason="") and run.status == RunState.RUNNING:
            plan = versions.compiled(run.version_id)
            following = plan.graph.advance(progression.states_of(run_id))
            progression.go_on(run, plan, following, known=known)


def _read(tenant_id: UUID, run_id: UUID) -> tuple[list[str], Known]:
    """The marked steps, and what is not in PostgreSQL of all that their expressions read."""
    with tenant_scope(tenant_id):
        run = PipelineRun.objects.for_tenant(tenant_id).get(pk=run_id)
        marked = StepRun.objects.for_tenant(tenant_id).filter(run_id=run_id, reason=StepReason.EVALUATING)
        steps = list(marked.values_list("step", flat=True))
        missing = inputs.seen(tenant_id, run_id, versions.compiled(run.version_id), steps, {}).missing
    found = outputs.read_many(tenant_id, missing) if missing else {}
    return steps, {reference: found.get(reference) for reference in missing}
