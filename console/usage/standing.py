"""How the budgets of a tenant stand today: spent, kept for what runs, and left."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from tenants.models import Budget, BudgetUnit
from tenants.money import budgets

MOST_BUDGETS = 100


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One budget in its present period. `share` is what of the cap is spent or kept; it may be more than all."""

    budget: Budget
    share: float

    @property
    def tone(self) -> str:
        if self.share >= 1:
            return "bad"
        return "ask" if self.share >= float(self.budget.warning_share) else ""

    @property
    def percent(self) -> str:
        return f"{self.share:.0%}"

    @property
    def left(self) -> Decimal:
        return max(Decimal(0), self.budget.cap - self.budget.spent - self.budget.reserved).normalize() + 0

    @property
    def spent(self) -> Decimal:
        return self.budget.spent.normalize() + 0

    @property
    def reserved(self) -> Decimal:
        return self.budget.reserved.normalize() + 0

    @property
    def cap(self) -> Decimal:
        return self.budget.cap.normalize() + 0

    @property
    def is_money(self) -> bool:
        return self.budget.unit == BudgetUnit.DOLLARS

    @property
    def scope(self) -> str:
        """What it counts, in words."""
        parts = [self.budget.agent_role or "all roles"]
        parts += ["one deliverable"] if self.budget.deliverable_id else []
        parts += ["one activity"] if self.budget.activity_id else []
        return ", ".join(parts)


def budgets_of(tenant_id: UUID) -> list[BudgetLine]:
    """All of them, by name. In the caller's `tenant_scope`."""
    rows = Budget.objects.for_tenant(tenant_id).filter(deleted_at=None).order_by("name", "pk")[:MOST_BUDGETS]
    return [_line(budget) for budget in rows]


def _line(budget: Budget) -> BudgetLine:
    budgets.roll(budget)  # as it stands today; the row follows with the next run
    taken = budget.spent + budget.reserved
    share = float(taken / budget.cap) if budget.cap else (1.0 if taken else 0.0)
    return BudgetLine(budget, share)
