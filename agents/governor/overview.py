"""The model providers as they stand, for people: all of them for the platform, for a tenant those that its agents call.

A tenant sees of a provider whose credential it shares with others only what concerns itself: whether it is called at all, and when again.
Figures are shown where the credential is the tenant's own. While Redis does not answer, a state is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import redis

from agents import configuration
from agents.exceptions import AgentError
from agents.governor import known, providers
from agents.governor.governor import Governor, Standing
from agents.governor.profiles import Profile
from agents.models import Agent, AgentConfig
from tenants.context import tenant_scope
from tenants.exceptions import LimiterUnavailable


@dataclass(frozen=True, slots=True)
class ShownProvider:
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


def of_platform() -> list[ShownProvider]:
    """All that were called within two days, with all their figures."""
    try:
        rows = known.providers()
    except redis.RedisError:
        return []
    return [_shown(row.adapter, row.place, (), _look(row.key, row.profile), own=True) for row in rows]


def of_tenant(tenant_id: UUID) -> list[ShownProvider]:
    """Those that the tenant's enabled roles lead to."""
    with tenant_scope(tenant_id):
        own = set(
            AgentConfig.objects.for_tenant(tenant_id)
            .exclude(auth_sealed="")
            .values_list("agent_id", flat=True)
        )
        roles: Iterable[str] = list(_roles_of_models(tenant_id))
        led_to = {role: provider for role in roles if (provider := _provider_of(tenant_id, role)) is not None}
    by_key: dict[str, list[str]] = {}
    for role, provider in led_to.items():
        by_key.setdefault(provider.key, []).append(role)
    shown = []
    for key, names in by_key.items():
        provider = led_to[names[0]]
        standing = _look(key, provider.profile)
        shown.append(
            _shown(
                provider.adapter, provider.place, tuple(sorted(names)), standing, own=own.issuperset(names)
            )
        )
    return sorted(shown, key=lambda each: (each.adapter, each.place, each.roles))


def failing() -> list[known.KnownProvider]:
    """Those whose breaker is not closed. Raises `redis.RedisError`, `LimiterUnavailable`."""
    return [row for row in known.providers() if Governor(row.key, row.profile).look().breaker != "closed"]


def leads_to(tenant_id: UUID, role: str, key: str) -> bool:
    """Whether the role's settings for the tenant lead to the provider of this key."""
    found = _provider_of(tenant_id, role)
    return found is not None and found.key == key


def _roles_of_models(tenant_id: UUID) -> Iterable[str]:
    configs = {
        each.agent_id: each.adapter for each in AgentConfig.objects.for_tenant(tenant_id).exclude(adapter="")
    }
    for role, adapter in Agent.objects.filter(enabled=True).values_list("role", "adapter"):
        if configs.get(role, adapter) in providers.NAMES:
            yield role


def _provider_of(tenant_id: UUID, role: str) -> providers.Provider | None:
    """None for a role that cannot call any: it has no key, or settings that lead nowhere."""
    try:
        return providers.provider_of(configuration.settings_for(tenant_id, role).adapter)
    except AgentError:
        return None


def _look(key: str, profile: Profile) -> Standing | None:
    try:
        return Governor(key, profile).look()
    except LimiterUnavailable:
        return None


def _shown(
    adapter: str, place: str, roles: tuple[str, ...], standing: Standing | None, *, own: bool
) -> ShownProvider:
    if standing is None:
        return ShownProvider(adapter, place, roles, "unknown", 0.0, 0.0, None, None, None, None, None)
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
    return ShownProvider(
        adapter,
        place,
        roles,
        state,
        round(standing.retry_seconds, 1),
        round(standing.breaker_seconds, 1),
        *figures,
    )
