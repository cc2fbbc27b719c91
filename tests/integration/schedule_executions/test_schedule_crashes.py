"""An expansion that is cut off goes on without doubles; people are told of executions that failed."""

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
from pipelines.schedules import executions as at_work
from pipelines.schedules import firing, lifecycle, system_jobs
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, at_once
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


def failing(request: Any) -> AgentResult:
    raise PermanentAgentError("there is no data", code="no_data")


def configure(**value: Any) -> None:
    PlatformConfig.objects.update_or_create(key=scheduler_settings.KEY, defaults={"value": value})
    scheduler_settings.forget()


class Killed(BaseException):
    """As if the process had been killed."""


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "PAGE", 4)
    monkeypatch.setattr(lifecycle, "PATIENCE", timedelta(0))


def die_at_page(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    record, pages = lifecycle._record, iter(range(1, 100))

    def recording(*args: Any, **kwargs: Any) -> None:
        if next(pages) == number:
            raise Killed
        record(*args, **kwargs)

    monkeypatch.setattr(lifecycle, "_record", recording)


@pytest.mark.usefixtures("small_pages")
def test_an_expansion_that_was_cut_off_goes_on_without_doubles_though_rows_came_and_went(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickers(tenant, 10, weight=1.5)
    schedule = make_schedule(
        tenant, params={"ticker": "db:ticker:all:id?batchSize=3&staggerDelay=100", "share": 100.0, "n": 1e16}
    )
    (begun,) = firing.fire(tenant.pk, schedule.pk, now=FIRST)
    with monkeypatch.context() as patched:
        die_at_page(patched, 2)
        with pytest.raises(Killed):
            lifecycle.expand(tenant.pk, begun)
    cut_off = [job.params["ticker"] for job in jobs(tenant)]
    with tenant_scope(tenant.pk):
        DatasetRow.objects.filter(key__in=["T00001", "T00008"]).delete()

    system_jobs.advance_executions()

    rows = jobs(tenant)
    assert cut_off == ["T00000", "T00001", "T00002", "T00003"]
    assert [job.params["ticker"] for job in rows] == [f"T{n:05}" for n in range(10) if n != 8]
    assert [job.ordinal for job in rows] == list(range(9))
    assert [job.batch for job in rows] == [n // 3 for n in range(9)]
    assert execution(tenant).jobs_created == 9
    with tenant_scope(tenant.pk):
        assert Activity.objects.for_tenant(tenant.pk).count() == 9


@pytest.mark.usefixtures("small_pages")
def test_two_that_expand_the_same_execution_at_once_record_each_job_once(tenant: Tenant) -> None:
    tickers(tenant, 40)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?staggerDelay=0"})
    (begun,) = firing.fire(tenant.pk, schedule.pk, now=FIRST)

    at_once(*[lambda: lifecycle.expand(tenant.pk, begun)] * 3)
    system_jobs.advance_executions()

    assert sorted(job.params["ticker"] for job in jobs(tenant)) == [f"T{n:05}" for n in range(40)]
    with tenant_scope(tenant.pk):
        assert Activity.objects.for_tenant(tenant.pk).count() == 40


@pytest.mark.usefixtures("small_pages")
def test_an_expansion_that_is_cut_off_again_and_again_is_given_up(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickers(tenant, 10)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?staggerDelay=0"})
    (begun,) = firing.fire(tenant.pk, schedule.pk, now=FIRST)
    for _ in range(lifecycle.MOST_TRIES):
        with monkeypatch.context() as patched:
            die_at_page(patched, 1)
            with pytest.raises(Killed):
                lifecycle.expand(tenant.pk, begun)

    system_jobs.advance_executions()

    found = execution(tenant)
    assert found.status == "failed"
    assert "interrupted" in found.errors[0]["message"]


def test_an_expansion_under_way_is_left_to_whoever_is_at_it(tenant: Tenant) -> None:
    tickers(tenant, 3)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id"})
    firing.fire(tenant.pk, schedule.pk, now=FIRST)
    with tenant_scope(tenant.pk):
        ScheduleExecution.objects.update(touched_at=datetime.now(UTC))

    system_jobs.advance_executions()

    assert (execution(tenant).status, jobs(tenant)) == ("running", [])


def test_cancelling_during_the_expansion_ends_it(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    tickers(tenant, 12)
    monkeypatch.setattr(lifecycle, "PAGE", 4)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?staggerDelay=0"})
    (begun,) = firing.fire(tenant.pk, schedule.pk, now=FIRST)
    record = lifecycle._record

    def recording(found: ScheduleExecution, page: Any, *, recorded: int, waits_for_batches: bool) -> None:
        record(found, page, recorded=recorded, waits_for_batches=waits_for_batches)
        if recorded:
            at_work.mark_cancelled(found, actor="ann", reason="enough")

    monkeypatch.setattr(lifecycle, "_record", recording)
    lifecycle.expand(tenant.pk, begun)

    assert statuses(tenant) == ["cancelled"]
    assert [job.state for job in jobs(tenant)] == ["cancelled"] * 8


def channel(tenant: Tenant, kind: str) -> None:
    with tenant_scope(tenant.pk):
        NotificationChannel.objects.create(tenant=tenant, kind=kind, name=kind, target_sealed="x")


def told(tenant: Tenant) -> list[str]:
    with tenant_scope(tenant.pk):
        rows = AlertDelivery.objects.for_tenant(tenant.pk).filter(alert__kind="schedule_failed")
        return sorted(rows.values_list("channel_kind", flat=True))


def test_a_failed_execution_is_told_once_over_the_channels_that_the_settings_name(
    engine: Engine, tenant: Tenant
) -> None:
    for kind in ("slack", "email", "webhook"):
        channel(tenant, kind)
    configure(monitoring={"notification_channels": ["email"]})
    schedule = make_schedule(tenant)
    engine.agent.behaviour = failing
    fire(schedule, FIRST)
    engine.drain()
    statuses(tenant)

    cancellation.retry(tenant.pk, jobs(tenant)[0].activity_id, actor="ann")
    engine.drain()
    again = statuses(tenant)

    with tenant_scope(tenant.pk):
        alert = Alert.objects.get(kind="schedule_failed")
    assert again == ["failed"]
    assert alert.title == "The schedule refresh has failed"
    assert alert.body == "1 of 1 jobs failed.\nthere is no data"
    assert alert.facts["execution"] == str(execution(tenant).pk)
    assert told(tenant) == ["email", "webhook"]


@pytest.mark.parametrize("settings", [{"enabled": False}, {"notify_on_failure": False}])
def test_nobody_is_told_when_the_settings_say_so(
    engine: Engine, tenant: Tenant, settings: dict[str, bool]
) -> None:
    configure(monitoring=settings)
    engine.agent.behaviour = failing
    fire(make_schedule(tenant), FIRST)
    engine.drain()

    assert statuses(tenant) == ["failed"]
    with tenant_scope(tenant.pk):
        assert not Alert.objects.filter(kind="schedule_failed").exists()


def test_a_success_or_a_cancellation_is_told_to_nobody(engine: Engine, tenant: Tenant) -> None:
    fire(make_schedule(tenant, "one"), FIRST)
    engine.drain()
    fire(make_schedule(tenant, "two"), FIRST)
    at_work.cancel(tenant.pk, executions(tenant)[1].pk, actor="ann")

    assert statuses(tenant) == ["success", "cancelled"]
    with tenant_scope(tenant.pk):
        assert not Alert.objects.filter(kind="schedule_failed").exists()
