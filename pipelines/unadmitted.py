"""Steps of runs under way for which there was no room in their role's backlog: they wait, marked, and start when there is.

A step is marked in the transaction in which it would have started, so it is never lost. Whoever dies meanwhile leaves the mark; two who
look at once do so one after the other, and the second finds nothing left to start. Whoever submits at a moment with room does not wait
for those who wait here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from pipelines import progression, versions
from pipelines.graph import StepState
from pipelines.models import StepRun
from pipelines.models.run import RunState, StepReason
from tenants import outages
from tenants.context import system_scope, tenant_scope

logger = logging.getLogger(__name__)

TASK = "pipelines.admit_steps"
PAGE = 500
TURN_SECONDS = 20.0  # Then the queue gets its worker back. While steps wait, the next hint is on its way.


def waiting() -> QuerySet[StepRun]:
    """Steps without room, of all tenants."""
    rows: QuerySet[StepRun] = StepRun.objects.filter(reason=StepReason.BACKLOG, status=StepState.PENDING)
    return rows


def admit_waiting(*, within: float = TURN_SECONDS) -> int:
    """Start what there is room for by now, oldest runs first; how many steps that were. One that cannot be started holds up no other."""
    until, started = time.monotonic() + within, 0
    full: set[tuple[UUID, str | None]] = set()
    for tenant_id, run_id, roles in _runs():
        if {(tenant_id, role) for role in roles} <= full:
            continue
        try:
            still = admit(tenant_id, run_id)
        except Exception as error:
            if outages.may_pass(error):
                raise
            facts = {"action": "step_not_admitted", "tenant": str(tenant_id), "run": str(run_id)}
            logger.exception("A step that waits for room could not be looked at", extra=facts)
            continue
        full |= {(tenant_id, role) for role in still}
        started += len(roles) - len(still)
        if time.monotonic() > until:
            break
    return started


def admit(tenant_id: UUID, run_id: UUID) -> list[str | None]:
    """Start the marked steps of one run for which there is room; the roles of those for which there is none. Idempotent."""
    with tenant_scope(tenant_id):
        run = progression.locked(tenant_id).get(pk=run_id)
        marked = waiting().filter(tenant_id=tenant_id, run_id=run_id)
        if run.status != RunState.RUNNING or not marked.update(reason=""):
            return []
        plan = versions.compiled(run.version_id)
        progression.go_on(run, plan, plan.graph.advance(progression.states_of(run_id)))
        return [plan.step(step).agent_role for step in marked.all().values_list("step", flat=True)]


def _runs() -> Iterator[tuple[UUID, UUID, list[str | None]]]:
    """Tenant, run, and the roles of its marked steps."""
    last: UUID | None = None
    while True:
        with system_scope():
            rows = waiting() if last is None else waiting().filter(run_id__gt=last)
            runs = list(rows.order_by("run_id").values_list("run_id", flat=True).distinct()[:PAGE])
            marked: Any = waiting().filter(run_id__in=runs).order_by("run_id")
            found = list(marked.values_list("tenant_id", "run_id", "run__version_id", "step"))
        by_run: dict[UUID, tuple[UUID, UUID, list[str]]] = {}
        for tenant_id, run_id, version_id, step in found:
            by_run.setdefault(run_id, (tenant_id, version_id, []))[2].append(step)
        for run_id, (tenant_id, version_id, steps) in by_run.items():
            with tenant_scope(tenant_id):
                plan = versions.compiled(version_id)
            yield tenant_id, run_id, [plan.step(step).agent_role for step in steps]
        if len(runs) < PAGE:
            return
        last = runs[-1]
