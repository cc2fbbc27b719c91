"""The queues as a command shows them: for one tenant what its API says, for the platform how things stand, with caps and providers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from activities import queue_stats, selectors
from activities.api.queues import QueueSerializer
from agents.governor import overview
from agents.models import Agent, AgentConfig
from agents.routing import queue_of
from tenants.context import tenant_scope
from tenants.models import Tenant

from . import owners


def of_tenant(tenant: Tenant, roles: Collection[str]) -> dict[str, Any]:
    """As `GET /queues/`, with the caps that hold beside it."""
    with tenant_scope(tenant.pk):
        known = _known(roles)
        found = selectors.queues(tenant.pk, [agent.role for agent in known])
        own = AgentConfig.objects.for_tenant(tenant.pk).filter(max_concurrency__isnull=False)
        caps = dict(own.values_list("agent_id", "max_concurrency"))
    shown = QueueSerializer(selectors.with_grants(tenant.pk, found), many=True).data
    rows = [
        {**row, "cap": caps.get(agent.role), "role_cap": agent.max_concurrency}
        for row, agent in zip(shown, known, strict=True)
    ]
    return {
        "tenant": tenant.slug,
        "tenant_cap": tenant.max_concurrency,
        "queues": rows,
        "providers": [asdict(each) for each in overview.of_tenant(tenant.pk)],
    }


def of_platform(roles: Collection[str]) -> dict[str, Any]:
    """All tenants together. `granted` is missing (null) while Redis does not answer."""
    caps = {agent.role: agent.max_concurrency for agent in _known(roles)}
    found = [row for row in owners.standing_of_all().roles if not roles or row.role in caps]
    held = queue_stats.slots_of_roles([row.role for row in found])
    return {
        "tenant": None,
        "queues": [
            {
                "role": row.role,
                "queue": queue_of(row.role),
                "waiting": row.waiting,
                "granted": max(0, held[row.role] - row.running) if row.role in held else None,
                "running": row.running,
                "delayed": row.later,
                "oldest_wait_seconds": round(row.oldest_seconds, 3) if row.depth else None,
                "workers": row.workers,
                "paused": row.paused,
                "role_cap": caps.get(row.role),
            }
            for row in found
        ],
        "providers": [asdict(each) for each in overview.of_platform()],
    }


def _known(roles: Collection[str]) -> list[Agent]:
    rows = Agent.objects.order_by("role")
    return list(rows.filter(role__in=roles) if roles else rows.filter(enabled=True))
