"""The state of the model providers, for people: all of them for the platform, for a tenant those that its agents call.

If a tenant shares a provider's credential with others, it sees only whether the provider can be called, and when. It sees figures only
for its own credentials. While Redis does not answer, the state is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import redis

from agents import configuration
from agents.contracts import AdapterSettings
from agents.exceptions import AgentError
from agents.governor import Governor, ProviderStatus, providers
from agents.governor.limits import Profile
from agents.models import Agent, AgentConfig
from tenants.context import tenant_scope
from tenants.exceptions import LimiterUnavailable


@dataclass(frozen=True, slots=True)
class ProviderRow:
    """A provider with its state. Figures are None if the caller may not see them."""

    adapter: str
    place: str
    roles: tuple[str, ...]
    state: str  # ready, retry_after, breaker_open, unknown
    retry_seconds: float
    breaker_seconds: float
    under_way: int | None
    slots: int | None
    used: Mapping[str, int] | None
    limits: Mapping[str, int | None] | None
    counts: Mapping[str, int] | None


def of_platform() -> list[ProviderRow]:
    """Return all providers that were called within two days, with all figures."""
    try:
        rows = providers.list_known_providers()
    except redis.RedisError:
        return []
    return [_row_of(row.adapter, row.place, (), _status_of(row.key, row.profile), own=True) for row in rows]


def of_tenant(tenant_id: UUID) -> list[ProviderRow]:
    """Return the providers that the tenant's enabled roles call."""
    with tenant_scope(tenant_id):
        configs = {each.agent_id: each for each in AgentConfig.objects.for_tenant(tenant_id)}
        by_role = providers_of_roles(tenant_id, Agent.objects.filter(enabled=True), configs)
    return rows_of(by_role, own={role for role, config in configs.items() if config.auth_sealed})


def providers_of_roles(
    tenant_id: UUID, agents: Iterable[Agent], own: Mapping[str, AgentConfig]
) -> dict[str, providers.Provider]:
    """Return the provider that each role calls for the tenant, whose settings are passed by role. Must run in a `tenant_scope`."""
    callers = [agent for agent in agents if _adapter_of(agent, own) in providers.NAMES]
    adapters = configuration.adapters_of(tenant_id, callers, own) if callers else {}
    by_role = {role: _provider_of(adapter) for role, adapter in adapters.items()}
    return {role: provider for role, provider in by_role.items() if provider is not None}


def rows_of(by_role: Mapping[str, providers.Provider], *, own: Collection[str]) -> list[ProviderRow]:
    """Return the state of these providers, each once. `own` are the roles with the tenant's own credentials.

    Reads Redis, so it must not run in a transaction.
    """
    by_key: dict[str, list[str]] = {}
    for role, provider in by_role.items():
        by_key.setdefault(provider.key, []).append(role)
    rows = []
    for key, names in by_key.items():
        provider, roles = by_role[names[0]], tuple(sorted(names))
        status = _status_of(key, provider.profile)
        rows.append(_row_of(provider.adapter, provider.place, roles, status, own=set(own).issuperset(names)))
    return sorted(rows, key=lambda each: (each.adapter, each.place, each.roles))


def failing() -> list[providers.KnownProvider]:
    """Return the providers whose breaker is not closed. Raises `redis.RedisError`, `LimiterUnavailable`."""
    return [
        row
        for row in providers.list_known_providers()
        if Governor(row.key, row.profile).status().breaker != "closed"
    ]


def calls_provider(tenant_id: UUID, role: str, key: str) -> bool:
    """Whether the role calls the provider of this key for the tenant."""
    try:
        adapter = configuration.settings_for(tenant_id, role).adapter
    except AgentError:
        return False
    provider = _provider_of(adapter)
    return provider is not None and provider.key == key


def _adapter_of(agent: Agent, own: Mapping[str, AgentConfig]) -> str:
    config = own.get(agent.role)
    return (config and config.adapter) or agent.adapter


def _provider_of(adapter: AdapterSettings) -> providers.Provider | None:
    """Return the provider, or None if these settings cannot call any: they have no key, or are invalid."""
    try:
        return providers.provider_of(adapter)
    except AgentError:
        return None


def _status_of(key: str, profile: Profile) -> ProviderStatus | None:
    try:
        return Governor(key, profile).status()
    except LimiterUnavailable:
        return None


def _row_of(
    adapter: str, place: str, roles: tuple[str, ...], status: ProviderStatus | None, *, own: bool
) -> ProviderRow:
    if status is None:
        return ProviderRow(adapter, place, roles, "unknown", 0.0, 0.0, None, None, None, None, None)
    state = "retry_after" if status.retry_seconds else "ready"
    if status.breaker != "closed":
        state = "breaker_open"
    retry_seconds, breaker_seconds = round(status.retry_seconds, 1), round(status.breaker_seconds, 1)
    figures: tuple[Any, ...] = (
        (status.under_way, status.slots, status.used, status.limits, status.counts) if own else (None,) * 5
    )
    return ProviderRow(adapter, place, roles, state, retry_seconds, breaker_seconds, *figures)
