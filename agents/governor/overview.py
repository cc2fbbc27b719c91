"""The model providers as they stand, for people: all of them for the platform, for a tenant those that its agents call.

A tenant sees of a provider whose credential it shares with others only what concerns itself: whether it is called at all, and when again.
Figures are shown where the credential is the tenant's own. While Redis does not answer, a state is unknown.
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
from agents.governor import Governor, Standing, providers
from agents.governor.limits import Profile
from agents.models import Agent, AgentConfig
from tenants.context import tenant_scope
from tenants.exceptions import LimiterUnavailable


@dataclass(frozen=True, slots=True)
class ProviderRow:
    """A provider with its state. Figures are None where they are not the caller's to see."""

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
    """All that were called within two days, with all their figures."""
    try:
        rows = providers.list_known_providers()
    except redis.RedisError:
        return []
    return [_show_provider(row.adapter, row.place, (), _look(row.key, row.profile), own=True) for row in rows]


def of_tenant(tenant_id: UUID) -> list[ProviderRow]:
    """The providers that the tenant's enabled roles call."""
    with tenant_scope(tenant_id):
        configs = {each.agent_id: each for each in AgentConfig.objects.for_tenant(tenant_id)}
        led_to = leading_to(tenant_id, Agent.objects.filter(enabled=True), configs)
    return state_of(led_to, own={role for role, config in configs.items() if config.auth_sealed})


def leading_to(
    tenant_id: UUID, agents: Iterable[Agent], own: Mapping[str, AgentConfig]
) -> dict[str, providers.Provider]:
    """The provider that each of these roles calls for the tenant, whose settings are given by role. In the caller's `tenant_scope`."""
    chosen = [agent for agent in agents if _adapter_of(agent, own) in providers.NAMES]
    reached = configuration.adapters_of(tenant_id, chosen, own) if chosen else {}
    found = {role: _provider_of(adapter) for role, adapter in reached.items()}
    return {role: provider for role, provider in found.items() if provider is not None}


def state_of(led_to: Mapping[str, providers.Provider], *, own: Collection[str]) -> list[ProviderRow]:
    """How these providers stand, each once. `own` are the roles with credentials of the tenant's. Asks Redis: not in a transaction."""
    by_key: dict[str, list[str]] = {}
    for role, provider in led_to.items():
        by_key.setdefault(provider.key, []).append(role)
    shown = []
    for key, names in by_key.items():
        provider = led_to[names[0]]
        standing = _look(key, provider.profile)
        shown.append(
            _show_provider(
                provider.adapter,
                provider.place,
                tuple(sorted(names)),
                standing,
                own=set(own).issuperset(names),
            )
        )
    return sorted(shown, key=lambda each: (each.adapter, each.place, each.roles))


def failing() -> list[providers.KnownProvider]:
    """Those whose breaker is not closed. Raises `redis.RedisError`, `LimiterUnavailable`."""
    return [
        row
        for row in providers.list_known_providers()
        if Governor(row.key, row.profile).look().breaker != "closed"
    ]


def leads_to(tenant_id: UUID, role: str, key: str) -> bool:
    """Whether the role's settings for the tenant lead to the provider of this key."""
    try:
        adapter = configuration.settings_for(tenant_id, role).adapter
    except AgentError:
        return False
    found = _provider_of(adapter)
    return found is not None and found.key == key


def _adapter_of(agent: Agent, own: Mapping[str, AgentConfig]) -> str:
    config = own.get(agent.role)
    return (config and config.adapter) or agent.adapter


def _provider_of(adapter: AdapterSettings) -> providers.Provider | None:
    """None for a role that cannot call any: it has no key, or settings that lead nowhere."""
    try:
        return providers.provider_of(adapter)
    except AgentError:
        return None


def _look(key: str, profile: Profile) -> Standing | None:
    try:
        return Governor(key, profile).look()
    except LimiterUnavailable:
        return None


def _show_provider(
    adapter: str, place: str, roles: tuple[str, ...], standing: Standing | None, *, own: bool
) -> ProviderRow:
    if standing is None:
        return ProviderRow(adapter, place, roles, "unknown", 0.0, 0.0, None, None, None, None, None)
    state = (
        "breaker_open"
        if standing.breaker != "closed"
        else "retry_after"
        if standing.retry_seconds
        else "ready"
    )
    figures: tuple[Any, ...] = (
        (standing.under_way, standing.slots, standing.used, standing.limits, standing.counts)
        if own
        else (None,) * 5
    )
    return ProviderRow(
        adapter,
        place,
        roles,
        state,
        round(standing.retry_seconds, 1),
        round(standing.breaker_seconds, 1),
        *figures,
    )
