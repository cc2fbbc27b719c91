"""`manage.py purge_audit --older-than-days N [--tenant SLUG]`: the retention of the audit trail, the only way to delete its entries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from tenants import audit, clock, registration
from tenants.audit import chains, purge_chain
from tenants.management.base import ManagementCommand, UsageError
from tenants.wording import describe_count

LEAST_DAYS, MOST_DAYS = 1, 36_500


class Command(ManagementCommand):
    help = "Delete old entries from the beginnings of the chains. Each chain records what was deleted, and continues from there."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--older-than-days", type=int, required=True, metavar="N")
        parser.add_argument("--tenant", metavar="SLUG", help="only this tenant's chain")

    def handle(self, *args: Any, older_than_days: int, tenant: str | None, **options: Any) -> None:
        if not LEAST_DAYS <= older_than_days <= MOST_DAYS:
            raise UsageError(f"--older-than-days must be from {LEAST_DAYS} to {MOST_DAYS}")
        chosen_chains = [registration.find(tenant).pk] if tenant else chains()
        before = clock.now() - timedelta(days=older_than_days)
        for chain in chosen_chains:
            deleted = purge_chain(chain, before, actor=audit.actor_of_command("purge_audit"))
            self.stdout.write(f"{chain}: {describe_count(deleted, 'entry', 'entries')} deleted")
