"""Agents that name their conversations, and what is on record of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.models import AgentSession
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, elsewhere
from tests.integration.agent_runs.accepted_work import Agent

REPORT = uuid4()  # a deliverable


def naming(*ids: str) -> Callable[[AgentRequest], AgentResult]:
    """An agent whose runs name these conversations, one after another; the last one from then on."""
    left = list(ids)

    def behave(request: AgentRequest) -> AgentResult:
        return Completed(Output("done"), session_id=left.pop(0) if len(left) > 1 else left[0])

    return behave


def run(engine: Engine, tenant: Tenant, role: str = "qa", **fields: Any) -> AgentRequest:
    """One more activity about the report; what its agent was asked."""
    engine.submit(tenant, role, **{"deliverable_id": REPORT, **fields})
    engine.drain()
    return engine.agent.calls[-1]


def heartbeat(request: AgentRequest, **body: Any) -> Any:
    return elsewhere(lambda: Agent(request).post("heartbeat", body))


def history(tenant: Tenant) -> list[tuple[str, str]]:
    """All conversations of a tenant with why they ended, oldest first."""
    with tenant_scope(tenant.pk):
        rows = AgentSession.objects.order_by("created_at", "pk")
        return list(rows.values_list("external_session_id", "end_reason"))


def live(tenant: Tenant) -> list[str]:
    return [session for session, reason in history(tenant) if not reason]
