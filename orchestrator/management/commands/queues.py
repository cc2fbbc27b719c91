"""`manage.py queues [ROLE ...]`: what waits, runs and is put off, by role, who serves it, and what holds it back."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from agents.models import Agent
from console.labels import in_words
from orchestrator.cli import owners, queues
from orchestrator.cli.commands import TerminalCommand

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
            return queues.of_platform(roles)
        return queues.of_tenant(owners.owner_of(tenant), roles)

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
    told = ([f"{own} own"] if own is not None else []) + ([f"{of_role} role"] if of_role is not None else [])
    return ", ".join(told)


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
