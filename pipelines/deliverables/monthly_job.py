"""The monthly job: starts the periods of every active tenant's deliverables at the start of each calendar month in UTC.

Each active tenant has one periodic task. It is updated when the tenant is created, renamed or switched off, and repaired when beat starts.
Any number of beats may send it, because starting a month twice starts nothing twice. A job that was never sent, or whose message was lost,
is caught up: each deliverable has a column with its due day, and the leader checks it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now, TruncDate
from django_celery_beat.models import CrontabSchedule, PeriodicTask

from agents.routing import DELIVERABLE_PERIODS
from pipelines.deliverables import start_new_periods
from pipelines.models import Deliverable
from pipelines.models.deliverable import DeliverableState
from tenants import clock, outages, sweeps
from tenants.context import SYSTEM, system_scope
from tenants.models import Tenant
from tenants.sql import Statement
from tenants.sweeps import Sweep

logger = logging.getLogger(__name__)

_MISSED = Sweep[tuple[UUID, str]]()

TASK = "pipelines.start_new_period"
MADE_UP_TASK = "pipelines.start_missed_periods"

# Beat's own job runs first. A month that is still due after this time was missed.
PATIENCE = timedelta(minutes=10)

# The worker's clock may be behind the clock of the beat that sent the job. Without this allowance, a job at midnight could run for the
# month that has just ended.
CLOCKS_DIFFER = timedelta(minutes=5)

_FIRST_OF_MONTH = {
    "minute": "0", "hour": "0", "day_of_month": "1", "month_of_year": "*", "day_of_week": "*", "timezone": UTC,
}  # fmt: skip
_ARRANGE = Statement.load(Path(__file__).resolve().parents[1] / "sql", "arrange_monthly_jobs")


def run(tenant_id: UUID) -> int:
    """Run the job of one tenant. Return how many periods start."""
    return len(start_new_periods(tenant_id, today=day_of_monthly_job(clock.now())))


def day_of_monthly_job(now: datetime) -> date:
    """Return the day for which a monthly job that runs `now` counts."""
    return (now.astimezone(UTC) + CLOCKS_DIFFER).date()


def run_missed() -> int:
    """Run the job of every tenant with a missed month. Return how many periods start."""
    started = 0
    for tenant_id, _ in _MISSED.turn(sweeps.pages(list_missed().distinct(), "tenant_id", "tenant__slug")):
        # A tenant whose periods could not be started remains due.
        with outages.one_of_many(
            logger, "Periods not started", action="periods_not_started", tenant=str(tenant_id)
        ):
            started += run(tenant_id)
    return started


def list_missed() -> QuerySet[Deliverable]:
    """Return deliverables whose month was missed, over all tenants."""
    return Deliverable.objects.filter(
        status=DeliverableState.ACTIVE,
        tenant__is_active=True,
        next_on__lte=TruncDate(Now() - PATIENCE, tzinfo=UTC),
    )


def active_tenants() -> list[Tenant]:
    """Return the tenants of the job, ordered by slug."""
    with system_scope():
        return list(Tenant.objects.filter(is_active=True).order_by("slug"))


def update(tenant: Tenant) -> None:
    """Update the tenant's periodic task to match the tenant. Call it within a transaction."""
    _ARRANGE.run({})
    tasks = {_arguments(tenant): _name(tenant)} if tenant.is_active else {}
    present = PeriodicTask.objects.filter(task=TASK)
    _arrange(tasks, present.filter(Q(kwargs=_arguments(tenant)) | Q(name=_name(tenant))))


def repair() -> None:
    """Update the periodic tasks of all tenants. Correct tasks are not touched."""
    with system_scope(), transaction.atomic(using=SYSTEM):
        _ARRANGE.run({})
        tasks = {
            _arguments(tenant): _name(tenant)
            for tenant in Tenant.objects.filter(is_active=True).order_by("slug")
        }
        _arrange(tasks, PeriodicTask.objects.filter(task=TASK))


def _arrange(tasks: Mapping[str, str], present: Iterable[PeriodicTask]) -> None:
    """Change the `present` tasks to match `tasks` (names by arguments). Operators decide whether a task is enabled, so that is kept."""
    missing, before = dict(tasks), {}
    for task in present:
        if missing.get(task.kwargs) == task.name and task.queue == DELIVERABLE_PERIODS:
            del missing[task.kwargs]
        else:
            before[task.kwargs] = task
            task.delete()
    for arguments, name in missing.items():
        _create(name, arguments, before.get(arguments))


def _create(name: str, arguments: str, before: PeriodicTask | None) -> None:
    # The table may hold several equal schedules, so take the first.
    existing = CrontabSchedule.objects.filter(**_FIRST_OF_MONTH).order_by("pk").first()
    PeriodicTask.objects.create(
        name=name,
        task=TASK,
        kwargs=arguments,
        queue=DELIVERABLE_PERIODS,
        crontab=existing or CrontabSchedule.objects.create(**_FIRST_OF_MONTH),
        enabled=before.enabled if before else True,
        # Without a last run, beat would count from the last change of this row, and skip a month during which it was down.
        last_run_at=before.last_run_at if before and before.last_run_at else clock.now(),
        description="Starts the new month of every active deliverable. The system maintains it for each active tenant.",
    )


def _name(tenant: Tenant) -> str:
    return f"start-new-period: {tenant.slug}"


def _arguments(tenant: Tenant) -> str:
    return json.dumps({"tenant": str(tenant.pk)})
