"""What the registry, the platform and a tenant have set for queues: who has paused them, and how much may run at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from agents.governor import overview
from agents.governor.overview import ShownProvider
from agents.governor.providers import Provider
from agents.models import Agent, AgentConfig
from tenants.models import Tenant


@dataclass(frozen=True, slots=True)
class Caps:
    """How many may run at once, from the narrowest bound to the widest. None: no bound."""

    tenant_and_role: int
    is_own: bool  # set by the tenant, not the registry's default
    group: int
    tenant: int | None
    role: int | None


@dataclass(slots=True)
class Arranged:
    """What the registry and the tenant have set, by role."""

    tenant: Tenant
    agents: dict[str, Agent]
    own: dict[str, AgentConfig]
    led_to: Mapping[str, Provider] = field(default_factory=dict)

    @classmethod
    def read(cls, tenant_id: UUID, role: str | None = None) -> Arranged:
        agents = Agent.objects.filter(enabled=True).order_by("role")
        own = AgentConfig.objects.for_tenant(tenant_id)
        if role is not None:
            agents, own = agents.filter(role=role), own.filter(agent_id=role)
        found = cls(
            Tenant.objects.get(pk=tenant_id),
            {agent.role: agent for agent in agents},
            {config.agent_id: config for config in own},
        )
        found.led_to = overview.leading_to(tenant_id, found.agents.values(), found.own)
        return found

    def paused_by(self, role: str) -> str:
        """The first of tenant, platform, off (the tenant does without the role) and role that keeps it from starting anything."""
        config = self.own.get(role)
        if self.tenant.paused:
            return "tenant"
        if self.agents[role].paused:
            return "platform"
        if config is not None and not config.enabled:
            return "off"
        return "role" if self.is_paused(role) else ""

    def is_paused(self, role: str) -> bool:
        """Whether the tenant has paused the role by itself, whatever else holds it up."""
        config = self.own.get(role)
        return config is not None and config.paused

    def caps(self, role: str) -> Caps:
        agent, config = self.agents[role], self.own.get(role)
        own = config.max_concurrency if config else None
        group = config.max_concurrency_per_group if config else None
        return Caps(
            tenant_and_role=own or agent.tenant_concurrency,
            is_own=own is not None,
            group=group or 1,
            tenant=self.tenant.max_concurrency,
            role=agent.max_concurrency,
        )

    def providers(self) -> dict[str, ShownProvider]:
        """By role. Asks Redis."""
        own = {role for role, config in self.own.items() if config.auth_sealed}
        standing = overview.standing_of(self.led_to, own=own)
        return {role: provider for provider in standing for role in provider.roles}
