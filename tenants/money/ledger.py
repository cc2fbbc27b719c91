"""The ledger: what was consumed, by whom and for what. Entries are added by the engine's statements and never changed.

Every figure about money is a sum of entries, so figures that are grouped in different ways agree to the last digit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Q, QuerySet, Sum, Value
from django.db.models.functions import Coalesce

from tenants.models import Budget, BudgetUnit, UsageEntry

_PREFIX = "sum_"

#: The figures of a group of entries. `figures_of` takes off the prefix, which tells them from columns.
FIGURES: dict[str, Any] = {
    "sum_input_tokens": Coalesce(Sum("input_tokens"), Value(0)),
    "sum_output_tokens": Coalesce(Sum("output_tokens"), Value(0)),
    "sum_cost_usd": Coalesce(Sum("dollars"), Value(Decimal(0))),
    "sum_runs": Coalesce(Sum("runs"), Value(0)),
    "sum_unpriced_tokens": Coalesce(
        Sum(F("input_tokens") + F("output_tokens"), filter=Q(unpriced=True)), Value(0)
    ),
}


def entries(tenant_id: UUID, *, first: date | None = None, last: date | None = None) -> QuerySet[Any]:
    """Entries of these days, both included. In the caller's scope."""
    rows: QuerySet[Any] = UsageEntry.objects.for_tenant(tenant_id)
    if first is not None:
        rows = rows.filter(day__gte=first)
    return rows if last is None else rows.filter(day__lte=last)


def figures_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """A row of sums as it is shown: costs without the zeros behind their last place."""
    shown = {name.removeprefix(_PREFIX): value for name, value in group.items()}
    return {**shown, "cost_usd": Decimal(shown["cost_usd"]).normalize() + 0}


def counted_by(budget: Budget, *, since: date) -> Decimal:
    """What the ledger holds for a budget from a day on, in its unit."""
    rows = entries(budget.tenant_id, first=since)
    scope = {name: getattr(budget, name) for name in ("agent_role", "deliverable_id", "activity_id")}
    rows = rows.filter(**{name: value for name, value in scope.items() if value is not None})
    total = {
        BudgetUnit.DOLLARS: Sum("dollars"),
        BudgetUnit.TOKENS: Sum(F("input_tokens") + F("output_tokens")),
        BudgetUnit.RUNS: Sum("runs"),
    }[BudgetUnit(budget.unit)]
    return Decimal(rows.aggregate(total=total)["total"] or 0)


def average_of(tenant_id: UUID, role: str, *, since: date, most: int) -> tuple[Decimal, Decimal] | None:
    """Dollars and tokens of a run of this role, over at most so many entries; None when none has reported any."""
    recent = entries(tenant_id, first=since).filter(agent_role=role, runs=0).order_by("-day")
    sums = UsageEntry.objects.for_tenant(tenant_id).filter(pk__in=recent.values("pk")[:most])
    found = sums.aggregate(
        runs=Count("run_id", distinct=True),
        dollars=Sum("dollars"),
        tokens=Sum(F("input_tokens") + F("output_tokens")),
    )
    if not found["runs"]:
        return None
    return found["dollars"] / found["runs"], Decimal(found["tokens"]) / found["runs"]
