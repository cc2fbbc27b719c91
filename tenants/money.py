"""Money: what runs have consumed (the ledger), how much they may consume (budgets), and what is set aside for live runs (reservations).

Amounts are exact decimals. Ledger entries are added by the engine's statements and never changed; every figure is a sum of entries, so
figures that are grouped in different ways agree to the last digit. What a budget counts (its scope, unit and period) never changes, since
its figures would lose their meaning; its cap may change at any time. A reservation is made when a run is claimed, shrinks with each
report, and ends with the run. Budgets are the last rows that a transaction locks, in the order of their ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db.models import Count, DateField, Exists, F, OuterRef, Q, QuerySet, Sum, Value
from django.db.models.functions import Coalesce, Now, TruncDate, TruncMonth

from tenants import clock
from tenants.context import APP, tenant_scope
from tenants.exceptions import NotFound
from tenants.models import Budget, BudgetPeriod, BudgetUnit, BudgetWait, Reservation, UsageEntry
from tenants.sql import Statement

SCOPE = ("agent_role", "deliverable_id", "activity_id", "unit", "period")
#: Runs that began before anybody could see a new budget have reported or ended their transaction by then.
RECOUNT_AFTER = timedelta(seconds=10)


def create_budget(tenant_id: UUID, fields: Mapping[str, Any]) -> Budget:
    """Create a budget, in force within two seconds. It counts what its period has consumed so far; a total counts the whole ledger."""
    with tenant_scope(tenant_id):
        budget = Budget(tenant_id=tenant_id, **fields)
        budget.period_start = start_of(budget.period)
        budget.spent = sum_ledger(budget)
        budget.overshoot = max(Decimal(0), budget.spent - budget.cap)
        budget.recount_at = clock.now() + RECOUNT_AFTER
        budget.save(force_insert=True)
        return budget


def change_budget(tenant_id: UUID, budget_id: UUID, fields: Mapping[str, Any]) -> Budget:
    """Change name, cap, warning share or estimate. With a new cap, people may be warned again. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        budget = lock_budget(tenant_id, budget_id)
        roll(budget)
        if fields.get("cap", budget.cap) != budget.cap:
            budget.warned_at = None
        if fields.get("estimate", budget.estimate) != budget.estimate and budget.unit != BudgetUnit.RUNS:
            _change_needs(budget, fields["estimate"] or Decimal(0))
        for name, value in fields.items():
            setattr(budget, name, value)
        budget.overshoot = max(Decimal(0), budget.spent + budget.reserved - budget.cap)
        budget.version += 1
        budget.save()
        return budget


def _change_needs(budget: Budget, need: Decimal) -> None:
    """Let the work that waits for the budget need this much. The start of each activity still decides. Does not save the budget."""
    waits = BudgetWait.objects.for_tenant(budget.tenant_id).filter(budget_id=budget.pk)
    if waits.update(amount=need):
        budget.wanted = need


def delete_budget(tenant_id: UUID, budget_id: UUID) -> None:
    """Stop counting, and release what waits for the budget. The row stays, since alerts and waits refer to it. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        budget = lock_budget(tenant_id, budget_id)
        Reservation.objects.for_tenant(tenant_id).filter(budget_id=budget_id).delete()
        budget.reserved, budget.recount_at, budget.deleted_at = Decimal(0), None, clock.now()
        budget.version += 1
        budget.save()


def lock_budget(tenant_id: UUID, budget_id: UUID) -> Budget:
    """Return the budget, locked until the transaction ends. Raises `NotFound`."""
    rows = Budget.objects.for_tenant(tenant_id).select_for_update()
    return rows.filter(pk=budget_id, deleted_at=None).first_or_raise(NotFound("budget", budget_id))


def roll(budget: Budget) -> None:
    """Begin the current period, if the budget is still in an earlier one. Reservations stay, because their runs continue. Does not save."""
    if has_turned(budget):
        budget.period_start, budget.spent = start_of(budget.period), Decimal(0)
        budget.overshoot, budget.warned_at = max(Decimal(0), budget.reserved - budget.cap), None


def has_turned(budget: Budget) -> bool:
    """Whether the period of the budget's figures is over."""
    return start_of(budget.period) > budget.period_start


def recount(tenant_id: UUID, budget_id: UUID) -> Budget:
    """Set what is spent and reserved to what the ledger and the reservations say. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        budget = lock_budget(tenant_id, budget_id)  # Others that want to count in it wait from here on.
        roll(budget)
        budget.spent = sum_ledger(budget)
        reservations = Reservation.objects.for_tenant(tenant_id).filter(budget_id=budget_id)
        budget.reserved = reservations.aggregate(total=Sum("amount"))["total"] or Decimal(0)
        budget.overshoot = max(budget.overshoot, budget.spent + budget.reserved - budget.cap)
        budget.recount_at = None
        budget.save()
        return budget


def to_recount() -> QuerySet[Any]:
    """Return the budgets that are due to be counted again; those of all tenants in a `system_scope`."""
    return Budget.objects.filter(recount_at__lte=Now(), deleted_at=None)


def list_awaited_budgets() -> QuerySet[Any]:
    """Return the budgets whose waiting work may continue: there is money for it, the period is over, or the budget was deleted.

    Also budgets whose waiting work has ended, so that they no longer say that work waits.
    """
    room = Q(cap__gte=F("spent") + F("reserved") + F("wanted"), cap__gt=F("spent") + F("reserved"))
    day, month = TruncDate(Now(), tzinfo=UTC), TruncMonth(Now(), tzinfo=UTC, output_field=DateField())
    is_over = Q(period=BudgetPeriod.DAY, period_start__lt=day) | Q(
        period=BudgetPeriod.MONTH, period_start__lt=month
    )
    nothing_waits = ~Exists(
        BudgetWait.objects.filter(tenant_id=OuterRef("tenant_id"), budget_id=OuterRef("pk"))
    )
    return Budget.objects.filter(
        Q(deleted_at__isnull=False) | room | is_over | nothing_waits, waiting_since__isnull=False
    )


def list_awaited_estimates() -> QuerySet[Any]:
    """Return the budgets of dollars and tokens for which work waits, and which leave the estimate to the role of each activity."""
    return Budget.objects.filter(waiting_since__isnull=False, deleted_at=None, estimate=None).exclude(
        unit=BudgetUnit.RUNS
    )


#: When a total begins: before everything.
BEGINNING = date(1970, 1, 1)


def start_of(period: str) -> date:
    """Return the first day of the current period."""
    day = clock.today()
    if period == BudgetPeriod.DAY:
        return day
    return day.replace(day=1) if period == BudgetPeriod.MONTH else BEGINNING


def end_of(period: str, start: date) -> datetime | None:
    """When the period that begins on `start` is over; None for a period that never ends."""
    if period == BudgetPeriod.TOTAL:
        return None
    after = start + timedelta(days=1 if period == BudgetPeriod.DAY else 32)
    if period == BudgetPeriod.MONTH:
        after = after.replace(day=1)
    return datetime(after.year, after.month, after.day, tzinfo=UTC)


_PREFIX = "sum_"

#: The figures of a group of entries. Their prefix keeps them apart from columns; `figures_of` removes it.
FIGURES: dict[str, Any] = {
    "sum_input_tokens": Coalesce(Sum("input_tokens"), Value(0)),
    "sum_output_tokens": Coalesce(Sum("output_tokens"), Value(0)),
    "sum_cost_usd": Coalesce(Sum("dollars"), Value(Decimal(0))),
    "sum_runs": Coalesce(Sum("runs"), Value(0)),
    "sum_unpriced_tokens": Coalesce(
        Sum(F("input_tokens") + F("output_tokens"), filter=Q(unpriced=True)), Value(0)
    ),
}


def ledger_entries(tenant_id: UUID, *, first: date | None = None, last: date | None = None) -> QuerySet[Any]:
    """Entries from the first to the last of these days, both included. In the caller's scope."""
    rows: QuerySet[Any] = UsageEntry.objects.for_tenant(tenant_id)
    if first is not None:
        rows = rows.filter(day__gte=first)
    return rows if last is None else rows.filter(day__lte=last)


def figures_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of sums for people: without the prefix, and costs without trailing zeros."""
    figures = {name.removeprefix(_PREFIX): value for name, value in group.items()}
    return {**figures, "cost_usd": without_trailing_zeros(figures["cost_usd"])}


def without_trailing_zeros(amount: Decimal | int) -> Decimal:
    """Return the amount as people write it: 0.3 and not 0.300000000000."""
    return Decimal(amount).normalize() + 0  # adding 0 turns 1E+2 into 100


def plain(amount: Decimal | int) -> str:
    """Return the amount as text, the way people write it: 0.3, not 0.300000000000 or 3E-1."""
    return f"{without_trailing_zeros(amount):f}"


def sum_ledger(budget: Budget) -> Decimal:
    """Return the sum of the ledger's entries that a budget counts in its period, in the budget's unit."""
    rows = ledger_entries(budget.tenant_id, first=budget.period_start)
    scope = {name: getattr(budget, name) for name in ("agent_role", "deliverable_id", "activity_id")}
    rows = rows.filter(**{name: value for name, value in scope.items() if value is not None})
    total = {
        BudgetUnit.DOLLARS: Sum("dollars"),
        BudgetUnit.TOKENS: Sum(F("input_tokens") + F("output_tokens")),
        BudgetUnit.RUNS: Sum("runs"),
    }[BudgetUnit(budget.unit)]
    return Decimal(rows.aggregate(total=total)["total"] or 0)


def average_of(tenant_id: UUID, role: str, *, since: date, most: int) -> tuple[Decimal, Decimal] | None:
    """Average dollars and tokens of a run of this role, over the `most` newest entries; None when there are none."""
    recent = ledger_entries(tenant_id, first=since).filter(agent_role=role, runs=0).order_by("-day")
    sums = UsageEntry.objects.for_tenant(tenant_id).filter(pk__in=recent.values("pk")[:most])
    totals = sums.aggregate(
        runs=Count("run_id", distinct=True),
        dollars=Sum("dollars"),
        tokens=Sum(F("input_tokens") + F("output_tokens")),
    )
    if not totals["runs"]:
        return None
    return totals["dollars"] / totals["runs"], Decimal(totals["tokens"]) / totals["runs"]


_RESERVE, _SETTLE, _RELEASE = (
    Statement.load(Path(__file__).parent / "sql" / "money", name) for name in ("reserve", "settle", "release")
)


@dataclass(frozen=True, slots=True)
class BudgetedRun:
    """A run, and what decides which budgets count it."""

    tenant_id: UUID
    run_id: UUID
    activity_id: UUID
    role: str
    deliverable_id: UUID | None

    def parameters(self) -> dict[str, Any]:
        return {
            "tenant": self.tenant_id,
            "run": self.run_id,
            "activity": self.activity_id,
            "role": self.role,
            "deliverable": self.deliverable_id,
        }


#: The state of one budget, a named tuple: see `sql/money/reserve.sql` and `sql/money/settle.sql`.
Standing = Any


def reserve(run: BudgetedRun, *, dollars: Decimal, tokens: Decimal) -> list[Standing]:
    """Reserve in every budget of the run, or in none unless all have room; returns the state of each.

    The amounts are for budgets without an estimate.
    """
    return _RESERVE.run(
        {**run.parameters(), "day": clock.today(), "dollars": dollars, "tokens": tokens}, using=APP
    )


def settle(
    run: BudgetedRun, *, dollars: Decimal, tokens: int, ended: bool, day: date | None = None
) -> list[Standing]:
    """Count what the run has consumed since its last report; returns the state of each budget after that."""
    more = {"dollars": dollars, "tokens": tokens, "ended": ended, "day": day or clock.today()}
    return _SETTLE.run({**run.parameters(), **more}, using=APP)


def release(tenant_id: UUID, run_ids: Sequence[UUID]) -> None:
    """Release what is reserved for runs that have ended. Idempotent."""
    _RELEASE.run({"tenant": tenant_id, "runs": list(run_ids)}, using=APP)
