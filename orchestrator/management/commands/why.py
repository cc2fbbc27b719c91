"""`manage.py why ACTIVITY`: why an activity does not run right now, in the words of the API."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from activities import wait_reasons
from activities.models import Activity
from console.labels import in_words
from orchestrator import cli
from orchestrator.cli import TerminalCommand, identifier
from tenants.context import tenant_scope


class Command(TerminalCommand):
    help = "Say why an activity does not run right now: who or what holds it, since when, and how long it may take."
    tenant_help = "refuse activities of other tenants"
    examples = ("why 0198a5c2-7d3e-7c41-9c0a-6f2b1d4e8a90",)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("activity", type=identifier, metavar="ACTIVITY", help="its id")
        super().add_arguments(parser)

    def look(self, *, activity: UUID, tenant: str | None, **options: Any) -> dict[str, Any]:
        owner = cli.of_activity(tenant, activity)
        found = asdict(wait_reasons.why(owner.pk, activity))
        with tenant_scope(owner.pk):
            row = Activity.objects.for_tenant(owner.pk).get(pk=activity)
        return {
            "activity": row.pk,
            "tenant": owner.slug,
            "name": row.name,
            "status": row.status,
            "assigned_to": row.agent_role or row.human_role,
            **found,
        }

    def show(self, found: dict[str, Any]) -> None:
        estimate = found["estimate_seconds"]
        self.facts(
            ("activity", f"{found['name']} ({found['activity']})"),
            ("tenant", found["tenant"]),
            ("assigned to", found["assigned_to"]),
            ("status", found["status"]),
            ("waits for", (found["code"] or "nothing").replace("_", " ")),
            ("", found["detail"]),
            ("held by", found["holder"]),
            ("since", found["since"]),
            ("position", found["position"]),
            ("may take", None if estimate is None else in_words(estimate)),
        )
