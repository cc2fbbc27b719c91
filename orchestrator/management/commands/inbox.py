"""`manage.py inbox`: what people of a tenant are asked for, in the order of the console's inbox."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from console.inbox.listing import Row, inbox
from console.inbox.query import MOST_PAGES, View
from console.labels import KINDS
from orchestrator.cli import TerminalCommand, count_up_to
from pipelines.management.commands.load_pipeline import owner_of
from tenants.models import Role
from tenants.principals import Principal


class Command(TerminalCommand):
    help = "Show what people of a tenant are asked for: what is overdue first, then by priority and age, 50 on a page."
    examples = (
        "inbox --tenant acme",
        "inbox --tenant acme --kind gate --role editor",
        "inbox --tenant acme --json",
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--kind", choices=sorted(KINDS), help="only items of this kind")
        parser.add_argument(
            "--role", default="", metavar="HUMAN_ROLE", help="only what this human role is asked for"
        )
        parser.add_argument(
            "--search", default="", metavar="WORDS", help="only items in which all of these occur"
        )
        parser.add_argument(
            "--page", type=count_up_to(MOST_PAGES), default=1, metavar="N", help="default: %(default)s"
        )
        super().add_arguments(parser)

    def look(
        self, *, tenant: str | None, kind: str | None, role: str, search: str, page: int, **options: Any
    ) -> dict[str, Any]:
        owner = owner_of(tenant)
        reader = Principal(tenant_id=owner.pk, tenant=owner.slug, role=Role.VIEWER, actor="command:inbox")
        found = inbox(reader, View(owner.slug, kind or "", role, search, page))
        return {
            "tenant": owner.slug,
            "total": found.total,
            "page": page,
            "has_more": found.has_more,
            "items": [_item(row) for row in found.rows],
        }

    def show(self, found: dict[str, Any]) -> None:
        rows = [
            (
                item["id"], item["kind"], item["name"], item["asked_by"], item["human_role"], item["priority"], item["waited"],
                _format_due(item), item["under_way"],
            )
            for item in found["items"]
        ]  # fmt: skip
        self.table(("id", "kind", "what", "asked by", "who", "priority", "waits", "due", "state"), rows)
        if found["has_more"]:
            more = f"--page {found['page'] + 1}"
            self.stdout.write(
                f"\n{found['total']} in all; go on with {more}, or narrow with --kind, --role, --search"
            )


def _item(row: Row) -> dict[str, Any]:
    return {
        "id": row.id,
        "kind": row.kind,
        "name": row.name,
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


def _format_due(item: dict[str, Any]) -> str:
    if not item["due"]:
        return ""
    return f"{item['due']} ago" if item["overdue"] else f"in {item['due']}"
