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


def complete_at_cost(cost: str) -> Any:
    """Return a behaviour that completes immediately at this cost in dollars."""
    return lambda request: result_costing(cost)


def accept(request: AgentRequest) -> AgentResult:
    return Accepted()


def result_costing(cost: str) -> Completed:
    return Completed(Output(content="done"), usage=dollars(cost))


def dollars(cost: str, tokens: int = 0) -> Usage:
    return Usage(tokens, 0, Decimal(cost), "small")


def make_budget(tenant: Tenant, cap: str = "1.00", **fields: Any) -> Budget:
    """Create a budget and forget cached settings, so that it applies immediately."""
    values = {"name": "All of it", "cap": Decimal(cap), "estimate": Decimal("0.30"), **fields}
    budget = money.create_budget(tenant.pk, values)
    configuration.forget()
    return budget


def reload(budget: Budget) -> Budget:
    with tenant_scope(budget.tenant_id):
        return Budget.objects.get(pk=budget.pk)


def spent_and_reserved(budget: Budget) -> tuple[str, str]:
    """Return what is spent and reserved, to the cent."""
    current = reload(budget)
    return f"{current.spent:.2f}", f"{current.reserved:.2f}"


def run_token_of(tenant: Tenant, activity_id: UUID) -> RunToken:
    """Return the token of the activity's last run."""
    with tenant_scope(tenant.pk):
        run = ActivityRun.objects.filter(activity_id=activity_id).order_by("-fence")[0]
    return RunToken(tenant.pk, activity_id, run.pk, run.fence)


def accept_run(engine: Engine, tenant: Tenant, **fields: Any) -> RunToken:
    """Start a run whose agent accepts the work and will report later."""
    engine.agent.behaviour = accept
    (activity_id,) = engine.submit(tenant, **fields)
    engine.drain()
    return run_token_of(tenant, activity_id)


def ledger_total(tenant: Tenant) -> Decimal:
    """Return the sum of the tenant's ledger, in dollars."""
    with tenant_scope(tenant.pk):
        return sum((entry.dollars for entry in UsageEntry.objects.all()), Decimal(0))


def reserved_amounts(tenant: Tenant) -> list[Decimal]:
    with tenant_scope(tenant.pk):
        return list(Reservation.objects.order_by("id").values_list("amount", flat=True))


def release_waiting_work(engine: Engine) -> int:
    """Release the work for which budgets have room, as the background task does, and offer it to admission."""
    released = activity_budgets.release_where_room()
    outbox.promote()
    relay.flush()
    return released


def broken_invariants() -> list[str]:
    return [violation.invariant for violation in invariants.check()]
