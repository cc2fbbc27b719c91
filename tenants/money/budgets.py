"""Budgets: making, changing and removing them, and counting them anew from the ledger.

What a budget counts (its scope, unit and period) never changes: its figures would mean nothing any more. Its cap may at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import DateField, F, Q, QuerySet, Sum
from django.db.models.functions import Now, TruncDate, TruncMonth

from tenants import clock
from tenants.context import tenant_scope
from tenants.exceptions import NotFound
from tenants.models import Budget, BudgetPeriod, Reservation
from tenants.money import calendar, ledger

SCOPE = ("agent_role", "deliverable_id", "activity_id", "unit", "period")
#: Runs that began before anybody could see a new budget have reported or ended their transaction by then.
RECOUNT_AFTER = timedelta(seconds=10)


def has_any(tenant_id: UUID, role: str) -> bool:
    """Whether a run of this role may fall under a budget. In the caller's `tenant_scope`."""
    rows = Budget.objects.for_tenant(tenant_id).filter(deleted_at=None)
    return bool(rows.filter(Q(agent_role=None) | Q(agent_role=role)).exists())


def create(tenant_id: UUID, fields: Mapping[str, Any]) -> Budget:
    """A budget in force within two seconds. It counts what its period has seen already; a total counts everything ever spent."""
    with tenant_scope(tenant_id):
        budget = Budget(tenant_id=tenant_id, **fields)
        budget.period_start = calendar.start_of(budget.period, calendar.today())
        budget.spent = ledger.counted_by(budget, since=budget.period_start)
        budget.overshoot = max(Decimal(0), budget.spent - budget.cap)
        budget.recount_at = clock.now() + RECOUNT_AFTER
        budget.save(force_insert=True)
        return budget


def change(tenant_id: UUID, budget_id: UUID, fields: Mapping[str, Any]) -> Budget:
    """Change name, cap, warning share or estimate. A new cap warns anew. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        budget = locked(tenant_id, budget_id)
        roll(budget)
        if fields.get("cap", budget.cap) != budget.cap:
            budget.warned_at = None
        for name, value in fields.items():
            setattr(budget, name, value)
        budget.overshoot = max(Decimal(0), budget.spent + budget.reserved - budget.cap)
        budget.version += 1
        budget.save()
        return budget


def delete(tenant_id: UUID, budget_id: UUID) -> None:
    """Count no more; what waits for it is released. The row stays, since alerts and waits name it. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        budget = locked(tenant_id, budget_id)
        Reservation.objects.for_tenant(tenant_id).filter(budget_id=budget_id).delete()
        budget.reserved, budget.recount_at, budget.deleted_at = Decimal(0), None, clock.now()
        budget.version += 1
        budget.save()


def locked(tenant_id: UUID, budget_id: UUID) -> Budget:
    """The budget, locked until the transaction ends. Raises `NotFound`."""
    rows = Budget.objects.for_tenant(tenant_id).select_for_update()
    found: Budget | None = rows.filter(pk=budget_id, deleted_at=None).first()
    if found is None:
        raise NotFound("budget", budget_id)
    return found


def roll(budget: Budget) -> None:
    """Begin the present period, if the budget is still in an earlier one. What is reserved stays: its runs go on. Not saved."""
    start = calendar.start_of(budget.period, calendar.today())
    if start > budget.period_start:
        budget.period_start, budget.spent = start, Decimal(0)
        budget.overshoot, budget.warned_at = max(Decimal(0), budget.reserved - budget.cap), None


def recount(tenant_id: UUID, budget_id: UUID) -> Budget:
    """Set what is spent and reserved to what the ledger and the reservations say. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        budget = locked(tenant_id, budget_id)  # Looked at after this: whoever counts in it now waits for us.
        roll(budget)
        budget.spent = ledger.counted_by(budget, since=budget.period_start)
        kept = Reservation.objects.for_tenant(tenant_id).filter(budget_id=budget_id)
        budget.reserved = kept.aggregate(total=Sum("amount"))["total"] or Decimal(0)
        budget.overshoot = max(budget.overshoot, budget.spent + budget.reserved - budget.cap)
        budget.recount_at = None
        budget.save()
        return budget


def to_recount() -> QuerySet[Any]:
    """Budgets whose time to be counted anew has come. Of all tenants in a `system_scope`."""
    return Budget.objects.filter(recount_at__lte=Now(), deleted_at=None)


def waited_for() -> QuerySet[Any]:
    """Budgets for which work waits that may go on: there is room for it, their period is over, or they were removed."""
    room = Q(cap__gte=F("spent") + F("reserved") + F("wanted"), cap__gt=F("spent") + F("reserved"))
    day, month = TruncDate(Now(), tzinfo=UTC), TruncMonth(Now(), tzinfo=UTC, output_field=DateField())
    turned = Q(period=BudgetPeriod.DAY, period_start__lt=day) | Q(
        period=BudgetPeriod.MONTH, period_start__lt=month
    )
    return Budget.objects.filter(Q(deleted_at__isnull=False) | room | turned, waiting_since__isnull=False)
