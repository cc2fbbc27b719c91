"""`manage.py why ACTIVITY`: prints why an activity does not run now, like the API."""

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
    help = "Print why an activity does not run now: who or what it waits for, since when, and for how long."
    tenant_help = "refuse activities of other tenants"
    examples = ("why 0198a5c2-7d3e-7c41-9c0a-6f2b1d4e8a90",)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("activity", type=identifier, metavar="ACTIVITY", help="its id")
        super().add_arguments(parser)

    def query(self, *, activity: UUID, tenant: str | None, **options: Any) -> dict[str, Any]:
        owner = cli.tenant_of_activity(tenant, activity)
        reason = asdict(wait_reasons.why(owner.pk, activity))
        with tenant_scope(owner.pk):
            row = Activity.objects.for_tenant(owner.pk).get(pk=activity)
        return {
            "activity": row.pk,
            "tenant": owner.slug,
            "name": row.name,
            "status": row.status,
            "assigned_to": row.agent_role or row.human_role,
            **reason,
        }

    def render(self, result: dict[str, Any]) -> None:
        estimate = result["estimate_seconds"]
        self.write_facts(
            ("activity", f"{result['name']} ({result['activity']})"),
            ("tenant", result["tenant"]),
            ("assigned to", result["assigned_to"]),
            ("status", result["status"]),
            ("waits for", (result["code"] or "nothing").replace("_", " ")),
            ("", result["detail"]),
            ("held by", result["holder"]),
            ("since", result["since"]),
            ("position", result["position"]),
            ("estimate", None if estimate is None else in_words(estimate)),
        )
