"""`manage.py tenants`: every tenant with what waits and runs, its limits, and what it has spent this month."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from activities import queue_stats
from orchestrator import cli
from orchestrator.cli import TerminalCommand, show_progress
from tenants import clock, money
from tenants.context import tenant_scope
from tenants.models import Budget, BudgetPeriod, Tenant

HEAD = (
    "slug",
    "name",
    "state",
    "weight",
    "cap",
    "waiting",
    "running",
    "delayed",
    "people",
    "failed",
    "spent this month",
    "budgets",
)


class Command(TerminalCommand):
    help = "List the tenants: what waits and runs, what people are asked for, limits, and what was spent this month (UTC)."
    tenant_help = "only this one"
    examples = ("tenants", "tenants --tenant acme", "tenants --json")

    def look(self, *, tenant: str | None, **options: Any) -> list[dict[str, Any]]:
        found = cli.all_of_them(tenant)
        return [_show_tenant(each) for each in show_progress(found, "tenants", self.stderr)]

    def show(self, found: list[dict[str, Any]]) -> None:
        rows = [
            (
                each["slug"], each["name"], each["state"], each["weight"], each["max_concurrency"], each["waiting"], each["running"],
                each["delayed"], each["asked_of_people"], each["failed"], f"{each['spent_usd']:.2f} USD",
                ", ".join(_budget(budget) for budget in each["budgets"]),
            )
            for each in found
        ]  # fmt: skip
        self.table(HEAD, rows)


def _show_tenant(tenant: Tenant) -> dict[str, Any]:
    month = money.start_of(BudgetPeriod.MONTH, clock.today())
    with tenant_scope(tenant.pk):
        figures = queue_stats.stats_of_queues()
        spent = money.ledger_entries(tenant.pk, first=month).aggregate(**money.FIGURES)
        own = list(Budget.objects.for_tenant(tenant.pk).filter(deleted_at=None).order_by("name", "pk"))
    return {
        "slug": tenant.slug,
        "id": tenant.pk,
        "name": tenant.name,
        "state": "suspended" if not tenant.is_active else "paused" if tenant.paused else "active",
        "weight": tenant.weight,
        "max_concurrency": tenant.cap,
        "waiting": sum(role.depth for role in figures.roles),
        "running": sum(role.running for role in figures.roles),
        "delayed": sum(role.later for role in figures.roles),
        "asked_of_people": sum(row.waiting for row in figures.people),
        "failed": figures.failed + figures.needs_review,
        "spent_usd": money.figures_of(spent)["cost_usd"],
        "budgets": [_figures(budget) for budget in own],
    }


def _figures(budget: Budget) -> dict[str, Any]:
    money.roll(budget)  # as it stands today
    shown = {name: Decimal(getattr(budget, name)).normalize() + 0 for name in ("spent", "reserved", "cap")}
    return {"name": budget.name, "unit": budget.unit, "period": budget.period, **shown}


def _budget(budget: dict[str, Any]) -> str:
    return f"{budget['name']}: {budget['spent']} of {budget['cap']} {budget['unit']}"
