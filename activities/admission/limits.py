"""The limits that admission enforces: read from PostgreSQL, put in force in Redis.

Any process may do it at any time; the digest makes a repetition free. The leader does it every tick, so a change of a cap acts
within 2 s, and a worker does it when it comes up, so its first work need not wait for a tick.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings

from activities.admission import scripts
from activities.leases import ALL
from activities.models import WorkerProcess
from agents import configuration
from agents.governor import providers
from agents.models import Agent, AgentConfig
from tenants import pausing
from tenants.context import system_scope
from tenants.models import Pause, PauseKind, Tenant

Limits = dict[str, dict[str, Any]]
NO_LIMIT = "none"


def refresh(*, generation: str = "") -> bool:
    """Put the present limits in force; True if they differ from before. Raises `scripts.Closed` unless a generation is given."""
    limits = current()
    document = orjson.dumps(limits, option=orjson.OPT_SORT_KEYS)
    answer = scripts.run("limits", generation, hashlib.sha256(document).hexdigest(), document)
    if answer < 0:
        raise scripts.Closed
    return bool(answer)


def current() -> Limits:
    """Caps by scope, weights by tenant, pools by role, as the rows say. Limits over time are among the caps, see lua/library.lua."""
    caps: dict[str, int | str] = {}
    with system_scope():
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
        workers = list(
            WorkerProcess.objects.filter(ended_at=None).values_list("roles", "concurrency", "closed")
        )
        serving = Counter(role for roles, _, _ in workers for role in roles)
        _config_limits(caps, agents, serving, tenants)
        _pauses(caps, agents, tenants)
        pools, seats = worker_pools([_behind_doors(*worker) for worker in workers])
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
                caps[f"past:tenant:{tenant.id}"] = _or_none(tenant.cap)
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
            # It does the role in another way than the others, so it has starts of its own.
            limit = agent.starts_per_minute(config.adapter)
            caps[f"starts:{pair}"] = limit * max(1, serving.get(config.agent_id, 0)) if limit else NO_LIMIT


def _pauses(caps: dict[str, int | str], agents: Mapping[str, Agent], tenants: Mapping[UUID, Tenant]) -> None:
    """What tenants have paused besides roles and themselves. A provider's pause is that of the roles that lead to it."""
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


def _or_none(cap: int | None) -> int | str:
    return NO_LIMIT if cap is None else cap


def _behind_doors(roles: list[str], concurrency: int, closed: dict[str, str]) -> tuple[list[str], int]:
    """What a worker serves right now: a closed door withdraws a role, the door for all of them every seat."""
    return [role for role in roles if role not in closed], 0 if ALL in closed else concurrency


def worker_pools(workers: list[tuple[list[str], int]]) -> tuple[dict[str, str], dict[str, int]]:
    """Which roles share workers, and how many seats these have together.

    Roles that any worker serves together form one pool, named after its first role. With one worker per role, or one worker for
    all, that counts exactly; where worker sets overlap in part, a pool may grant somewhat more to a role than its workers take at
    once, and the rest waits in that role's queue.
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
