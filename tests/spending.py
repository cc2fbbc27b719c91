"""Agents with costs, and budgets with their figures."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

from activities import budgets as activity_budgets
from activities import outbox, relay
from activities.maintenance import invariants
from activities.models import ActivityRun
from activities.run_tokens import RunToken
from agents import configuration
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output, Usage
from tenants import money
from tenants.context import tenant_scope
from tenants.models import Budget, Reservation, Tenant, UsageEntry
from tests.engine import Engine


def costing(cost: str) -> Any:
    """An agent's behaviour: done at once, for so many dollars."""
    return lambda request: finished(cost)


def accepting(request: AgentRequest) -> AgentResult:
    return Accepted()


def finished(cost: str) -> Completed:
    return Completed(Output(content="done"), usage=dollars(cost))


def dollars(cost: str, tokens: int = 0) -> Usage:
    return Usage(tokens, 0, Decimal(cost), "small")


def capped(tenant: Tenant, cap: str = "1.00", **fields: Any) -> Budget:
    """Create a budget that every process has read already."""
    given = {"name": "All of it", "cap": Decimal(cap), "estimate": Decimal("0.30"), **fields}
    budget = money.create_budget(tenant.pk, given)
    configuration.forget()
    return budget


def now(budget: Budget) -> Budget:
    with tenant_scope(budget.tenant_id):
        return Budget.objects.get(pk=budget.pk)


def standing(budget: Budget) -> tuple[str, str]:
    """Spent and reserved, to the cent."""
    found = now(budget)
    return f"{found.spent:.2f}", f"{found.reserved:.2f}"


def token_of(tenant: Tenant, activity_id: UUID) -> RunToken:
    """Of the activity's last run."""
    with tenant_scope(tenant.pk):
        run = ActivityRun.objects.filter(activity_id=activity_id).order_by("-fence")[0]
    return RunToken(tenant.pk, activity_id, run.pk, run.fence)


def accepted(engine: Engine, tenant: Tenant, **fields: Any) -> RunToken:
    """A run whose agent has taken the work and will report."""
    engine.agent.behaviour = accepting
    (activity_id,) = engine.submit(tenant, **fields)
    engine.drain()
    return token_of(tenant, activity_id)


def entered(tenant: Tenant) -> Decimal:
    """Return the sum of the tenant's ledger, in dollars."""
    with tenant_scope(tenant.pk):
        return sum((entry.dollars for entry in UsageEntry.objects.all()), Decimal(0))


def kept(tenant: Tenant) -> list[Decimal]:
    with tenant_scope(tenant.pk):
        return list(Reservation.objects.order_by("id").values_list("amount", flat=True))


def let_go(engine: Engine) -> int:
    """What the background task does, and what follows from it."""
    released = activity_budgets.release_where_room()
    outbox.promote()
    relay.flush()
    return released


def broken_invariants() -> list[str]:
    return [violation.invariant for violation in invariants.check()]
