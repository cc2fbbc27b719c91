"""`manage.py purge [--dry-run] [--tenant SLUG] [--kind K]`: deletes all expired rows at once, and prints their numbers."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import registration, retention
from tenants.management.base import ManagementCommand
from tenants.retention import all_kinds


class Command(ManagementCommand):
    help = "Delete all expired rows now, as the leader does continuously. Prints the number of rows of each kind."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only count what would be deleted")
        parser.add_argument("--tenant", metavar="SLUG", help="only of this tenant; default: of all")
        parser.add_argument("--kind", choices=sorted(all_kinds()), help="only of this kind")

    def handle(self, *args: Any, dry_run: bool, tenant: str | None, kind: str | None, **options: Any) -> None:
        do, total = (retention.count if dry_run else retention.purge), 0
        tenant_ids = [registration.find(tenant).pk] if tenant else retention.tenants_in_order()
        for name, each in all_kinds().items():
            if kind in (None, name):
                count = sum(do(tenant_id, each) for tenant_id in tenant_ids)
                self.stdout.write(f"{count:>9}  {name}")
                total += count
        self.stdout.write(f"{total:>9}  {'would be deleted' if dry_run else 'deleted'}")
