"""`manage.py export_tenant SLUG --to FILE.zip`: writes all data of one tenant to one file, without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError
from pymongo.errors import PyMongoError

from orchestrator.offboarding import export
from tenants import outages, registration
from tenants.management.base import ManagementCommand
from tenants.wording import describe_count


class Command(ManagementCommand):
    help = "Write all data of a tenant to a zip file: one file of JSON lines per table, the outputs, and a manifest."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("slug")
        parser.add_argument("--to", required=True, metavar="FILE.zip", help="must not exist")

    def handle(self, *args: Any, slug: str, to: str, **options: Any) -> None:
        path = Path(to)
        try:
            tenant = registration.find(slug)
            files = export.export(tenant, path, self.stderr.write)
        except FileExistsError as error:
            raise CommandError(str(error)) from error
        except (OSError, DatabaseError, PyMongoError) as error:
            reason = outages.reason_of(error) or error
            raise CommandError(f"The export failed, and its file was deleted. {reason}") from error
        rows = sum(each["rows"] for each in files.values())
        self.stdout.write(f"{path}: {describe_count(rows, 'row')} in {describe_count(len(files), 'file')}")
