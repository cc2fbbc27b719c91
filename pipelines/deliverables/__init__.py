"""Deliverables and their monthly periods, from the start of a period through its plan to the end of its last run.

Signals of activities (`pipelines.receivers`) report when an activity or a run of a period ends; `pipelines.period_counts` counts the
outcomes.

This module creates, changes and deletes deliverables, for the API and the admin alike. A deliverable that becomes active is due from the
next month on; people can start the current month by hand.

starting     starts the periods of a month, and cancels a period
planning     asks the planner, and turns its answer into runs
plans        validates a plan
monthly_job  runs at the start of each month
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Now

from activities import states
from activities.models import Activity
from activities.models.activity import in_status
from pipelines import period_counts
from pipelines.deliverables.planning import (
    accept_plan,
    ask_again,
    errors_of_plan,
    follow_dead_letter,
    follow_planner,
    planner_changed,
)
from pipelines.deliverables.plans import PlanInvalid
from pipelines.deliverables.starting import cancel_period, start_new_periods, start_period
from pipelines.exceptions import NotFound, PipelineError
from pipelines.models import Deliverable, DeliverablePeriod, Pipeline, PipelineRun
from pipelines.models.deliverable import DeliverableState, PeriodState, next_month
from pipelines.models.run import RunState
from pipelines.submission import reserved_errors
from tenants.context import tenant_scope
from tenants.identifiers import uuid7


def create(tenant_id: UUID, values: Mapping[str, Any]) -> tuple[Deliverable, bool]:
    """Create a deliverable, or return the existing one with this key. The second value says whether it is new."""
    with tenant_scope(tenant_id):
        own = Deliverable.objects.for_tenant(tenant_id)
        deliverable, created = own.get_or_create(
            tenant_id=tenant_id, key=values["key"], defaults={"id": uuid7(), **values}
        )
        deliverable.refresh_from_db()
        return deliverable, created


def change(tenant_id: UUID, deliverable_id: UUID, values: Mapping[str, Any]) -> Deliverable:
    """Set these fields and raise the version. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        before = _lock_deliverable(tenant_id, deliverable_id)
        becomes_active = (
            values.get("status") == DeliverableState.ACTIVE and before.status != DeliverableState.ACTIVE
        )
        due = {"next_on": next_month()} if becomes_active else {}
        Deliverable.objects.for_tenant(tenant_id).filter(pk=deliverable_id).update(
            **values, **due, version=F("version") + 1, updated_at=Now()
        )
        before.refresh_from_db()
        # Its periods that have not ended get its target.
        periods = DeliverablePeriod.objects.for_tenant(before.tenant_id).filter(
            deliverable_id=before.pk, status__in=(PeriodState.PLANNING, PeriodState.ACTIVE)
        )
        for period_id in list(periods.order_by("pk").values_list("pk", flat=True)):
            period = period_counts.lock_periods(before.tenant_id).get(pk=period_id)
            if period.target != before.target and period.ended_at is None:
                periods.filter(pk=period_id).update(target=before.target)
                period_counts.recount(before.tenant_id, period_id)
        return before


def delete(tenant_id: UUID, deliverable_id: UUID) -> None:
    """Delete a deliverable. Raises `NotFound`, and `PipelineError` if it has periods or open work.

    Ended activities and runs, budgets and grants keep the id, as they may also keep an id of the tenant's own system.
    """
    with tenant_scope(tenant_id):
        # Starting a period locks this row until the period is committed.
        deliverable = _lock_deliverable(tenant_id, deliverable_id)
        if DeliverablePeriod.objects.for_tenant(tenant_id).filter(deliverable_id=deliverable_id).exists():
            raise PipelineError(
                f"The deliverable {deliverable.key!r} has periods; end it instead.", code="deliverable_in_use"
            )
        # Without its deliverable, open work could be delegated to any role.
        if uses := _open_work(tenant_id, deliverable_id):
            raise PipelineError(
                f"The deliverable {deliverable.key!r} has {' and '.join(uses)}; wait for their end or cancel them, "
                "or end the deliverable instead.",
                code="deliverable_in_use",
            )
        deliverable.delete()


def _open_work(tenant_id: UUID, deliverable_id: UUID) -> list[str]:
    """Return the kinds of open work of a deliverable with their numbers, in words."""
    activities = Activity.objects.for_tenant(tenant_id).filter(
        in_status(*states.LIVE, *states.MAY_RUN), deliverable_id=deliverable_id
    )
    runs = PipelineRun.objects.for_tenant(tenant_id).filter(
        status=RunState.RUNNING, deliverable_id=deliverable_id
    )
    counts = (("open activities", activities.count()), ("running pipeline runs", runs.count()))
    return [f"{number:,} {kind}" for kind, number in counts if number]


def find_unknown_pipelines(tenant_id: UUID, keys: Iterable[str]) -> set[str]:
    """Return the keys that no pipeline of the tenant has. Call it within a `tenant_scope`."""
    key_set = set(keys)
    known = Pipeline.objects.for_tenant(tenant_id).filter(key__in=key_set).values_list("key", flat=True)
    return key_set - set(known)


def _lock_deliverable(tenant_id: UUID, deliverable_id: UUID) -> Deliverable:
    rows = Deliverable.objects.for_tenant(tenant_id).select_for_update()
    return rows.get_or_raise(NotFound, "deliverable", deliverable_id)
