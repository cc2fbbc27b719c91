"""The period of a deliverable: its planner, runs, figures and risk."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

from django.db import OperationalError, connections

from activities.models import Activity
from agents.contracts import Completed, Output
from agents.exceptions import PermanentAgentError
from pipelines import versions
from pipelines.models import DeliverablePeriod, PipelineRun
from tenants.context import tenant_scope
from tenants.models import Tenant

MAY = date(2026, 5, 1)
PLAN = {"items": [{"pipeline": "flow", "name": "Bees"}, {"pipeline": "flow", "name": "Honey"}]}


def save(tenant: Tenant, key: str, *steps: dict[str, Any], **more: Any) -> None:
    versions.save(tenant.pk, {"key": key, "name": key.title(), "steps": list(steps), **more}, actor="test")


def answering(*plans: Any, failing: str = "") -> Callable[[Any], Completed]:
    """Let the planner return one plan after the other, and other agents a text. The step named `failing` fails."""
    remaining = list(plans)

    def behaviour(request: Any) -> Completed:
        if request.agent_role == "activity-planner":
            return Completed(Output(data=remaining.pop(0) if len(remaining) > 1 else remaining[0]))
        if failing and failing == request.pipeline_step:
            raise PermanentAgentError("No such page.")
        return Completed(Output(content="done"))

    return behaviour


def reloaded(tenant: Tenant, period: DeliverablePeriod) -> DeliverablePeriod:
    with tenant_scope(tenant.pk):
        return DeliverablePeriod.objects.get(pk=period.pk)


def counts(tenant: Tenant, period: DeliverablePeriod) -> tuple[str, int, int, int, int]:
    row = reloaded(tenant, period)
    return row.status, row.planned, row.completed, row.failed, row.cancelled


def risk(tenant: Tenant, period: DeliverablePeriod) -> tuple[bool, str]:
    row = reloaded(tenant, period)
    return row.at_risk, row.at_risk_reason


def planner(tenant: Tenant, period: DeliverablePeriod) -> Activity:
    """Return the current planner activity of the period."""
    with tenant_scope(tenant.pk):
        return Activity.objects.get(pk=DeliverablePeriod.objects.get(pk=period.pk).planner_activity_id)


def runs(tenant: Tenant, period: DeliverablePeriod) -> list[PipelineRun]:
    with tenant_scope(tenant.pk):
        return list(PipelineRun.objects.filter(period=period).order_by("plan_item"))


def activity_of_step(tenant: Tenant, run: PipelineRun, step: str) -> Activity:
    with tenant_scope(tenant.pk):
        return Activity.objects.get(pipeline_run_id=run.pk, step=step, link_kind=None)


def count(tenant: Tenant, model: Any, **which: Any) -> int:
    with tenant_scope(tenant.pk):
        return model.objects.filter(**which).count()


def change_without_waiting(tenant: Tenant, change: Any, *arguments: Any) -> Exception | None:
    """Make a change that does not wait for locks; return its error, if any."""
    try:
        with tenant_scope(tenant.pk):
            with connections["default"].cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '50ms'")
            change(tenant.pk, *arguments)
    except OperationalError as error:
        return error
    return None
