"""`manage.py tenants`: lists the tenants with their work, limits and spending of this month."""

from __future__ import annotations

from typing import Any

from activities import queue_stats
from orchestrator import cli
from orchestrator.cli import TerminalCommand, show_progress
from tenants import money
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
    help = "List the tenants: waiting and running work, items for people, limits, and spending of this month (UTC)."
    tenant_help = "only this one"
    examples = ("tenants", "tenants --tenant acme", "tenants --json")

    def query(self, *, tenant: str | None, **options: Any) -> list[dict[str, Any]]:
        tenants = cli.find_tenants(tenant)
        return [_describe_tenant(each) for each in show_progress(tenants, "tenants", self.stderr)]

    def render(self, result: list[dict[str, Any]]) -> None:
        rows = [
            (
                each["slug"], each["name"], each["state"], each["weight"], each["max_concurrency"], each["waiting"], each["running"],
                each["delayed"], each["asked_of_people"], each["failed"], f"{each['spent_usd']:.2f} USD",
                ", ".join(f"{budget['name']}: {budget['spent']} of {budget['cap']} {budget['unit']}" for budget in each["budgets"]),
            )
            for each in result
        ]  # fmt: skip
        self.write_table(HEAD, rows)


def _describe_tenant(tenant: Tenant) -> dict[str, Any]:
    month = money.start_of(BudgetPeriod.MONTH)
    with tenant_scope(tenant.pk):
        figures = queue_stats.stats_of_queues()
        spent = money.ledger_entries(tenant.pk, first=month).aggregate(**money.FIGURES)
        budgets = list(Budget.objects.for_tenant(tenant.pk).filter(deleted_at=None).order_by("name", "pk"))
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
        "budgets": [_figures(budget) for budget in budgets],
    }


def _figures(budget: Budget) -> dict[str, Any]:
    money.roll(budget)  # to the current period
    amounts = {
        name: money.without_trailing_zeros(getattr(budget, name)) for name in ("spent", "reserved", "cap")
    }
    return {"name": budget.name, "unit": budget.unit, "period": budget.period, **amounts}
