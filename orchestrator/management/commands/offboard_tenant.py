"""`manage.py offboard_tenant SLUG [--purge --confirm SLUG]`: suspends a tenant, or deletes all its data."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import redis
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError
from pymongo.errors import PyMongoError

from orchestrator.offboarding import erasure
from tenants import outages, registration
from tenants.audit import record_command
from tenants.management.base import ManagementCommand


class Command(ManagementCommand):
    help = "Suspend a tenant: tokens are refused, nothing starts, running work is stopped. With --purge, delete all its data permanently."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("slug")
        parser.add_argument(
            "--purge", action="store_true", help="delete everything; run export_tenant before"
        )
        parser.add_argument("--confirm", metavar="SLUG", help="repeat the slug; required for --purge")

    def handle(self, *args: Any, slug: str, purge: bool, confirm: str | None, **options: Any) -> None:
        if (purge or confirm is not None) and confirm != slug:
            raise CommandError(
                f"Nothing was changed. A purge cannot be undone, so repeat the slug: --purge --confirm {slug}"
            )
        try:
            tenant_id = self._suspend(slug, purge=purge)
            if purge:
                counts = erasure.erase(tenant_id, slug, self.stderr.write)
                record_command(
                    "offboard_tenant", about=("tenant", tenant_id), detail={"slug": slug, "erased": True}
                )
                for name, count in counts.items():
                    self.stdout.write(f"{count:>9}  {name}")
                self.stdout.write(f"All data of {slug} is deleted.")
        except (DatabaseError, redis.RedisError, PyMongoError) as error:
            raise CommandError(f"Not finished, run it again. {outages.reason_of(error) or error}") from error

    def _suspend(self, slug: str, *, purge: bool) -> UUID:
        unfinished = erasure.find_unfinished(slug) if purge else None
        try:
            tenant = registration.find(slug)
        except registration.TenantNotFound:
            if unfinished is None:
                raise
            return unfinished
        if unfinished not in (None, tenant.pk):
            # The slug belongs to a new tenant by now, which must not be purged in its place.
            return unfinished
        erasure.suspend(tenant, self.stderr.write)
        # Of the platform if the tenant's own trail is deleted next.
        record_command(
            "offboard_tenant",
            tenant_id=None if purge else tenant.pk,
            about=("tenant", tenant.pk),
            detail={"slug": slug, "suspended": True},
        )
        if not purge:
            self.stdout.write(
                f"{slug} is suspended. Next: manage.py export_tenant {slug} --to FILE.zip, then "
                f"manage.py offboard_tenant {slug} --purge --confirm {slug}"
            )
        return tenant.pk
