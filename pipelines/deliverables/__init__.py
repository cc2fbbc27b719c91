"""Deliverables and their periods: each month of one, from its start over the plan to the end of its last run.

What follows when an activity or a run of a period ends is started by signals of activities (`pipelines.receivers`) and counted by
`pipelines.period_counts`.

Here they are created, changed and deleted, by the API and the admin alike. A deliverable that becomes active is due from the next
month on; the month under way is started by hand, if it is wanted.

starting     the periods of a month, and the end of one that is cancelled
planning     the planner's question, and from its answer to runs
plans        the form of a plan, and every error of one
monthly_job  at the start of each month
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Now

from pipelines import period_counts
from pipelines.exceptions import DeliverableInUse, NotFound
from pipelines.models import Deliverable, DeliverablePeriod, Pipeline
from pipelines.models.deliverable import DeliverableState, PeriodState, next_month
from tenants.context import tenant_scope
from tenants.identifiers import uuid7

from .planning import ask_again, follow_planner, heed_dead_letter, planner_changed, take_up
from .plans import PlanInvalid
from .starting import cancel_period, start_new_periods, start_period


def create(tenant_id: UUID, values: Mapping[str, Any]) -> tuple[Deliverable, bool]:
    """The new deliverable; or the one that has this key already, and False."""
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
        wakes_up = (
            values.get("status") == DeliverableState.ACTIVE and before.status != DeliverableState.ACTIVE
        )
        due = {"next_on": next_month()} if wakes_up else {}
        Deliverable.objects.for_tenant(tenant_id).filter(pk=deliverable_id).update(
            **values, **due, version=F("version") + 1, updated_at=Now()
        )
        before.refresh_from_db()
        _tell_periods(before)
        return before


def _tell_periods(deliverable: Deliverable) -> None:
    """Periods that have not ended go by the target that holds now."""
    periods = DeliverablePeriod.objects.for_tenant(deliverable.tenant_id).filter(
        deliverable_id=deliverable.pk, status__in=(PeriodState.PLANNING, PeriodState.ACTIVE)
    )
    for period_id in list(periods.order_by("pk").values_list("pk", flat=True)):
        period = period_counts.lock_periods(deliverable.tenant_id).get(pk=period_id)
        if period.target != deliverable.target and period.ended_at is None:
            periods.filter(pk=period_id).update(target=deliverable.target)
            period_counts.recount(deliverable.tenant_id, period_id)


def delete(tenant_id: UUID, deliverable_id: UUID) -> None:
    """Raises `NotFound`, and `DeliverableInUse` when it has had a period."""
    with tenant_scope(tenant_id):
        # The start of a period holds the row until the period is visible.
        found = _lock_deliverable(tenant_id, deliverable_id)
        if DeliverablePeriod.objects.for_tenant(tenant_id).filter(deliverable_id=deliverable_id).exists():
            raise DeliverableInUse(f"The deliverable {found.key!r} has periods; end it instead.")
        found.delete()


def find_unknown_pipelines(tenant_id: UUID, keys: Iterable[str]) -> set[str]:
    """Which of these are keys of no pipeline of the tenant. In the caller's scope."""
    key_set = set(keys)
    known = Pipeline.objects.for_tenant(tenant_id).filter(key__in=key_set).values_list("key", flat=True)
    return key_set - set(known)


def _lock_deliverable(tenant_id: UUID, deliverable_id: UUID) -> Deliverable:
    rows = Deliverable.objects.for_tenant(tenant_id).select_for_update()
    found: Deliverable | None = rows.filter(pk=deliverable_id).first()
    if found is None:
        raise NotFound("deliverable", deliverable_id)
    return found
