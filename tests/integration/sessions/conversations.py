"""Agents that name their sessions, and the recorded sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.models import AgentSession
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import AgentClient
from tests.engine import Engine, in_another_thread

REPORT = uuid4()  # a deliverable


def naming(*ids: str) -> Callable[[AgentRequest], AgentResult]:
    """Let the agent name these sessions one after another, and the last one from then on."""
    remaining = list(ids)

    def behave(request: AgentRequest) -> AgentResult:
        return Completed(Output("done"), session_id=remaining.pop(0) if len(remaining) > 1 else remaining[0])

    return behave


def run(engine: Engine, tenant: Tenant, role: str = "qa", **fields: Any) -> AgentRequest:
    """Run one more activity for the report and return the request to its agent."""
    engine.submit(tenant, role, **{"deliverable_id": REPORT, **fields})
    engine.drain()
    return engine.agent.calls[-1]


def heartbeat(request: AgentRequest, **body: Any) -> Any:
    return in_another_thread(lambda: AgentClient(request).post("heartbeat", body))


def history(tenant: Tenant) -> list[tuple[str, str]]:
    """Return all sessions of a tenant with their end reasons, oldest first."""
    with tenant_scope(tenant.pk):
        rows = AgentSession.objects.order_by("created_at", "pk")
        return list(rows.values_list("external_session_id", "end_reason"))


def live(tenant: Tenant) -> list[str]:
    return [session for session, reason in history(tenant) if not reason]
