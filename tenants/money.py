"""Money: what runs have consumed (the ledger), how much they may (budgets), and what is kept for those that run (reservations).

Amounts are exact decimals. Entries of the ledger are added by the engine's statements and never changed; every figure is a sum of entries,
so figures that are grouped in different ways agree to the last digit. What a budget counts (its scope, unit and period) never changes: its
figures would mean nothing any more. Its cap may at any time. A reservation is made with the claim of a run, becomes smaller with each
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

from django.db.models import Count, DateField, F, Q, QuerySet, Sum, Value
from django.db.models.functions import Coalesce, Now, TruncDate, TruncMonth

from tenants import clock
from tenants.context import APP, tenant_scope
from tenants.exceptions import NotFound
from tenants.models import Budget, BudgetPeriod, BudgetUnit, Reservation, UsageEntry
from tenants.sql import Statement

SCOPE = ("agent_role", "deliverable_id", "activity_id", "unit", "period")
#: Runs that began before anybody could see a new budget have reported or ended their transaction by then.
RECOUNT_AFTER = timedelta(seconds=10)


def create_budget(tenant_id: UUID, fields: Mapping[str, Any]) -> Budget:
    """A budget in force within two seconds. It counts what its period has seen already; a total counts everything ever spent."""
    with tenant_scope(tenant_id):
        budget = Budget(tenant_id=tenant_id, **fields)
        budget.period_start = start_of(budget.period, clock.today())
        budget.spent = sum_ledger(budget, since=budget.period_start)
        budget.overshoot = max(Decimal(0), budget.spent - budget.cap)
        budget.recount_at = clock.now() + RECOUNT_AFTER
        budget.save(force_insert=True)
        return budget


def change_budget(tenant_id: UUID, budget_id: UUID, fields: Mapping[str, Any]) -> Budget:
    """Change name, cap, warning share or estimate. A new cap warns again. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        budget = lock_budget(tenant_id, budget_id)
        roll(budget)
        if fields.get("cap", budget.cap) != budget.cap:
            budget.warned_at = None
        for name, value in fields.items():
            setattr(budget, name, value)
        budget.overshoot = max(Decimal(0), budget.spent + budget.reserved - budget.cap)
        budget.version += 1
        budget.save()
        return budget


def delete_budget(tenant_id: UUID, budget_id: UUID) -> None:
    """Count no more; what waits for it is released. The row stays, since alerts and waits name it. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        budget = lock_budget(tenant_id, budget_id)
        Reservation.objects.for_tenant(tenant_id).filter(budget_id=budget_id).delete()
        budget.reserved, budget.recount_at, budget.deleted_at = Decimal(0), None, clock.now()
        budget.version += 1
        budget.save()


def lock_budget(tenant_id: UUID, budget_id: UUID) -> Budget:
    """The budget, locked until the transaction ends. Raises `NotFound`."""
    rows = Budget.objects.for_tenant(tenant_id).select_for_update()
    found: Budget | None = rows.filter(pk=budget_id, deleted_at=None).first()
    if found is None:
        raise NotFound("budget", budget_id)
    return found


def roll(budget: Budget) -> None:
    """Begin the present period, if the budget is still in an earlier one. What is reserved stays: its runs go on. Not saved."""
    start = start_of(budget.period, clock.today())
    if start > budget.period_start:
        budget.period_start, budget.spent = start, Decimal(0)
        budget.overshoot, budget.warned_at = max(Decimal(0), budget.reserved - budget.cap), None


def recount(tenant_id: UUID, budget_id: UUID) -> Budget:
    """Set what is spent and reserved to what the ledger and the reservations say. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        budget = lock_budget(
            tenant_id, budget_id
        )  # Looked at after this: transactions that count in it now wait for us.
        roll(budget)
        budget.spent = sum_ledger(budget, since=budget.period_start)
        reservations = Reservation.objects.for_tenant(tenant_id).filter(budget_id=budget_id)
        budget.reserved = reservations.aggregate(total=Sum("amount"))["total"] or Decimal(0)
        budget.overshoot = max(budget.overshoot, budget.spent + budget.reserved - budget.cap)
        budget.recount_at = None
        budget.save()
        return budget


def to_recount() -> QuerySet[Any]:
    """Budgets that are due to be counted again. Of all tenants in a `system_scope`."""
    return Budget.objects.filter(recount_at__lte=Now(), deleted_at=None)


def list_awaited_budgets() -> QuerySet[Any]:
    """Budgets for which work waits that may go on: there is room for it, their period is over, or they were removed."""
    room = Q(cap__gte=F("spent") + F("reserved") + F("wanted"), cap__gt=F("spent") + F("reserved"))
    day, month = TruncDate(Now(), tzinfo=UTC), TruncMonth(Now(), tzinfo=UTC, output_field=DateField())
    turned = Q(period=BudgetPeriod.DAY, period_start__lt=day) | Q(
        period=BudgetPeriod.MONTH, period_start__lt=month
    )
    return Budget.objects.filter(Q(deleted_at__isnull=False) | room | turned, waiting_since__isnull=False)


#: When a total begins: before everything.
BEGINNING = date(1970, 1, 1)


def start_of(period: str, day: date) -> date:
    """The first day of the period that `day` is in."""
    if period == BudgetPeriod.DAY:
        return day
    return day.replace(day=1) if period == BudgetPeriod.MONTH else BEGINNING


def end_of(period: str, start: date) -> datetime | None:
    """The moment at which the period that begins on `start` is over; None when it never is."""
    if period == BudgetPeriod.TOTAL:
        return None
    after = start + timedelta(days=1 if period == BudgetPeriod.DAY else 32)
    if period == BudgetPeriod.MONTH:
        after = after.replace(day=1)
    return datetime(after.year, after.month, after.day, tzinfo=UTC)


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


def ledger_entries(tenant_id: UUID, *, first: date | None = None, last: date | None = None) -> QuerySet[Any]:
    """Entries of these days, both included. In the caller's scope."""
    rows: QuerySet[Any] = UsageEntry.objects.for_tenant(tenant_id)
    if first is not None:
        rows = rows.filter(day__gte=first)
    return rows if last is None else rows.filter(day__lte=last)


def figures_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """A row of sums as it is shown: costs without the zeros behind their last place."""
    shown = {name.removeprefix(_PREFIX): value for name, value in group.items()}
    return {**shown, "cost_usd": Decimal(shown["cost_usd"]).normalize() + 0}


def sum_ledger(budget: Budget, *, since: date) -> Decimal:
    """What the ledger holds for a budget from a day on, in its unit."""
    rows = ledger_entries(budget.tenant_id, first=since)
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
    recent = ledger_entries(tenant_id, first=since).filter(agent_role=role, runs=0).order_by("-day")
    sums = UsageEntry.objects.for_tenant(tenant_id).filter(pk__in=recent.values("pk")[:most])
    found = sums.aggregate(
        runs=Count("run_id", distinct=True),
        dollars=Sum("dollars"),
        tokens=Sum(F("input_tokens") + F("output_tokens")),
    )
    if not found["runs"]:
        return None
    return found["dollars"] / found["runs"], Decimal(found["tokens"]) / found["runs"]


_RESERVE, _SETTLE, _RELEASE = (
    Statement.load(Path(__file__).parent / "sql" / "money", name) for name in ("reserve", "settle", "release")
)


@dataclass(frozen=True, slots=True)
class BudgetedRun:
    """The run that a budget is asked about, and what decides under which budgets it falls."""

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


#: A named tuple: see `sql/money/reserve.sql` and `sql/money/settle.sql`.
Standing = Any


def reserve(bearer: BudgetedRun, *, dollars: Decimal, tokens: Decimal) -> list[Standing]:
    """How each budget stands; unless all of them have room nothing was reserved. The amounts are for budgets without an estimate."""
    return _RESERVE.run(
        {**bearer.parameters(), "day": clock.today(), "dollars": dollars, "tokens": tokens}, using=APP
    )


def settle(
    bearer: BudgetedRun, *, dollars: Decimal, tokens: int, ended: bool, day: date | None = None
) -> list[Standing]:
    """Count what the run has consumed since its last report, and how each budget stands then."""
    more = {"dollars": dollars, "tokens": tokens, "ended": ended, "day": day or clock.today()}
    return _SETTLE.run({**bearer.parameters(), **more}, using=APP)


def release(tenant_id: UUID, run_ids: Sequence[UUID]) -> None:
    """Give back what is kept for runs that have ended. Idempotent."""
    _RELEASE.run({"tenant": tenant_id, "runs": list(run_ids)}, using=APP)
