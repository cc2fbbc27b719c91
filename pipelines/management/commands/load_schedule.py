"""`manage.py load_schedule FILE [--tenant SLUG]`: loads schedules with the agents, tables and pipelines that they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from pipelines.definition import DefinitionError, load
from pipelines.management.commands.load_pipeline import owner_of, read_text
from pipelines.schedules import import_files
from tenants import audit
from tenants.context import system_scope

ACTOR = "command:load_schedule"


class Command(BaseCommand):
    help = "Load schedules, with the agents, tables and pipelines of the same document. May be repeated."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE", help="YAML, or JSON if its name ends in .json")
        parser.add_argument(
            "--tenant",
            metavar="SLUG",
            help="whose schedules they are; may be left out if there is one tenant",
        )

    def handle(self, *args: Any, file: Path, tenant: str | None, **options: Any) -> None:
        text = read_text(file)
        owner = owner_of(tenant)
        try:
            data = load(text, filename=file.name)
            import_files.check(data)
            with system_scope():  # The registry is the platform's.
                lines = list(import_files.make_agents(data))
            lines += import_files.load(owner.pk, data, folder=file.parent, actor=ACTOR)
        except DefinitionError as error:
            for problem in error.errors:
                self.stderr.write(str(problem))
            raise SystemExit(1) from error
        about = ("schedules", file.name)
        audit.record_command("load_schedule", tenant_id=owner.pk, about=about, detail={"lines": len(lines)})
        for line in lines:
            self.stdout.write(line)
