"""The read-only admin of budgets, reservations, waiting activities, and the ledger. Caps are changed through the API."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from unfold.decorators import display

from tenants.admin.bases import NOTHING, RecordAdmin, column_of
from tenants.models import Budget, BudgetWait, Reservation, UsageEntry


def _figure(name: str) -> Any:
    """Return a column with an amount without trailing zeros."""
    return column_of(
        name,
        name.capitalize(),
        lambda row, amount: NOTHING if amount is None else f"{amount.normalize():,f}",
        ordering=name,
    )


@admin.register(Budget)
class BudgetAdmin(RecordAdmin):
    list_display = (
        "name",
        "tenant",
        "scope",
        "unit",
        "period",
        "cap_shown",
        "spent_shown",
        "reserved_shown",
        "warned_at",
        "waiting_since",
    )
    list_filter = ("unit", "period")
    search_fields = ("name", "agent_role")

    cap_shown, spent_shown, reserved_shown = _figure("cap"), _figure("spent"), _figure("reserved")
    overshoot_shown, estimate_shown = _figure("overshoot"), _figure("estimate")

    @display(description="Counts")
    def scope(self, budget: Budget) -> str:
        named = {
            "role": budget.agent_role,
            "deliverable": budget.deliverable_id,
            "activity": budget.activity_id,
        }
        return ", ".join(f"{what} {which}" for what, which in named.items() if which) or "everything"


@admin.register(UsageEntry)
class UsageEntryAdmin(RecordAdmin):
    list_display = (
        "at",
        "tenant",
        "agent_role",
        "model",
        "input_tokens",
        "output_tokens",
        "dollars_shown",
        "runs",
        "unpriced",
    )
    list_filter = ("unpriced",)
    search_fields = ("agent_role", "model")
    dollars_shown = _figure("dollars")
    ids = ("run_id", "activity_id", "deliverable_id")


@admin.register(Reservation)
class ReservationAdmin(RecordAdmin):
    list_display = ("budget", "tenant", "run_id", "activity_id", "amount_shown", "reserved_at")
    amount_shown = _figure("amount")


@admin.register(BudgetWait)
class BudgetWaitAdmin(RecordAdmin):
    list_display = ("budget", "tenant", "activity_id", "amount_shown", "priority", "since")
    amount_shown = _figure("amount")
