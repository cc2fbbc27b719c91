"""Skills of a tenant, and runs that receive them."""

from __future__ import annotations

from typing import Any

from agents import configuration
from agents.contracts import (
    AgentRequest,
)
from agents.models import Skill
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import AgentClient
from tests.engine import Engine

TONE = {"key": "tone", "name": "Tone", "description": "How we sound.", "content": "Be kind.\n"}
CLIENT = {"key": "client", "name": "Acme", "content": "# Acme\n\nSells tea.", "kind": "context"}


def add_skill(tenant: Tenant, **fields: Any) -> Skill:
    with tenant_scope(tenant.pk):
        skill = Skill.objects.create(tenant=tenant, **{**TONE, **fields})
    configuration.forget()
    return skill


def run(engine: Engine, tenant: Tenant, role: str = "qa") -> AgentRequest:
    engine.submit(tenant, role)
    engine.drain()
    return engine.agent.calls[-1]


def read(agent: AgentClient, key: str = "tone") -> Any:
    return agent.client.get(f"/{agent.address}skills/{key}/")
