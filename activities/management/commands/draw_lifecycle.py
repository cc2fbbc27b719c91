"""`manage.py draw_lifecycle [--check]`: writes the diagram and the tables of docs/lifecycle.md from the state table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from activities import diagram


class Command(BaseCommand):
    help = "Write docs/lifecycle.md anew from activities/states.py. Changes only what is between its markers."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--check", action="store_true", help="change nothing; fail when the document is out of date"
        )

    def handle(self, *args: Any, check: bool, **options: Any) -> None:
        path = Path(settings.BASE_DIR) / "docs" / "lifecycle.md"
        before = path.read_text(encoding="utf-8")
        after = diagram.renewed(before)
        if before == after:
            self.stdout.write(f"{path} is up to date.")
        elif check:
            raise CommandError(f"{path} is not what activities/states.py says. Run: manage.py draw_lifecycle")
        else:
            path.write_text(after, encoding="utf-8")
            self.stdout.write(f"{path} written.")
