"""`manage.py inbox`: lists the items that wait for people of a tenant, in the order of the console's inbox."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from console.inbox.listing import MOST_PAGES, Row, View, inbox
from console.labels import KINDS
from orchestrator.cli import TerminalCommand, count_up_to
from tenants.management.base import owner_of
from tenants.models import Role
from tenants.principals import Principal


class Command(TerminalCommand):
    help = "List the items of a tenant that wait for people: overdue items first, then by priority and age, 50 per page."
    examples = (
        "inbox --tenant acme",
        "inbox --tenant acme --kind gate --role editor",
        "inbox --tenant acme --json",
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--kind", choices=sorted(KINDS), help="only items of this kind")
        parser.add_argument("--role", default="", metavar="HUMAN_ROLE", help="only items of this human role")
        parser.add_argument(
            "--search", default="", metavar="WORDS", help="only items that contain all of these words"
        )
        parser.add_argument(
            "--page", type=count_up_to(MOST_PAGES), default=1, metavar="N", help="default: %(default)s"
        )
        super().add_arguments(parser)

    def query(
        self, *, tenant: str | None, kind: str | None, role: str, search: str, page: int, **options: Any
    ) -> dict[str, Any]:
        owner = owner_of(tenant)
        reader = Principal(tenant_id=owner.pk, tenant=owner.slug, role=Role.VIEWER, actor="command:inbox")
        listing = inbox(reader, View(owner.slug, kind or "", role, search, page))
        return {
            "tenant": owner.slug,
            "total": listing.total,
            "page": page,
            "has_more": listing.has_more,
            "items": [_item(row) for row in listing.rows],
        }

    def render(self, result: dict[str, Any]) -> None:
        rows = [
            (
                item["id"], item["kind"], _format_name(item), item["asked_by"], item["human_role"], item["priority"], item["waited"],
                _format_due(item), item["under_way"],
            )
            for item in result["items"]
        ]  # fmt: skip
        self.write_table(
            ("id", "kind", "name", "asked by", "role", "priority", "waiting", "due", "state"), rows
        )
        if result["has_more"]:
            self.stdout.write(
                f"\n{result['total']} in total; continue with --page {result['page'] + 1}, or filter with --kind, --role, --search"
            )


def _item(row: Row) -> dict[str, Any]:
    return {
        "id": row.id,
        "kind": row.kind,
        "name": row.name,
        "similar": row.alike,
        "asked_by": row.asked_by,
        "human_role": row.human_role,
        "priority": row.priority,
        "created_at": row.timing.since,
        "waited": row.timing.waited,
        "due_at": row.timing.due_at,
        "due": row.timing.due,
        "overdue": row.timing.overdue,
        "under_way": row.under_way,
    }


def _format_name(item: dict[str, Any]) -> str:
    """Add how many similar failures the item stands for."""
    return f"{item['name']} ({item['similar']} similar)" if item["similar"] > 1 else item["name"]


def _format_due(item: dict[str, Any]) -> str:
    if not item["due"]:
        return ""
    return f"{item['due']} ago" if item["overdue"] else f"in {item['due']}"
