"""The monthly job: one periodic task per active tenant, sent by beat, with a background task for missed months."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections
from django.test import Client
from django_celery_beat.models import CrontabSchedule, PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler
from psycopg.errors import LockNotAvailable

from activities import background_tasks
from orchestrator.beat import PatientScheduler
from orchestrator.celery import app, begin_beat
from pipelines import deliverables, versions
from pipelines.deliverables import monthly_job
from pipelines.models import Deliverable, DeliverablePeriod
from pipelines.models.deliverable import Month
from tenants import clock, registration
from tenants.context import SYSTEM, system_scope, tenant_scope
from tenants.exceptions import TenantError
from tenants.models import Tenant
from tests.engine import simultaneously
from tests.integration.admin.conftest import root
from tests.upkeep import run_task

__all__ = ("root",)

# The engine provides admission, to which the planners' activities are offered.
pytestmark = pytest.mark.usefixtures("engine", "monthly_jobs")

THIS_MONTH = Month.of(datetime.now(UTC).date())


@pytest.fixture
def make_deliverable() -> Callable[..., Deliverable]:
    def make(tenant: Tenant, key: str = "blog", **fields: Any) -> Deliverable:
        versions.save(
            tenant.pk,
            {"key": "flow", "name": "Flow", "steps": [{"id": "a", "agent_role": "qa"}]},
            actor="test",
        )
        deliverable, _ = deliverables.create(
            tenant.pk, {"key": key, "name": key.title(), "pipelines": ["flow"], **fields}
        )
        return deliverable

    return make


def jobs() -> dict[str, dict[str, str]]:
    """The arguments of the periodic tasks of the monthly job, by name."""
    return {task.name: json.loads(task.kwargs) for task in PeriodicTask.objects.filter(task=monthly_job.TASK)}


def task_of(tenant: Tenant) -> PeriodicTask:
    return PeriodicTask.objects.get(task=monthly_job.TASK, kwargs=json.dumps({"tenant": str(tenant.pk)}))


def months_of(tenant: Tenant) -> list[date]:
    with tenant_scope(tenant.pk):
        return list(DeliverablePeriod.objects.order_by("starts_on").values_list("starts_on", flat=True))


def make_due(tenant: Tenant, since: date = THIS_MONTH.starts_on) -> None:
    """Make the deliverables due since this date."""
    with tenant_scope(tenant.pk):
        Deliverable.objects.update(next_on=since)


# Periodic tasks


def test_the_job_of_a_new_tenant_runs_on_the_first_of_each_month_in_utc(tenant: Tenant) -> None:
    task = task_of(tenant)

    assert (task.name, task.task, task.queue) == (
        "start-new-period: acme", "pipelines.start_new_period", "deliverable-period",
    )  # fmt: skip
    cron = task.crontab
    assert (cron.minute, cron.hour, cron.day_of_month, cron.month_of_year, cron.day_of_week, str(cron.timezone)) == (
        "0", "0", "1", "*", "*", "UTC",
    )  # fmt: skip
    assert task.enabled
    assert task.last_run_at is not None


def test_a_refused_registration_leaves_no_job(tenant: Tenant) -> None:
    with pytest.raises(TenantError, match="exists already"):
        registration.register("acme")

    assert len(jobs()) == 1


def test_deactivating_a_tenant_in_the_admin_removes_its_job_until_it_is_active_again(
    tenant: Tenant, root: Client
) -> None:
    page = f"/admin/tenants/tenant/{tenant.pk}/change/"
    form = {"name": "Acme", "weight": "1", "timezone": "UTC"}

    root.post(page, form)
    while_off = jobs()
    root.post(page, {**form, "is_active": "on"})

    assert while_off == {}
    assert jobs() == {"start-new-period: acme": {"tenant": str(tenant.pk)}}


def test_repair_corrects_outdated_jobs_and_changes_no_others(
    tenant: Tenant, other_tenant: Tenant, make_tenant: Callable[..., Tenant]
) -> None:
    renamed, off, missing = make_tenant("before"), make_tenant("off"), make_tenant("missing")
    with tenant_scope(renamed.pk):
        Tenant.objects.filter(pk=renamed.pk).update(slug="after")
    with tenant_scope(off.pk):
        Tenant.objects.filter(pk=off.pk).update(is_active=False)
    task_of(missing).delete()
    last_run = datetime(2026, 1, 3, tzinfo=UTC)
    PeriodicTask.objects.filter(pk=task_of(renamed).pk).update(last_run_at=last_run, enabled=False)
    PeriodicTask.objects.create(
        name="somebody else's", task="other.task", kwargs="{}", crontab=CrontabSchedule.objects.first()
    )
    untouched = task_of(tenant)

    monthly_job.repair()

    assert set(jobs()) == {f"start-new-period: {slug}" for slug in ("acme", "globex", "after", "missing")}
    assert (task_of(renamed).last_run_at, task_of(renamed).enabled) == (None, False)
    assert PeriodicTask.objects.filter(name="somebody else's").exists()
    # Saving a row again would make beat forget when it last ran.
    assert (task_of(tenant).pk, task_of(tenant).date_changed) == (untouched.pk, untouched.date_changed)
    assert CrontabSchedule.objects.count() == 1


def test_the_job_of_a_renamed_tenant_keeps_its_last_run(tenant: Tenant) -> None:
    last_run = datetime(2026, 1, 3, tzinfo=UTC)
    PeriodicTask.objects.update(last_run_at=last_run)
    with tenant_scope(tenant.pk):
        Tenant.objects.update(slug="acme-2")

    monthly_job.repair()

    assert (task_of(tenant).name, task_of(tenant).last_run_at) == ("start-new-period: acme-2", last_run)


def test_the_jobs_of_tenants_that_swap_slugs_swap_names(tenant: Tenant, other_tenant: Tenant) -> None:
    for owner, slug in ((tenant, "between"), (other_tenant, "acme"), (tenant, "globex")):
        with tenant_scope(owner.pk):
            Tenant.objects.filter(pk=owner.pk).update(slug=slug)

    monthly_job.repair()

    assert jobs() == {
        "start-new-period: globex": {"tenant": str(tenant.pk)},
        "start-new-period: acme": {"tenant": str(other_tenant.pk)},
    }


def test_concurrent_repairs_and_registrations_create_each_job_once(
    tenant: Tenant, other_tenant: Tenant
) -> None:
    PeriodicTask.objects.all().delete()
    CrontabSchedule.objects.all().delete()

    outcomes = simultaneously(
        *[monthly_job.repair] * 4,
        *[lambda slug=f"t{number}": registration.register(slug) for number in range(3)],
    )

    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert len(jobs()) == 5
    assert CrontabSchedule.objects.count() == 1


def test_beat_repairs_the_jobs_at_its_start(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    PeriodicTask.objects.all().delete()
    monkeypatch.setattr("activities.maintenance.begin", lambda: None)

    begin_beat()

    assert len(jobs()) == 1


# Sending by beat


def due(scheduler: type, now: datetime) -> list[str]:
    """The jobs that a beat started at this time sends in its first rounds."""
    with time_machine.travel(now, tick=False):
        beat = scheduler(app, lazy=True)
        sent = []
        for _ in range(3):
            for entry in [*beat.schedule.values()]:
                if entry.task == monthly_job.TASK and entry.is_due().is_due:
                    sent.append(entry.name)
                    beat._schedule[entry.name] = beat.reserve(entry)
        beat.sync()
    return sent


@pytest.mark.parametrize(
    ("last", "now", "times"),
    [
        # Midnight of the first, after months of different lengths.
        (datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 31, 23, 59, 59, tzinfo=UTC), 0),
        (datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 1, 0, 0, 0, tzinfo=UTC), 1),
        (datetime(2028, 2, 1, tzinfo=UTC), datetime(2028, 2, 29, 23, 59, 59, tzinfo=UTC), 0),
        (datetime(2028, 2, 1, tzinfo=UTC), datetime(2028, 3, 1, tzinfo=UTC), 1),
        (datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC), 1),
        # Beat was down on the first of the month or for months.
        (datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 2, 10, 30, tzinfo=UTC), 1),
        (datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 2, 15, tzinfo=UTC), 1),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 6, 17, 12, tzinfo=UTC), 1),
        # Beat has already sent this month's job.
        (datetime(2026, 4, 2, 10, tzinfo=UTC), datetime(2026, 4, 2, 11, tzinfo=UTC), 0),
    ],
)
def test_beat_sends_the_job_once_a_month_however_late_it_is(
    tenant: Tenant, last: datetime, now: datetime, times: int
) -> None:
    PeriodicTask.objects.update(last_run_at=last)

    first = due(PatientScheduler, now)
    afterwards = due(PatientScheduler, now + timedelta(milliseconds=500))

    assert (len(first), len(afterwards)) == (times, 0)


def test_the_scheduler_of_the_library_would_send_a_late_job_only_in_the_evening(
    tenant: Tenant,
) -> None:
    """This is the reason for our own scheduler; when this fails, `orchestrator.beat` can be removed."""
    PeriodicTask.objects.update(last_run_at=datetime(2026, 3, 1, tzinfo=UTC))

    assert due(DatabaseScheduler, datetime(2026, 4, 2, 10, 30, tzinfo=UTC)) == []


def test_the_task_of_beat_starts_the_month_of_its_tenant_once(
    tenant: Tenant,
    other_tenant: Tenant,
    make_deliverable: Callable[..., Deliverable],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_deliverable(tenant)
    make_deliverable(other_tenant)
    arguments = json.loads(task_of(tenant).kwargs)

    monkeypatch.setattr(clock, "now", lambda: datetime(2028, 2, 29, 23, 59, 58, tzinfo=UTC))
    run_task("pipelines.start_new_period", **arguments)
    run_task("pipelines.start_new_period", **arguments)

    assert months_of(tenant) == [date(2028, 3, 1)]
    assert months_of(other_tenant) == []


# Missed months


def waiting_tasks() -> list[str]:
    return background_tasks._with_waiting_rows(["missed-periods"])


def test_a_missed_month_is_started_by_the_background_task(
    tenant: Tenant, other_tenant: Tenant, make_deliverable: Callable[..., Deliverable]
) -> None:
    make_deliverable(tenant)
    make_deliverable(other_tenant)
    assert waiting_tasks() == []
    make_due(tenant)

    assert waiting_tasks() == ["missed-periods"]
    run_task("pipelines.start_missed_periods")

    assert (months_of(tenant), months_of(other_tenant)) == ([THIS_MONTH.starts_on], [])
    assert waiting_tasks() == []


def test_paused_and_new_deliverables_and_those_of_inactive_tenants_miss_no_month(
    tenant: Tenant, make_tenant: Callable[..., Tenant], make_deliverable: Callable[..., Deliverable]
) -> None:
    off = make_tenant("off", is_active=False)
    make_deliverable(off)
    make_due(off)
    make_deliverable(tenant, "paused", status="paused")
    make_due(tenant)
    make_deliverable(tenant, "new")

    assert waiting_tasks() == []
    run_task("pipelines.start_missed_periods")

    assert months_of(tenant) == months_of(off) == []


def test_a_reactivated_deliverable_is_due_from_the_next_month(
    tenant: Tenant, make_deliverable: Callable[..., Deliverable]
) -> None:
    blog = make_deliverable(tenant, status="paused")
    make_due(tenant)

    active = deliverables.change(tenant.pk, blog.pk, {"status": "active"})

    assert active.next_on == THIS_MONTH.following
    assert waiting_tasks() == []


def test_a_month_counts_as_missed_only_after_some_time(
    tenant: Tenant, make_deliverable: Callable[..., Deliverable], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_deliverable(tenant)
    monkeypatch.setattr(monthly_job, "PATIENCE", timedelta(days=10))
    today = datetime.now(UTC).date()

    def is_missed() -> bool:
        with system_scope():
            return monthly_job.list_missed().exists()

    make_due(tenant, since=today - timedelta(days=8))
    assert not is_missed()
    make_due(tenant, since=today - timedelta(days=12))
    assert is_missed()


def test_a_tenant_whose_month_cannot_be_started_does_not_block_others(
    tenant: Tenant,
    other_tenant: Tenant,
    make_deliverable: Callable[..., Deliverable],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for each in (tenant, other_tenant):
        make_deliverable(each)
        make_due(each)
    start = monthly_job.start_new_periods

    def fail_for_one_tenant(tenant_id: Any, **more: Any) -> Any:
        if tenant_id == tenant.pk:
            raise OperationalError("lock timeout") from LockNotAvailable("lock timeout")
        return start(tenant_id, **more)

    monkeypatch.setattr(monthly_job, "start_new_periods", fail_for_one_tenant)

    run_task("pipelines.start_missed_periods")

    assert (months_of(tenant), months_of(other_tenant)) == ([], [THIS_MONTH.starts_on])
    assert waiting_tasks() == ["missed-periods"]


def test_missed_months_are_read_by_index(
    tenant: Tenant, make_deliverable: Callable[..., Deliverable]
) -> None:
    make_deliverable(tenant)
    # Enough rows that the planner's choice does not depend on a few pages.
    with tenant_scope(tenant.pk):
        Deliverable.objects.bulk_create(
            Deliverable(tenant_id=tenant.pk, key=f"later-{number}", name="Later") for number in range(3_000)
        )
    sql, values = monthly_job.list_missed().query.sql_with_params()

    with connections["owner"].cursor() as cursor:
        cursor.execute("ANALYZE pipelines_deliverable")
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}", values)
        plan = "\n".join(line for (line,) in cursor.fetchall())

    assert "deliverable_due" in plan
    assert "Index Cond: (next_on <=" in plan


# The command


def test_the_command_starts_the_current_month_of_one_tenant_or_of_all(
    tenant: Tenant,
    other_tenant: Tenant,
    make_tenant: Callable[..., Tenant],
    make_deliverable: Callable[..., Deliverable],
) -> None:
    make_tenant("off", is_active=False)
    for each in (tenant, other_tenant):
        make_deliverable(each)

    assert _output("--tenant", "acme") == ["acme: 1 started"]
    assert _output() == ["acme: 0 started", "globex: 1 started"]
    assert months_of(tenant) == months_of(other_tenant) == [THIS_MONTH.starts_on]


def test_the_command_refuses_an_unknown_tenant(database: None) -> None:
    with pytest.raises(CommandError, match="no tenant 'nobody'"):
        _output("--tenant", "nobody")


def _output(*arguments: str) -> list[str]:
    out = io.StringIO()
    call_command("start_periods", *arguments, stdout=out)
    return out.getvalue().splitlines()
