"""Interrupted expansions continue without duplicates, and failed executions raise alerts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities import cancellation
from activities.models import Activity, Alert, AlertDelivery, NotificationChannel
from agents import scheduler_settings
from agents.contracts import AgentResult
from agents.exceptions import PermanentAgentError
from agents.models import PlatformConfig
from pipelines.models import DatasetRow, ScheduleExecution
from pipelines.schedules import executions as schedule_executions
from pipelines.schedules import firing, lifecycle, system_jobs
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, simultaneously
from tests.integration.schedule_executions.moments import FIRST
from tests.scheduling import (
    execution,
    executions,
    fire,
    jobs,
    make_schedule,
    statuses,
    tickers,
)

pytestmark = pytest.mark.usefixtures("scheduler_defaults")


def fail(request: Any) -> AgentResult:
    raise PermanentAgentError("there is no data", code="no_data")


def configure(**value: Any) -> None:
    PlatformConfig.objects.update_or_create(key=scheduler_settings.KEY, defaults={"value": value})
    scheduler_settings.forget()


class Killed(BaseException):
    """Ends an expansion as if the process were killed."""


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "PAGE", 4)
    monkeypatch.setattr(lifecycle, "PATIENCE", timedelta(0))


def die_at_page(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    record, pages = lifecycle._record, iter(range(1, 100))

    def die_or_record(*args: Any, **kwargs: Any) -> None:
        if next(pages) == number:
            raise Killed
        record(*args, **kwargs)

    monkeypatch.setattr(lifecycle, "_record", die_or_record)


@pytest.mark.usefixtures("small_pages")
def test_an_interrupted_expansion_continues_without_duplicates_although_rows_changed(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickers(tenant, 10, weight=1.5)
    schedule = make_schedule(
        tenant, params={"ticker": "db:ticker:all:id?batchSize=3&staggerDelay=100", "share": 100.0, "n": 1e16}
    )
    (execution_id,) = firing.fire(tenant.pk, schedule.pk, now=FIRST)
    with monkeypatch.context() as patched:
        die_at_page(patched, 2)
        with pytest.raises(Killed):
            lifecycle.expand(tenant.pk, execution_id)
    recorded_before = [job.params["ticker"] for job in jobs(tenant)]
    with tenant_scope(tenant.pk):
        DatasetRow.objects.filter(key__in=["T00001", "T00008"]).delete()

    system_jobs.advance_executions()

    rows = jobs(tenant)
    assert recorded_before == ["T00000", "T00001", "T00002", "T00003"]
    assert [job.params["ticker"] for job in rows] == [f"T{n:05}" for n in range(10) if n != 8]
    assert [job.ordinal for job in rows] == list(range(9))
    assert [job.batch for job in rows] == [n // 3 for n in range(9)]
    assert execution(tenant).jobs_created == 9
    with tenant_scope(tenant.pk):
        assert Activity.objects.for_tenant(tenant.pk).count() == 9


@pytest.mark.usefixtures("small_pages")
def test_an_interrupted_expansion_continues_in_its_batches_although_the_platform_has_other_defaults_now(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickers(tenant, 10)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id"})
    configure(default_batch_processing={"batch_size": 3, "stagger_delay": 100})
    (execution_id,) = firing.fire(tenant.pk, schedule.pk, now=FIRST)
    with monkeypatch.context() as patched:
        die_at_page(patched, 2)
        with pytest.raises(Killed):
            lifecycle.expand(tenant.pk, execution_id)
    configure(default_batch_processing={"batch_size": 1, "stagger_delay": 60_000})

    system_jobs.advance_executions()

    rows = jobs(tenant)
    assert [job.batch for job in rows] == [n // 3 for n in range(10)]
    assert rows[-1].due_at - rows[0].due_at == timedelta(milliseconds=300)
    assert (execution(tenant).metadata["batches"], execution(tenant).metadata["batch_size"]) == (4, 3)


@pytest.mark.usefixtures("small_pages")
def test_concurrent_expansions_record_each_job_once(tenant: Tenant) -> None:
    tickers(tenant, 40)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?staggerDelay=0"})
    (execution_id,) = firing.fire(tenant.pk, schedule.pk, now=FIRST)

    simultaneously(*[lambda: lifecycle.expand(tenant.pk, execution_id)] * 3)
    system_jobs.advance_executions()

    assert sorted(job.params["ticker"] for job in jobs(tenant)) == [f"T{n:05}" for n in range(40)]
    with tenant_scope(tenant.pk):
        assert Activity.objects.for_tenant(tenant.pk).count() == 40


@pytest.mark.usefixtures("small_pages")
def test_an_expansion_that_is_interrupted_repeatedly_fails(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickers(tenant, 10)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?staggerDelay=0"})
    (execution_id,) = firing.fire(tenant.pk, schedule.pk, now=FIRST)
    for _ in range(lifecycle.MOST_TRIES):
        with monkeypatch.context() as patched:
            die_at_page(patched, 1)
            with pytest.raises(Killed):
                lifecycle.expand(tenant.pk, execution_id)

    system_jobs.advance_executions()

    failed = execution(tenant)
    assert failed.status == "failed"
    assert "interrupted" in failed.errors[0]["message"]


@pytest.mark.usefixtures("small_pages")
def test_recorded_batches_wait_for_each_other_although_the_expansion_failed(
    engine: Engine, tenant: Tenant
) -> None:
    tickers(tenant, 10)
    one_fewer = "db:ticker:all:id?limit=6&expand=zip"
    options = "batchSize=1&staggerDelay=0&batch_gate=completion"
    schedule = make_schedule(
        tenant, params={"ticker": f"db:ticker:all:id?expand=zip&{options}", "other": one_fewer}
    )

    fire(schedule, FIRST)
    states_seen = [[job.state for job in jobs(tenant)]]
    engine.deliver()
    system_jobs.settle()
    states_seen.append([job.state for job in jobs(tenant)])

    assert states_seen == [
        ["enqueued", "waiting", "waiting", "waiting"],
        ["done", "enqueued", "waiting", "waiting"],
    ]
    assert "the same number of rows" in execution(tenant).errors[0]["message"]


def test_an_expansion_in_progress_is_not_taken_over(tenant: Tenant) -> None:
    tickers(tenant, 3)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id"})
    firing.fire(tenant.pk, schedule.pk, now=FIRST)
    with tenant_scope(tenant.pk):
        ScheduleExecution.objects.update(touched_at=datetime.now(UTC))

    system_jobs.advance_executions()

    assert (execution(tenant).status, jobs(tenant)) == ("running", [])


def test_cancelling_ends_a_running_expansion(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    tickers(tenant, 12)
    monkeypatch.setattr(lifecycle, "PAGE", 4)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?staggerDelay=0"})
    (execution_id,) = firing.fire(tenant.pk, schedule.pk, now=FIRST)
    record = lifecycle._record

    def record_and_cancel(
        row: ScheduleExecution, page: Any, *, recorded: int, waits_for_batches: bool
    ) -> None:
        record(row, page, recorded=recorded, waits_for_batches=waits_for_batches)
        if recorded:
            schedule_executions.mark_cancelled(row, actor="ann", reason="enough")

    monkeypatch.setattr(lifecycle, "_record", record_and_cancel)
    lifecycle.expand(tenant.pk, execution_id)

    assert statuses(tenant) == ["cancelled"]
    assert [job.state for job in jobs(tenant)] == ["cancelled"] * 8


def add_channel(tenant: Tenant, kind: str) -> None:
    with tenant_scope(tenant.pk):
        NotificationChannel.objects.create(tenant=tenant, kind=kind, name=kind, target_sealed="x")


def channels_with_alerts(tenant: Tenant) -> list[str]:
    with tenant_scope(tenant.pk):
        rows = AlertDelivery.objects.for_tenant(tenant.pk).filter(alert__kind="schedule_failed")
        return sorted(rows.values_list("channel_kind", flat=True))


def test_a_failed_execution_raises_one_alert_on_the_configured_channels(
    engine: Engine, tenant: Tenant
) -> None:
    for kind in ("slack", "email", "webhook"):
        add_channel(tenant, kind)
    configure(monitoring={"notification_channels": ["email"]})
    schedule = make_schedule(tenant)
    engine.agent.behaviour = fail
    fire(schedule, FIRST)
    engine.drain()
    statuses(tenant)

    cancellation.retry(tenant.pk, jobs(tenant)[0].activity_id, actor="ann")
    engine.drain()
    statuses_after_retry = statuses(tenant)

    with tenant_scope(tenant.pk):
        alert = Alert.objects.get(kind="schedule_failed")
    assert statuses_after_retry == ["failed"]
    assert alert.title == "The schedule refresh has failed"
    assert alert.body == "1 of 1 jobs failed.\nthere is no data"
    assert alert.facts["execution"] == str(execution(tenant).pk)
    assert channels_with_alerts(tenant) == ["email", "webhook"]


@pytest.mark.parametrize("settings", [{"enabled": False}, {"notify_on_failure": False}])
def test_the_settings_can_switch_alerts_of_executions_off(
    engine: Engine, tenant: Tenant, settings: dict[str, bool]
) -> None:
    configure(monitoring=settings)
    engine.agent.behaviour = fail
    fire(make_schedule(tenant), FIRST)
    engine.drain()

    assert statuses(tenant) == ["failed"]
    with tenant_scope(tenant.pk):
        assert not Alert.objects.filter(kind="schedule_failed").exists()


def test_a_successful_or_cancelled_execution_raises_no_alert(engine: Engine, tenant: Tenant) -> None:
    fire(make_schedule(tenant, "one"), FIRST)
    engine.drain()
    fire(make_schedule(tenant, "two"), FIRST)
    schedule_executions.cancel(tenant.pk, executions(tenant)[1].pk, actor="ann")

    assert statuses(tenant) == ["success", "cancelled"]
    with tenant_scope(tenant.pk):
        assert not Alert.objects.filter(kind="schedule_failed").exists()
