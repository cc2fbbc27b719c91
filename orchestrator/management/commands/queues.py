"""`manage.py queues [ROLE ...]`: prints the waiting, running and delayed work by role, its workers, its caps and the providers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser

from activities import queue_stats, selectors
from activities.api.queues import QueueSerializer
from agents.governor import overview
from agents.models import Agent, AgentConfig
from agents.routing import queue_of
from console.labels import in_words
from orchestrator.cli import TerminalCommand
from tenants.context import tenant_scope
from tenants.management.base import owner_of
from tenants.models import Tenant

HEAD = (
    "role",
    "urgent",
    "gated",
    "normal",
    "background",
    "granted",
    "running",
    "delayed",
    "oldest",
    "workers",
    "cap",
    "state",
)


class Command(TerminalCommand):
    help = "Print the queues of all tenants together, or with --tenant those of one tenant."
    tenant_help = "only this tenant's work, with its own caps and pauses"
    examples = ("queues", "queues qa dev --tenant acme", "queues --json")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("roles", nargs="*", metavar="ROLE", help="only these; default: all enabled roles")
        super().add_arguments(parser)

    def query(self, *, roles: list[str], tenant: str | None, **options: Any) -> dict[str, Any]:
        if unknown := sorted(
            set(roles) - set(Agent.objects.filter(role__in=roles).values_list("role", flat=True))
        ):
            raise CommandError(f"There is no role {unknown[0]!r}. See: manage.py agents list")
        if tenant is None:
            return queues_of_platform(roles)
        return queues_of_tenant(owner_of(tenant), roles)

    def render(self, result: dict[str, Any]) -> None:
        self.write_table(HEAD, [_row(queue) for queue in result["queues"]])
        if result.get("tenant_cap") is not None:
            self.stdout.write(f"\nat most {result['tenant_cap']} at once over all roles")
        if result["providers"]:
            self.stdout.write("\nmodel providers")
            self.write_table(
                ("provider", "address", "roles", "state", "retry in"),
                [_provider(each) for each in result["providers"]],
            )


def _row(queue: dict[str, Any]) -> tuple[Any, ...]:
    oldest = queue["oldest_wait_seconds"]
    return (
        queue["role"],
        *queue["waiting"].values(),
        queue["granted"],
        queue["running"],
        queue["delayed"],
        None if oldest is None else in_words(oldest),
        queue["workers"],
        _cap(queue),
        _state(queue),
    )


def _cap(queue: dict[str, Any]) -> str:
    """Format the tenant's cap of the role, and the role's cap over all tenants."""
    own, of_role = queue.get("cap"), queue["role_cap"]
    parts = ([f"{own} own"] if own is not None else []) + ([f"{of_role} role"] if of_role is not None else [])
    return ", ".join(parts)


def _state(queue: dict[str, Any]) -> str:
    if queue["paused"]:
        return "paused"
    waits = any(queue["waiting"].values())
    return "no worker" if waits and not queue["workers"] else "served" if queue["workers"] else ""


def _provider(provider: dict[str, Any]) -> tuple[Any, ...]:
    seconds = max(provider["retry_seconds"], provider["breaker_seconds"])
    return (
        provider["adapter"], provider["place"], ", ".join(provider["roles"]), provider["state"].replace("_", " "),
        in_words(seconds) if seconds else None,
    )  # fmt: skip


def queues_of_tenant(tenant: Tenant, roles: Collection[str]) -> dict[str, Any]:
    """Return the data of `GET /queues/`, with caps and providers."""
    with tenant_scope(tenant.pk):
        agents = _find_roles(roles)
        queues = selectors.queues(tenant.pk, [agent.role for agent in agents])
        own = AgentConfig.objects.for_tenant(tenant.pk).filter(max_concurrency__isnull=False)
        caps = dict(own.values_list("agent_id", "max_concurrency"))
    serialized = QueueSerializer(selectors.with_grants(tenant.pk, queues), many=True).data
    rows = [
        {
            **row,
            "cap": caps.get(agent.role, tenant.cap_of_role(agent.role)),
            "role_cap": agent.max_concurrency,
        }
        for row, agent in zip(serialized, agents, strict=True)
    ]
    return {
        "tenant": tenant.slug,
        "tenant_cap": tenant.cap,
        "queues": rows,
        "providers": [asdict(each) for each in overview.of_tenant(tenant.pk)],
    }


def queues_of_platform(roles: Collection[str]) -> dict[str, Any]:
    """Return the queues of all tenants together. `granted` is null while Redis does not answer."""
    caps = {agent.role: agent.max_concurrency for agent in _find_roles(roles)}
    rows = [row for row in queue_stats.stats_of_all_tenants().roles if not roles or row.role in caps]
    slots = queue_stats.slots_of_roles([row.role for row in rows])
    return {
        "tenant": None,
        "queues": [
            {
                "role": row.role,
                "queue": queue_of(row.role),
                "waiting": row.waiting,
                "granted": max(0, slots[row.role] - row.running) if row.role in slots else None,
                "running": row.running,
                "delayed": row.later,
                "oldest_wait_seconds": round(row.oldest_seconds, 3) if row.depth else None,
                "workers": row.workers,
                "paused": row.paused,
                "role_cap": caps.get(row.role),
            }
            for row in rows
        ],
        "providers": [asdict(each) for each in overview.of_platform()],
    }


def _find_roles(roles: Collection[str]) -> list[Agent]:
    rows = Agent.objects.order_by("role")
    return list(rows.filter(role__in=roles) if roles else rows.filter(enabled=True))
