"""`manage.py load_schedule FILE [--tenant SLUG]`: loads schedules with the agents, tables and pipelines that they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.management.base import LoadCommand
from pipelines.schedules import import_files
from tenants import audit
from tenants.context import system_scope
from tenants.models import Tenant

ACTOR = "command:load_schedule"


class Command(LoadCommand):
    help = "Load schedules, with the agents, tables and pipelines of the same document. May be repeated."

    def load(self, owner: Tenant, data: dict[str, Any], file: Path) -> None:
        import_files.check(data)
        with system_scope():  # The registry is the platform's.
            lines = list(import_files.make_agents(data))
        lines += import_files.load(owner.pk, data, folder=file.parent, actor=ACTOR)
        about = ("schedules", file.name)
        audit.record_command("load_schedule", tenant_id=owner.pk, about=about, detail={"lines": len(lines)})
        for line in lines:
            self.stdout.write(line)
