"""The limits that admission enforces: read from PostgreSQL, put in force in Redis.

Any process may refresh them at any time; the digest makes a repetition cheap. The leader does so every tick, so that a changed cap takes
effect within 2 s, and a worker when it starts, so that its first work need not wait for a tick. The limits are computed again only after a
change of the configuration or the workers: with 5,000 tenant settings, computing them takes as long as running thirty steps.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import orjson
from django.conf import settings

from activities.admission import scripts
from activities.models import WorkerProcess
from agents import configuration
from agents.governor import providers
from agents.models import Agent, AgentConfig
from tenants import pausing
from tenants.caches import ConfigurationCache
from tenants.context import system_scope
from tenants.models import Pause, PauseKind, Tenant

Limits = dict[str, dict[str, Any]]
NO_LIMIT = "none"
TRIES = 5  # Then the leader's next tick puts them in force.
_CLOSED, _OUTDATED = -1, -2  # answers of limits.lua


#: For each worker its roles, its concurrency, and by role the reason why it takes no new work.
Workers = list[tuple[list[str], int, dict[str, str]]]


class _Document(NamedTuple):
    """The limits as they are sent to Redis."""

    workers: Workers  # for which they were computed
    text: bytes
    digest: str


@dataclass
class _Latest:
    """The limits for the current configuration. The cache replaces this object when the configuration changes."""

    document: _Document | None = None


_cache: ConfigurationCache[_Latest] = ConfigurationCache(check_seconds=0.0)


def refresh(*, generation: str = "") -> bool:
    """Put the current limits in force. Returns True if they have changed. Raises `scripts.Closed`, except for a given generation.

    If another process has put limits in force since the call began, the limits are read again: those that were read here may be older, and
    would end a pause that was just set.
    """
    for _ in range(TRIES):
        version = "" if generation else scripts.run("limits_version")
        document = _current_document()
        answer = scripts.run("limits", generation, document.digest, document.text, version)
        if answer != _OUTDATED:
            break
    if answer == _CLOSED:
        raise scripts.Closed
    return bool(answer > 0)


def _current_document() -> _Document:
    with system_scope():
        latest, workers = _cache.get(None, "", _Latest), _present_workers()
        document = latest.document
        if document is None or document.workers != workers:
            text = orjson.dumps(_limits(workers), option=orjson.OPT_SORT_KEYS)
            latest.document = document = _Document(workers, text, hashlib.sha256(text).hexdigest())
    return document


def forget() -> None:
    """Compute the limits again the next time, even if nothing has changed."""
    _cache.forget()


def current() -> Limits:
    """Return caps by scope, weights by tenant and pools by role from PostgreSQL. The caps include rate limits, see lua/library.lua."""
    with system_scope():
        return _limits(_present_workers())


def _present_workers() -> Workers:
    rows = WorkerProcess.objects.filter(ended_at=None).order_by("pk")
    return list(rows.values_list("roles", "concurrency", "closed"))


def _limits(workers: Workers) -> Limits:
    caps: dict[str, int | str] = {}
    agents = {
        agent.role: agent
        for agent in Agent.objects.only(
            "role", "tenant_concurrency", "max_concurrency", "paused", "enabled", "adapter", "options"
        )
    }
    for agent in agents.values():
        caps[f"pair:*:{agent.role}"] = agent.tenant_concurrency
        if agent.paused or not agent.enabled:
            caps[f"role:{agent.role}"] = 0
        elif agent.max_concurrency is not None:
            caps[f"role:{agent.role}"] = agent.max_concurrency
    tenants = {tenant.pk: tenant for tenant in Tenant.objects.select_related("plan")}
    weights = _tenant_limits(caps, tenants.values())
    serving = Counter(role for roles, _, _ in workers for role in roles)
    _config_limits(caps, agents, serving, tenants)
    _pauses(caps, agents, tenants)
    # A worker whose intake is closed has no seats.
    pools, seats = worker_pools(
        [(roles, 0 if closed else concurrency) for roles, concurrency, closed in workers]
    )
    for role, agent in agents.items():
        if limit := agent.starts_per_minute():
            caps[f"starts:{role}"] = limit * max(1, serving[role])
    if settings.ORCHESTRATOR_MAX_CONCURRENCY:
        caps["global"] = settings.ORCHESTRATOR_MAX_CONCURRENCY
    caps |= {f"seat:{pool}": count for pool, count in seats.items()}
    return {"caps": caps, "weights": weights, "pools": pools}


def _tenant_limits(caps: dict[str, int | str], tenants: Iterable[Tenant]) -> dict[str, int]:
    weights = {}
    for tenant in tenants:
        if tenant.cap_per_group is not None:
            caps[f"groups:{tenant.pk}:*"] = tenant.cap_per_group
        for role, cap in tenant.plan.roles.items() if tenant.plan else ():
            caps[f"pair:{tenant.pk}:{role}"] = cap
        if tenant.paused or not tenant.is_active:
            caps[f"tenant:{tenant.id}"] = 0
            if tenant.is_active:
                caps[f"past:tenant:{tenant.id}"] = NO_LIMIT if tenant.cap is None else tenant.cap
        elif tenant.cap is not None:
            caps[f"tenant:{tenant.id}"] = tenant.cap
        if tenant.weight != 1:
            weights[str(tenant.id)] = tenant.weight
    return weights


def _config_limits(
    caps: dict[str, int | str],
    agents: Mapping[str, Agent],
    serving: Mapping[str, int],
    tenants: Mapping[UUID, Tenant],
) -> None:
    for config in AgentConfig.objects.only(
        "tenant_id",
        "agent_id",
        "max_concurrency",
        "max_concurrency_per_group",
        "paused",
        "enabled",
        "rate",
        "adapter",
    ):
        pair = f"{config.tenant_id}:{config.agent_id}"
        if not config.enabled:
            caps[f"pair:{pair}"] = 0
        elif config.paused:
            _pause_pair(caps, tenants.get(config.tenant_id), agents.get(config.agent_id), config)
        elif config.max_concurrency is not None:
            caps[f"pair:{pair}"] = config.max_concurrency
        if config.max_concurrency_per_group is not None:
            caps[f"groups:{pair}"] = config.max_concurrency_per_group
        if config.rate:
            caps[f"rate:{pair}"] = f"{config.rate['per_second']:.12g}|{config.rate['capacity']:.12g}"
        agent = agents.get(config.agent_id)
        if agent is not None and config.adapter and config.adapter != agent.adapter:
            # The tenant uses another adapter for the role, so its starts are limited separately.
            limit = agent.starts_per_minute(config.adapter)
            caps[f"starts:{pair}"] = limit * max(1, serving.get(config.agent_id, 0)) if limit else NO_LIMIT


def _pauses(caps: dict[str, int | str], agents: Mapping[str, Agent], tenants: Mapping[UUID, Tenant]) -> None:
    """Add the pauses of pipelines, schedules and providers. Pausing a provider pauses the roles that use it."""
    rows = list(Pause.objects.only("tenant_id", "kind", "subject"))
    caps |= dict.fromkeys(pausing.scopes_of(rows), 0)
    stopped = {(row.tenant_id, row.subject) for row in rows if row.kind == PauseKind.PROVIDER}
    if not stopped:
        return
    configs = AgentConfig.objects.filter(tenant_id__in={tenant_id for tenant_id, _ in stopped})
    own = {(each.tenant_id, each.agent_id): each for each in configs}
    for tenant_id, name in stopped:
        for role, agent in agents.items():
            config = own.get((tenant_id, role))
            adapter = (config.adapter if config else "") or agent.adapter
            if providers.name_of(adapter) == name and (config is None or config.enabled):
                _pause_pair(caps, tenants.get(tenant_id), agent, config)


def _pause_pair(
    caps: dict[str, int | str], tenant: Tenant | None, agent: Agent | None, config: AgentConfig | None
) -> None:
    if tenant is None or agent is None:
        return
    pair = f"pair:{tenant.pk}:{agent.role}"
    caps[pair], caps[f"past:{pair}"] = 0, configuration.cap_of(tenant, agent, config)


def worker_pools(workers: list[tuple[list[str], int]]) -> tuple[dict[str, str], dict[str, int]]:
    """Return the pool of each role, and the number of seats of each pool.

    Roles that some worker serves together form one pool, named after its first role. This is exact if each worker serves one role, or all
    workers serve all roles. If the roles of workers overlap partly, a pool may grant somewhat more than the workers of a role take at
    once; the rest waits in the queue of that role.
    """
    leader: dict[str, str] = {}

    def find(role: str) -> str:
        while leader[role] != role:
            leader[role] = role = leader[leader[role]]
        return role

    for roles, _ in workers:
        for role in roles:
            leader.setdefault(role, role)
        for role in roles[1:]:
            first, second = sorted((find(roles[0]), find(role)))
            leader[second] = first
    seats: dict[str, int] = defaultdict(int)
    for roles, concurrency in workers:
        if roles:
            seats[find(roles[0])] += concurrency
    return {role: find(role) for role in leader}, dict(seats)
