"""`manage.py queues [ROLE ...]`: what waits, runs and is put off, by role, who serves it, and what holds it back."""

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
from orchestrator import cli
from orchestrator.cli import TerminalCommand
from pipelines.management.commands.load_pipeline import owner_of
from tenants.context import tenant_scope
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
    help = "Show the queues of all tenants together, or with --tenant as that tenant's API does."
    tenant_help = "only this tenant's work, with its own caps and pauses"
    examples = ("queues", "queues qa dev --tenant acme", "queues --json")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("roles", nargs="*", metavar="ROLE", help="only these; else all that are enabled")
        super().add_arguments(parser)

    def look(self, *, roles: list[str], tenant: str | None, **options: Any) -> dict[str, Any]:
        if unknown := sorted(
            set(roles) - set(Agent.objects.filter(role__in=roles).values_list("role", flat=True))
        ):
            raise CommandError(f"There is no role {unknown[0]!r}. See: manage.py agents list")
        if tenant is None:
            return of_platform(roles)
        return of_tenant(owner_of(tenant), roles)

    def show(self, found: dict[str, Any]) -> None:
        self.table(HEAD, [_row(queue) for queue in found["queues"]])
        if found.get("tenant_cap") is not None:
            self.stdout.write(f"\nat most {found['tenant_cap']} at once over all roles")
        if found["providers"]:
            self.stdout.write("\nmodel providers")
            self.table(
                ("provider", "at", "roles", "state", "again in"),
                [_provider(each) for each in found["providers"]],
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
    """The tenant's own cap of the role, and the role's over all tenants."""
    own, of_role = queue.get("cap"), queue["role_cap"]
    parts = ([f"{own} own"] if own is not None else []) + ([f"{of_role} role"] if of_role is not None else [])
    return ", ".join(parts)


def _state(queue: dict[str, Any]) -> str:
    if queue["paused"]:
        return "paused"
    waits = any(queue["waiting"].values())
    return "no worker" if waits and not queue["workers"] else "served" if queue["workers"] else ""


def _provider(found: dict[str, Any]) -> tuple[Any, ...]:
    seconds = max(found["retry_seconds"], found["breaker_seconds"])
    return (
        found["adapter"], found["place"], ", ".join(found["roles"]), found["state"].replace("_", " "),
        in_words(seconds) if seconds else None,
    )  # fmt: skip


# The queues as a command shows them: for one tenant what its API says, for the platform how things stand, with caps and providers.


def of_tenant(tenant: Tenant, roles: Collection[str]) -> dict[str, Any]:
    """As `GET /queues/`, with the caps that hold beside it."""
    with tenant_scope(tenant.pk):
        known = _find_roles(roles)
        found = selectors.queues(tenant.pk, [agent.role for agent in known])
        own = AgentConfig.objects.for_tenant(tenant.pk).filter(max_concurrency__isnull=False)
        caps = dict(own.values_list("agent_id", "max_concurrency"))
    shown = QueueSerializer(selectors.with_grants(tenant.pk, found), many=True).data
    rows = [
        {
            **row,
            "cap": caps.get(agent.role, tenant.cap_of_role(agent.role)),
            "role_cap": agent.max_concurrency,
        }
        for row, agent in zip(shown, known, strict=True)
    ]
    return {
        "tenant": tenant.slug,
        "tenant_cap": tenant.cap,
        "queues": rows,
        "providers": [asdict(each) for each in overview.of_tenant(tenant.pk)],
    }


def of_platform(roles: Collection[str]) -> dict[str, Any]:
    """All tenants together. `granted` is missing (null) while Redis does not answer."""
    caps = {agent.role: agent.max_concurrency for agent in _find_roles(roles)}
    found = [row for row in cli.standing_of_all().roles if not roles or row.role in caps]
    slots = queue_stats.slots_of_roles([row.role for row in found])
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
            for row in found
        ],
        "providers": [asdict(each) for each in overview.of_platform()],
    }


def _find_roles(roles: Collection[str]) -> list[Agent]:
    rows = Agent.objects.order_by("role")
    return list(rows.filter(role__in=roles) if roles else rows.filter(enabled=True))
