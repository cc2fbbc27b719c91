"""Lists references to agents and pipelines: from schedules, newest versions of pipelines, and deliverables (to their planner).

Covers all tenants, for the platform's admins. Only enabled objects of active tenants count, because nothing else starts work.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import F, QuerySet

from agents.models import Agent
from agents.registry import BrokenReference, Reference, ReferenceSource
from pipelines.deliverables import planning
from pipelines.models import Deliverable, PipelineVersion, Schedule
from pipelines.models.deliverable import DeliverableState
from tenants.context import SYSTEM


def references_of_role(role: str) -> list[Reference]:
    """Return enabled schedules and pipelines that need this agent, and active deliverables if it plans them."""
    schedules = _schedules().filter(agent_role=role)
    versions = _newest_versions().filter(definition__contains={"steps": [{"agent_role": role}]})
    planned = _deliverables() if role == planning.ROLE else ()
    return [
        *(_of_deliverable(deliverable) for deliverable in planned),
        *(_of_schedule(schedule, role) for schedule in schedules),
        *(_of_version(version, role) for version in versions),
    ]


def list_broken() -> list[BrokenReference]:
    """Return enabled schedules and pipelines whose agent or pipeline is missing or switched off."""
    agents = dict(Agent.objects.using(SYSTEM).values_list("role", "enabled"))
    unplanned = _deliverables() if (error := _error(agents, planning.ROLE)) else ()
    return [
        *(BrokenReference(_of_deliverable(deliverable), error) for deliverable in unplanned),
        *_list_broken_schedules(agents),
        *_list_broken_steps(agents),
    ]


def _list_broken_schedules(agents: dict[str, bool]) -> Iterator[BrokenReference]:
    for schedule in _schedules().select_related("tenant", "pipeline"):
        if schedule.agent_role and (error := _error(agents, schedule.agent_role)):
            yield BrokenReference(_of_schedule(schedule, schedule.agent_role), error)
        elif schedule.pipeline is not None and not schedule.pipeline.enabled:
            error = f"its pipeline {schedule.pipeline.key!r} is switched off"
            yield BrokenReference(_of_schedule(schedule, ""), error)


def _list_broken_steps(agents: dict[str, bool]) -> Iterator[BrokenReference]:
    for version in _newest_versions().iterator():
        for index, step in enumerate(version.definition["steps"]):
            role = step.get("agent_role")
            if role and (error := _error(agents, role)):
                yield BrokenReference(_of_version(version, role), f"steps[{index}].agent_role: {error}")


def _error(agents: dict[str, bool], role: str) -> str:
    if role not in agents:
        return f"there is no agent {role!r}"
    return "" if agents[role] else f"the agent {role!r} is switched off"


def _schedules() -> QuerySet[Schedule]:
    rows = Schedule.objects.using(SYSTEM).filter(enabled=True, tenant__is_active=True)
    return rows.select_related("tenant").order_by("tenant__slug", "name")


def _newest_versions() -> QuerySet[PipelineVersion]:
    rows = PipelineVersion.objects.using(SYSTEM).filter(
        number=F("pipeline__latest"), pipeline__enabled=True, tenant__is_active=True
    )
    return rows.select_related("tenant", "pipeline").order_by("tenant__slug", "pipeline__key")


def _deliverables() -> QuerySet[Deliverable]:
    rows = Deliverable.objects.using(SYSTEM).filter(status=DeliverableState.ACTIVE, tenant__is_active=True)
    return rows.select_related("tenant").order_by("tenant__slug", "key")


def _of_deliverable(deliverable: Deliverable) -> Reference:
    return Reference(
        f"deliverable {deliverable.key}", deliverable.tenant_id, deliverable.tenant.slug, planning.ROLE, "pipelines.deliverable",
        str(deliverable.pk),
    )  # fmt: skip


def _of_schedule(schedule: Schedule, role: str) -> Reference:
    return Reference(
        f"schedule {schedule.name}", schedule.tenant_id, schedule.tenant.slug, role, "pipelines.schedule", str(schedule.pk)
    )  # fmt: skip


def _of_version(version: PipelineVersion, role: str) -> Reference:
    pipeline = version.pipeline
    return Reference(
        f"pipeline {pipeline.key}", version.tenant_id, version.tenant.slug, role, "pipelines.pipeline", str(pipeline.pk)
    )  # fmt: skip


SOURCE = ReferenceSource(references_of_role, list_broken)
