"""`manage.py scheduler_settings [--show] [--set PATH=VALUE]... [--unset PATH]...`: the platform's settings of scheduling."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from agents import scheduler_settings
from agents.scheduler_settings import SettingsInvalid, key_at, value_of
from tenants import audit
from tenants.management.base import UsageError


class Command(BaseCommand):
    help = "Show or change the platform's scheduling settings. Changes take effect in every process within two seconds."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--show", action="store_true", help="as JSON, with the defaults (also without any option)"
        )
        parser.add_argument(
            "--set", dest="assignments", action="append", default=[], metavar="PATH=VALUE",
            help="such as http_client.timeout=120000 or monitoring.notification_channels='[\"slack\"]'",
        )  # fmt: skip
        parser.add_argument(
            "--unset", action="append", default=[], metavar="PATH", help="restore the default"
        )

    def handle(self, *args: Any, assignments: list[str], unset: list[str], **options: Any) -> None:
        try:
            members: dict[str, Any] = {key_at(path).path: None for path in unset}
            for text in assignments:
                path, equals, value = text.partition("=")
                if not equals:
                    raise UsageError(f"{text!r} is not of the form PATH=VALUE")
                members[key_at(path.strip()).path] = value_of(value.strip())
            if members:
                scheduler_settings.change(members, actor=audit.actor_of_command("scheduler_settings").label)
                audit.record_command("scheduler_settings", detail={"changed": sorted(members)})
        except SettingsInvalid as error:
            raise UsageError(str(error)) from error
        self._show()

    def _show(self) -> None:
        row = scheduler_settings.row()
        in_force = scheduler_settings.settings_of(row.value)
        self.stdout.write(json.dumps(scheduler_settings.as_tree(in_force), indent=2))
        by = f", changed by {row.updated_by} at {row.updated_at:%Y-%m-%d %H:%M:%SZ}" if row.version else ""
        self.stderr.write(f"version {row.version}{by}")
