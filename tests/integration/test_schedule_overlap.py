"""What happens to an execution from outside: another time comes, it is called off, its process dies, or it fails and people are told."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities import cancellation
from activities.models import Activity, Alert, AlertDelivery, NotificationChannel
from agents import scheduler_settings
from agents.contracts import AgentResult
from agents.exceptions import PermanentAgentError
from agents.models import PlatformConfig
from pipelines.models import DatasetRow, Firing, PipelineRun, ScheduleExecution
from pipelines.schedules import executions as at_work
from pipelines.schedules import expanding, firing, overlapping, tending
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, at_once
from tests.scheduling import (
    HOUR,
    NOON,
    execution,
    executions,
    fire,
    jobs,
    make_pipeline,
    make_schedule,
    states,
    statuses,
    tickers,
)

FIRST, SECOND, THIRD = (NOON + hour * HOUR for hour in (1, 2, 3))


@pytest.fixture(autouse=True)
def _served(engine: Engine, tenant: Tenant) -> Iterator[None]:
    engine.serve(tenant)
    scheduler_settings.forget()
    yield
    scheduler_settings.forget()


def failing(request: Any) -> AgentResult:
    raise PermanentAgentError("there is no data", code="no_data")


def configure(**value: Any) -> None:
    PlatformConfig.objects.update_or_create(key=scheduler_settings.KEY, defaults={"value": value})
    scheduler_settings.forget()


def let_wait(engine: Engine, tenant: Tenant, status: str) -> None:
    """The activity that is there waits for a person."""
    if status == "awaiting_approval":
        with tenant_scope(tenant.pk):
            Activity.objects.for_tenant(tenant.pk).update(requires_approval=True)
        engine.drain()
        return
    engine.take()
    with tenant_scope(tenant.pk):
        for step in ("assigned", "in_progress", status):
            Activity.objects.for_tenant(tenant.pk).update(status=step)


# Overlap


@pytest.mark.parametrize("status", ["awaiting_approval", "blocked", "awaiting_review"])
def test_what_waits_for_a_person_is_under_way_so_the_next_time_is_skipped(
    engine: Engine, tenant: Tenant, status: str
) -> None:
    schedule = make_schedule(tenant, overlap="skip")
    fire(schedule, FIRST)
    let_wait(engine, tenant, status)

    fire(schedule, SECOND)

    assert statuses(tenant) == ["running"]
    assert states(schedule) == ["fired", "skipped"]
    with tenant_scope(tenant.pk):
        assert Firing.objects.get(state="skipped").reason == overlapping.OVERLAPS


@pytest.mark.parametrize("status", ["awaiting_approval", "blocked"])
def test_one_waits_until_what_is_under_way_has_ended_and_further_ones_are_skipped(
    engine: Engine, tenant: Tenant, status: str
) -> None:
    schedule = make_schedule(tenant, overlap="queue_one")
    fire(schedule, FIRST)
    let_wait(engine, tenant, status)
    fire(schedule, SECOND)
    fire(schedule, THIRD)
    before = (statuses(tenant), states(schedule), len(jobs(tenant)))

    cancellation.cancel(tenant.pk, jobs(tenant)[0].activity_id, actor="ann")
    after = statuses(tenant)
    engine.drain()

    assert before == (["running", "queued"], ["fired", "queued", "skipped"], 1)
    assert (after, states(schedule)) == (["failed", "running"], ["fired", "fired", "skipped"])
    assert statuses(tenant) == ["failed", "success"]


def test_without_an_execution_under_way_nothing_is_skipped(engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant, overlap="skip")

    for time in (FIRST, SECOND):
        fire(schedule, time)
        engine.drain()
        statuses(tenant)

    assert states(schedule) == ["fired", "fired"]


def test_a_new_time_calls_off_what_is_under_way(engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant, overlap="cancel_running")
    fire(schedule, FIRST)

    fire(schedule, SECOND)
    engine.drain()

    assert statuses(tenant) == ["cancelled", "success"]
    old = executions(tenant)[0]
    assert (old.jobs_failed, old.metadata["cancelled"]["reason"]) == (1, overlapping.REPLACED)
    assert old.finished_at is not None
    assert len(engine.agent.calls) == 1
    assert states(schedule) == ["fired", "fired"]


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("allow", ["fired", "fired", "fired"]),
        ("skip", ["fired", "skipped", "skipped"]),
        ("queue_one", ["fired", "queued", "skipped"]),
        ("cancel_running", ["skipped", "skipped", "fired"]),
    ],
)
def test_times_that_are_caught_up_on_together_overlap_as_well(
    tenant: Tenant, overlap: str, expected: list[str]
) -> None:
    schedule = make_schedule(tenant, overlap=overlap, catch_up={"up_to": 3})

    firing.fire(tenant.pk, schedule.pk, now=THIRD + timedelta(minutes=10))

    assert states(schedule) == expected


def test_one_that_was_left_waiting_begins_though_nobody_ended_before_it(
    engine: Engine, tenant: Tenant
) -> None:
    schedule = make_schedule(tenant, overlap="queue_one")
    fire(schedule, FIRST)
    fire(schedule, SECOND)
    with tenant_scope(tenant.pk):
        ScheduleExecution.objects.filter(status="running").delete()

    assert statuses(tenant) == ["running"]


# Called off


def test_a_cancelled_execution_starts_no_further_job_and_ends_those_at_work(
    engine: Engine, tenant: Tenant
) -> None:
    tickers(tenant, 4)
    schedule = make_schedule(
        tenant, params={"ticker": "db:ticker:all:id?batchSize=2&staggerDelay=0&batch_gate=completion"}
    )
    fire(schedule, FIRST)

    at_work.cancel(tenant.pk, execution(tenant).pk, actor="ann", reason="wrong list")
    engine.drain()

    assert statuses(tenant) == ["cancelled"]
    assert {job.state for job in jobs(tenant)} == {"cancelled"}
    assert engine.agent.calls == []
    found = execution(tenant)
    assert (found.jobs_failed, found.metadata["cancelled"]["by"]) == (4, "ann")
    assert found.finished_at is not None


def test_what_a_cancellation_left_at_work_is_ended_by_the_errand(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickers(tenant, 3)
    schedule = make_schedule(
        tenant, pipeline=make_pipeline(tenant), params={"ticker": "db:ticker:all:id?staggerDelay=0"}
    )
    fire(schedule, FIRST)
    with monkeypatch.context() as patched:
        patched.setattr(at_work, "close_jobs", lambda *_: None)  # The process dies.
        at_work.cancel(tenant.pk, execution(tenant).pk, actor="ann")
    left = (execution(tenant).status, execution(tenant).finished_at)

    tending.tend()

    assert left == ("cancelled", None)
    assert statuses(tenant) == ["cancelled"]
    with tenant_scope(tenant.pk):
        assert set(PipelineRun.objects.values_list("status", flat=True)) == {"cancelled"}
    assert execution(tenant).finished_at is not None


def test_one_that_waits_can_be_called_off_and_its_time_says_so(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, overlap="queue_one")
    fire(schedule, FIRST)
    fire(schedule, SECOND)

    at_work.cancel(tenant.pk, executions(tenant)[1].pk, actor="ann")

    assert statuses(tenant) == ["running", "cancelled"]
    assert states(schedule) == ["fired", "skipped"]


def test_what_has_ended_or_is_not_ours_cannot_be_called_off(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    schedule = make_schedule(tenant)
    fire(schedule, FIRST)
    found = execution(tenant)

    with pytest.raises(at_work.ExecutionNotFound):
        at_work.cancel(other_tenant.pk, found.pk, actor="eve")
    engine.drain()
    statuses(tenant)
    with pytest.raises(at_work.ExecutionEnded):
        at_work.cancel(tenant.pk, found.pk, actor="ann")


# Crashes


class Killed(BaseException):
    """As if the process had been killed."""


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expanding, "PAGE", 4)
    monkeypatch.setattr(expanding, "PATIENCE", timedelta(0))


def die_at_page(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    record, pages = expanding._record, iter(range(1, 100))

    def recording(*args: Any, **kwargs: Any) -> None:
        if next(pages) == number:
            raise Killed
        record(*args, **kwargs)

    monkeypatch.setattr(expanding, "_record", recording)


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
            expanding.expand(tenant.pk, begun)
    cut_off = [job.params["ticker"] for job in jobs(tenant)]
    with tenant_scope(tenant.pk):
        DatasetRow.objects.filter(key__in=["T00001", "T00008"]).delete()

    tending.tend()

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

    at_once(*[lambda: expanding.expand(tenant.pk, begun)] * 3)
    tending.tend()

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
    for _ in range(expanding.MOST_TRIES):
        with monkeypatch.context() as patched:
            die_at_page(patched, 1)
            with pytest.raises(Killed):
                expanding.expand(tenant.pk, begun)

    tending.tend()

    found = execution(tenant)
    assert found.status == "failed"
    assert "cut off" in found.errors[0]["message"]


def test_an_expansion_under_way_is_left_to_whoever_is_at_it(tenant: Tenant) -> None:
    tickers(tenant, 3)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id"})
    firing.fire(tenant.pk, schedule.pk, now=FIRST)
    with tenant_scope(tenant.pk):
        ScheduleExecution.objects.update(touched_at=datetime.now(UTC))

    tending.tend()

    assert (execution(tenant).status, jobs(tenant)) == ("running", [])


def test_cancelling_during_the_expansion_ends_it(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    tickers(tenant, 12)
    monkeypatch.setattr(expanding, "PAGE", 4)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?staggerDelay=0"})
    (begun,) = firing.fire(tenant.pk, schedule.pk, now=FIRST)
    record = expanding._record

    def recording(found: ScheduleExecution, page: Any, *, recorded: int, waits_for_batches: bool) -> None:
        record(found, page, recorded=recorded, waits_for_batches=waits_for_batches)
        if recorded:
            at_work.call_off(found, actor="ann", reason="enough")

    monkeypatch.setattr(expanding, "_record", recording)
    expanding.expand(tenant.pk, begun)

    assert statuses(tenant) == ["cancelled"]
    assert [job.state for job in jobs(tenant)] == ["cancelled"] * 8


# People are told


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
