"""`manage.py start_periods [--tenant SLUG]`: does by hand what the monthly job does, for the current month."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from pipelines.deliverables import monthly_job, start_new_periods
from tenants import clock, registration
from tenants.audit import record_command
from tenants.management.base import ManagementCommand

ACTOR = "command:start_periods"


class Command(ManagementCommand):
    help = "Start the current month (UTC) of every active deliverable that has no period in it yet."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--tenant", metavar="SLUG", help="only this tenant's; else those of all active tenants"
        )

    def handle(self, *args: Any, tenant: str | None, **options: Any) -> None:
        tenants = [registration.find(tenant)] if tenant is not None else monthly_job.active_tenants()
        today = clock.now().date()
        for each in tenants:
            started = start_new_periods(each.pk, today=today, actor=ACTOR)
            if started:
                record_command("start_periods", tenant_id=each.pk, detail={"started": len(started)})
            self.stdout.write(f"{each.slug}: {len(started)} started")
