"""The monthly job: at the start of each calendar month in UTC, every active tenant's deliverables get their periods.

Each active tenant has one periodic task, kept in step with the tenants as they are made, renamed and switched off, and mended when beat
starts. Any number of beats may send it, since starting a month twice starts nothing twice. A job that was never sent, or whose message was
lost, is made up for: what is due is a column of the deliverable, and the leader reminds of it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from uuid import UUID

from django.db import DatabaseError, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now, TruncDate
from django_celery_beat.models import CrontabSchedule, PeriodicTask

from agents.routing import DELIVERABLE_PERIODS
from pipelines.deliverables import start_new_periods
from pipelines.models import Deliverable
from pipelines.models.deliverable import DeliverableState
from tenants import clock
from tenants.context import SYSTEM, system_scope
from tenants.models import Tenant
from tenants.sql import Statement

logger = logging.getLogger(__name__)

TASK = "pipelines.start_new_period"
MADE_UP_TASK = "pipelines.start_missed_periods"

# Beat and its job come first; only what is still due after this long was missed.
PATIENCE = timedelta(minutes=10)

# The clock of the worker that starts a month may be behind the clock of the beat that sent it. Without this a job of midnight
# could find itself in the month that has just ended.
CLOCKS_DIFFER = timedelta(minutes=5)

_FIRST_OF_MONTH = {
    "minute": "0", "hour": "0", "day_of_month": "1", "month_of_year": "*", "day_of_week": "*", "timezone": UTC,
}  # fmt: skip
_ARRANGE = Statement.load(Path(__file__).resolve().parents[1] / "sql", "arrange_monthly_jobs")


def run(tenant_id: UUID) -> int:
    """The job of one tenant; how many periods begin."""
    return len(start_new_periods(tenant_id, today=day_of_monthly_job(clock.now())))


def day_of_monthly_job(now: datetime) -> date:
    """The day on which a monthly job that runs `now` counts as run."""
    return (now.astimezone(UTC) + CLOCKS_DIFFER).date()


def run_missed() -> int:
    """The job of every tenant that has something due; how many periods begin."""
    begun = 0
    with system_scope():
        tenants = list(list_missed().values_list("tenant_id", flat=True).distinct())
    for tenant_id in tenants:
        try:
            begun += run(tenant_id)
        except DatabaseError:
            # The others must not wait for this one, which stays due.
            logger.exception(
                "Periods not started", extra={"action": "periods_not_started", "tenant": str(tenant_id)}
            )
    return begun


def list_missed() -> QuerySet[Deliverable]:
    """Deliverables whose month has begun without them, over all tenants."""
    return Deliverable.objects.filter(
        status=DeliverableState.ACTIVE,
        tenant__is_active=True,
        next_on__lte=TruncDate(Now() - PATIENCE, tzinfo=UTC),
    )


def active_tenants() -> list[Tenant]:
    """Every tenant that the job is for, by slug."""
    with system_scope():
        return list(Tenant.objects.filter(is_active=True).order_by("slug"))


def keep(tenant: Tenant) -> None:
    """Update the tenant's periodic task to match the tenant. In the caller's transaction."""
    _ARRANGE.run({})
    tasks = {_arguments(tenant): _name(tenant)} if tenant.is_active else {}
    present = PeriodicTask.objects.filter(task=TASK)
    _arrange(tasks, present.filter(Q(kwargs=_arguments(tenant)) | Q(name=_name(tenant))))


def mend() -> None:
    """Update the periodic tasks of all tenants. Those that are right already are not touched."""
    with system_scope(), transaction.atomic(using=SYSTEM):
        _ARRANGE.run({})
        tasks = {
            _arguments(tenant): _name(tenant)
            for tenant in Tenant.objects.filter(is_active=True).order_by("slug")
        }
        _arrange(tasks, PeriodicTask.objects.filter(task=TASK))


def _arrange(tasks: Mapping[str, str], present: Iterable[PeriodicTask]) -> None:
    """Change the `present` tasks into `tasks`: names by arguments. Whether a task is enabled is left to the operator."""
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
    PeriodicTask.objects.create(
        name=name,
        task=TASK,
        kwargs=arguments,
        queue=DELIVERABLE_PERIODS,
        crontab=_first_of_month(),
        enabled=before.enabled if before else True,
        # Without a last run, beat would reckon from the last change of this row, and a month that it slept through would be lost.
        last_run_at=before.last_run_at if before and before.last_run_at else clock.now(),
        description="Starts the new month of every active deliverable. Made by the system, for each active tenant.",
    )


def _first_of_month() -> CrontabSchedule:
    """Nothing keeps the table from holding equal schedules, so the first one is taken."""
    found = CrontabSchedule.objects.filter(**_FIRST_OF_MONTH).order_by("pk").first()
    return found or CrontabSchedule.objects.create(**_FIRST_OF_MONTH)


def _name(tenant: Tenant) -> str:
    return f"start-new-period: {tenant.slug}"


def _arguments(tenant: Tenant) -> str:
    return json.dumps({"tenant": str(tenant.pk)})
