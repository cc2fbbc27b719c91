"""The agents as a tenant sees them: which version serves, whether it can be reached, and how its own runs went in the last day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.http import Http404

from agents import deployments
from agents.governor import overview
from agents.governor.overview import ShownProvider
from agents.models import Adapter, Agent, AgentConfig, AgentVersionDeployment
from console.agents.lately import Lately, lately
from tenants.context import tenant_scope

MOST_DEPLOYMENTS = 50


@dataclass(frozen=True, slots=True)
class Row:
    """One role. `version` is the one in production."""

    agent: Agent
    own: AgentConfig | None
    version: str
    since: AgentVersionDeployment | None
    runs: Lately
    provider: ShownProvider | None

    @property
    def adapter(self) -> str:
        return (self.own and self.own.adapter) or self.agent.adapter

    @property
    def model(self) -> str:
        return (self.own and self.own.model) or self.agent.model

    @property
    def state(self) -> str:
        """The worst that there is to say about it, in a word."""
        if not self.agent.enabled or (self.own and not self.own.enabled):
            return "switched off"
        if self.agent.paused or (self.own and self.own.paused):
            return "paused"
        if self.provider is not None and self.provider.state == "breaker_open":
            return "breaker open"
        # Only endpoints are looked at.
        return self.agent.health if self.adapter == Adapter.HTTP else "enabled"

    @property
    def has_breaker(self) -> bool:
        return self.provider is not None and self.provider.state == "breaker_open"


@dataclass(frozen=True, slots=True)
class Agents:
    """The list. `since` as in `Runs`."""

    rows: Sequence[Row]
    since: datetime | None


@dataclass(frozen=True, slots=True)
class OneAgent:
    """The page of a role: its history of versions, newest first, and its runs by version. `since` as in `Runs`."""

    row: Row
    history: Sequence[AgentVersionDeployment]
    by_version: dict[str, Lately] = field(default_factory=dict)
    since: datetime | None = None

    @property
    def can_roll_back(self) -> bool:
        return self.row.since is not None and self.row.since.previous_id is not None


def agents(tenant_id: UUID) -> Agents:
    """All roles of the registry by name, those that have run lately before the others."""
    with tenant_scope(tenant_id):
        found = list(Agent.objects.order_by("role"))
        own = _own(tenant_id)
        serving = {each.agent_id: each for each in deployments.serving([agent.role for agent in found])}
        runs = lately(tenant_id)
        led_to = overview.leading_to(tenant_id, (agent for agent in found if agent.enabled), own)
    sealed = {role for role, config in own.items() if config.auth_sealed}
    standing = overview.standing_of(led_to, own=sealed)
    providers = {role: provider for provider in standing for role in provider.roles}
    rows = [
        _row(agent, own.get(agent.role), serving.get(agent.role), runs.by_role.get(agent.role), providers.get(agent.role))
        for agent in found
    ]  # fmt: skip
    return Agents(sorted(rows, key=lambda row: not row.runs.ended), runs.since)


def agent(tenant_id: UUID, role: str) -> OneAgent | None:
    """One role, or None when the registry has no such."""
    with tenant_scope(tenant_id):
        found = Agent.objects.filter(role=role).first()
        if found is None:
            return None
        own = _own(tenant_id, role)
        history = deployments.history(role)[:MOST_DEPLOYMENTS]
        serves = deployments.in_production(role)  # which may be older than all that are listed
        runs = lately(tenant_id, role)
        led_to = overview.leading_to(tenant_id, [found], own)
    config = own.get(role)
    standing = overview.standing_of(led_to, own={role} if config and config.auth_sealed else ())
    row = _row(found, config, serves, runs.by_role.get(role), next(iter(standing), None))
    return OneAgent(row, history, runs.by_version, runs.since)


def deployment_id(text: str) -> UUID:
    """Raises `Http404` for what is none."""
    try:
        return UUID(text)
    except ValueError as error:
        raise Http404 from error


def _own(tenant_id: UUID, role: str | None = None) -> dict[str, AgentConfig]:
    rows = AgentConfig.objects.for_tenant(tenant_id)
    return {config.agent_id: config for config in (rows if role is None else rows.filter(agent_id=role))}


def _row(
    agent: Agent,
    own: AgentConfig | None,
    serves: AgentVersionDeployment | None,
    runs: Lately | None,
    provider: ShownProvider | None,
) -> Row:
    return Row(agent, own, serves.version if serves else "", serves, runs or Lately(), provider)
