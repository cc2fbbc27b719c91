"""Firing: which nominal times become executions, which are skipped, and that each is on record exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django_celery_beat.models import PeriodicTask

from activities import relay
from agents import scheduler_settings
from agents.models import PlatformConfig
from pipelines.models import Firing, Schedule, ScheduleExecution
from pipelines.schedules import firing, system_jobs
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, at_once
from tests.scheduling import (
    HOUR,
    NOON,
    again,
    execution,
    executions,
    fire,
    fired,
    firings,
    make_schedule,
    states,
    statuses,
)  # fmt: skip

SOON = timedelta(seconds=3)


@pytest.fixture(autouse=True)
def _served(engine: Engine, tenant: Tenant) -> Iterator[None]:
    engine.serve(tenant)
    scheduler_settings.forget()
    yield
    scheduler_settings.forget()


def configure(**value: Any) -> None:
    PlatformConfig.objects.update_or_create(key=scheduler_settings.KEY, defaults={"value": value})
    scheduler_settings.forget()


def pause(tenant: Tenant, **fields: bool) -> None:
    with tenant_scope(tenant.pk):
        Tenant.objects.filter(pk=tenant.pk).update(**fields)


# On time


def test_a_time_that_has_come_is_fired_once_however_often_somebody_looks(tenant: Tenant) -> None:
    schedule = make_schedule(tenant)

    early = fire(schedule, NOON + HOUR - SOON)
    on_time = fire(schedule, NOON + HOUR + SOON)
    later = fire(schedule, NOON + HOUR + 2 * SOON)

    assert (early, len(on_time), later) == ([], 1, [])
    assert firings(schedule) == [(NOON + HOUR, "fired")]
    row = again(schedule)
    assert (row.looked_until, row.next_run_at) == (NOON + HOUR + SOON, NOON + 2 * HOUR)
    assert row.last_run_at == NOON + HOUR + SOON


def test_what_is_fired_late_within_the_check_interval_is_on_time_even_without_catching_up(
    tenant: Tenant,
) -> None:
    schedule = make_schedule(tenant, catch_up={"up_to": 0})

    fire(schedule, NOON + HOUR + timedelta(seconds=85))

    assert fired(schedule) == [NOON + HOUR]


def test_the_check_interval_decides_what_is_late(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, catch_up={"up_to": 0})
    configure(check_interval=600_000)

    fire(schedule, NOON + HOUR + timedelta(minutes=10))

    assert fired(schedule) == [NOON + HOUR]


def test_an_execution_is_named_by_its_nominal_time_and_runs_its_agent(engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant, params={"depth": 3}, priority=4, timeout_seconds=77)

    fire(schedule, NOON + HOUR + SOON)
    engine.drain()

    assert statuses(tenant) == ["success"]
    found = execution(tenant)
    assert (found.nominal_at, found.schedule_id, found.created_by) == (NOON + HOUR, schedule.pk, "schedule")
    assert (found.jobs_created, found.jobs_enqueued, found.jobs_failed, found.errors) == (1, 1, 0, [])
    assert [call.params for call in engine.agent.calls] == [{"depth": 3}]
    assert found.finished_at is not None


# Outages


@pytest.mark.parametrize(("up_to", "expected"), [(0, 0), (1, 1), (3, 3)])
def test_after_six_hours_of_outage_the_policy_decides_and_every_skipped_time_is_on_record(
    tenant: Tenant, up_to: int, expected: int
) -> None:
    schedule = make_schedule(tenant, catch_up={"up_to": up_to})

    fire(schedule, NOON + 6 * HOUR + timedelta(minutes=10))

    assert states(schedule) == ["skipped"] * (6 - expected) + ["fired"] * expected
    assert [nominal for nominal, _ in firings(schedule)] == [NOON + hour * HOUR for hour in range(1, 7)]
    assert len(executions(tenant)) == expected
    with tenant_scope(tenant.pk):
        reasons = set(Firing.objects.filter(state="skipped").values_list("reason", flat=True))
    assert reasons == {firing.MISSED}


def test_an_outage_that_ends_on_the_hour_fires_that_hour_whatever_the_policy(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, catch_up={"up_to": 0})

    fire(schedule, NOON + 6 * HOUR + SOON)

    assert fired(schedule) == [NOON + 6 * HOUR]


def test_a_long_row_of_skipped_times_is_one_record_that_says_how_many(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, cron="", interval_ms=1_000, catch_up={"up_to": 1})

    fire(schedule, NOON + 30 * 24 * HOUR + timedelta(seconds=0.5))

    with tenant_scope(tenant.pk):
        skipped = Firing.objects.get(schedule_id=schedule.pk, state="skipped")
    last = NOON + 30 * 24 * HOUR
    on_time = fired(schedule)
    assert on_time[-1] == last
    assert (skipped.nominal_at, skipped.last_at) == (
        NOON + timedelta(seconds=1),
        on_time[0] - timedelta(seconds=1),
    )
    assert skipped.count + len(on_time) == 30 * 86_400


def test_what_passes_while_scheduling_is_switched_off_is_missed_as_in_an_outage(tenant: Tenant) -> None:
    schedule = make_schedule(tenant)
    configure(enabled=False)

    off = fire(schedule, NOON + HOUR)
    with system_scope():
        waiting = firing.list_due(NOON + HOUR).exists()
    begun = firing.fire_due(NOON + HOUR)
    configure(enabled=True)
    fire(schedule, NOON + 3 * HOUR + SOON)

    assert (off, waiting, begun) == ([], False, [])
    assert states(schedule) == ["skipped", "skipped", "fired"]


@pytest.mark.parametrize("field", [{"is_active": False}, {"paused": True}])
def test_a_tenant_that_is_inactive_or_paused_does_not_fire_until_it_is_back(
    tenant: Tenant, field: dict[str, bool]
) -> None:
    schedule = make_schedule(tenant)
    pause(tenant, **field)

    while_off = (fire(schedule, NOON + HOUR), firing.fire_due(NOON + HOUR))
    pause(tenant, **{name: not value for name, value in field.items()})
    fire(schedule, NOON + 2 * HOUR)

    assert while_off == ([], [])
    assert states(schedule) == ["skipped", "fired"]


def test_a_disabled_schedule_does_not_fire(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, enabled=False)

    assert fire(schedule, NOON + HOUR) == []
    assert firing.fire_due(NOON + HOUR) == []
    assert firings(schedule) == []


# Clocks that change


def test_a_time_that_clocks_leave_out_fires_at_the_change_and_one_that_comes_twice_fires_once(
    tenant: Tenant,
) -> None:
    march, october = datetime(2026, 3, 7, 12, tzinfo=UTC), datetime(2026, 10, 31, 12, tzinfo=UTC)

    def daily(name: str, cron: str, since: datetime, **fields: Any) -> Schedule:
        zone = {"timezone": "America/New_York", "end_at": since + 30 * HOUR}
        return make_schedule(tenant, name, cron=cron, looked_until=since, **zone, **fields)

    spring, skipping = (
        daily("spring", "30 2 * * *", march),
        daily("skipping", "30 2 * * *", march, dst_gap="skip"),
    )
    autumn, both = (
        daily("autumn", "30 1 * * *", october),
        daily("both", "30 1 * * *", october, dst_fold="both"),
    )

    for since in (march, october):
        for quarter in range(4 * 30):
            firing.fire_due(since + quarter * timedelta(minutes=15))

    assert fired(spring) == [datetime(2026, 3, 8, 7, 0, tzinfo=UTC)]
    assert fired(skipping) == []
    assert fired(autumn) == [datetime(2026, 11, 1, 5, 30, tzinfo=UTC)]
    assert fired(both) == [
        datetime(2026, 11, 1, 5, 30, tzinfo=UTC),
        datetime(2026, 11, 1, 6, 30, tzinfo=UTC),
    ]


# Jitter


def test_a_time_whose_jitter_has_not_passed_has_not_come(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, jitter_seconds=600)
    comes = again(schedule).next_run_at
    assert comes is not None
    assert NOON + HOUR < comes < NOON + HOUR + timedelta(minutes=10)

    before = fire(schedule, comes - timedelta(seconds=1))
    fire(schedule, comes)

    assert before == []
    assert firings(schedule) == [(NOON + HOUR, "fired")]


def test_jitter_longer_than_the_interval_loses_and_doubles_nothing(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, cron="", interval_ms=60_000, jitter_seconds=900)

    for minute in range(120):
        firing.fire_due(NOON + minute * timedelta(minutes=1))

    recorded = [nominal for nominal, _ in firings(schedule)]
    assert all(later - earlier == timedelta(minutes=1) for earlier, later in pairwise(recorded))
    assert recorded[0] == NOON + timedelta(minutes=1)
    assert recorded[-1] >= NOON + timedelta(minutes=100)
    assert set(states(schedule)) == {"fired"}


# Once


@pytest.mark.parametrize(("up_to", "expected"), [(0, "skipped"), (1, "fired")])
def test_a_time_that_had_passed_when_the_schedule_was_made_is_caught_up_on_or_skipped_on_record(
    tenant: Tenant, up_to: int, expected: str
) -> None:
    schedule = make_schedule(
        tenant, repeat="once", start_at=NOON, looked_until=NOON - firing.INSTANT, catch_up={"up_to": up_to}
    )

    fire(schedule, NOON + 10 * HOUR)

    assert firings(schedule) == [(NOON, expected)]
    row = again(schedule)
    assert (row.enabled, row.next_run_at) == (False, None)
    assert not PeriodicTask.objects.get(pk=row.beat_task_id).enabled


def test_a_schedule_that_goes_after_its_one_time_leaves_its_execution_which_still_ends(
    engine: Engine, tenant: Tenant
) -> None:
    schedule = make_schedule(
        tenant, repeat="once", start_at=NOON, looked_until=NOON - firing.INSTANT, after_once="delete"
    )

    fire(schedule, NOON)
    engine.drain()

    with tenant_scope(tenant.pk):
        assert not Schedule.objects.exists()
    assert not PeriodicTask.objects.filter(pk=schedule.beat_task_id).exists()
    assert statuses(tenant) == ["success"]
    assert (execution(tenant).schedule_id, execution(tenant).schedule_name) == (None, "refresh")


def test_a_schedule_that_has_ended_is_looked_at_no_more(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, end_at=NOON + HOUR)

    fire(schedule, NOON + HOUR)
    fire(schedule, NOON + 2 * HOUR)

    assert firings(schedule) == [(NOON + HOUR, "fired")]
    row = again(schedule)
    assert (row.enabled, row.next_run_at) == (True, None)
    assert not PeriodicTask.objects.get(pk=row.beat_task_id).enabled


# Others


def test_a_schedule_that_cannot_be_read_is_put_off_and_hinders_no_other(tenant: Tenant) -> None:
    bad, good = make_schedule(tenant, "bad"), make_schedule(tenant, "good")
    with tenant_scope(tenant.pk):
        Schedule.objects.filter(pk=bad.pk).update(cron="nonsense", next_run_at=NOON)

    begun = firing.fire_due(NOON + HOUR)

    assert len(begun) == 1
    assert fired(good) == [NOON + HOUR]
    assert again(bad).next_run_at == NOON + HOUR + firing.BACK_OFF
    assert again(bad).looked_until == NOON


def test_schedules_of_all_tenants_are_fired_in_one_pass(tenant: Tenant, other_tenant: Tenant) -> None:
    schedules = [
        make_schedule(owner, f"s{number}") for owner in (tenant, other_tenant) for number in range(3)
    ]

    begun = firing.fire_due(NOON + HOUR)

    assert len(begun) == 6
    assert all(fired(schedule) == [NOON + HOUR] for schedule in schedules)


def test_two_schedulers_that_race_over_a_thousand_times_fire_each_exactly_once(tenant: Tenant) -> None:
    schedules = [make_schedule(tenant, f"s{number}", cron="", interval_ms=1_000) for number in range(20)]

    def look() -> int:
        return sum(len(firing.fire_due(NOON + second * timedelta(seconds=1))) for second in range(1, 51))

    counts = at_once(look, look)
    firing.fire_due(NOON + timedelta(seconds=50))

    assert sum(counts) <= 1_000
    for schedule in schedules:
        assert fired(schedule) == [NOON + second * timedelta(seconds=1) for second in range(1, 51)]
    with tenant_scope(tenant.pk):
        assert ScheduleExecution.objects.count() == 1_000


def test_what_a_scheduler_did_before_it_died_without_committing_is_done_by_the_next(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = make_schedule(tenant)
    with monkeypatch.context() as patched:
        patched.setattr(firing, "move_on", lambda *_, **__: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            firing.fire(tenant.pk, schedule.pk, now=NOON + HOUR)

    assert firings(schedule) == []
    fire(schedule, NOON + HOUR)
    assert fired(schedule) == [NOON + HOUR]


# By hand


def test_by_hand_it_runs_though_disabled_and_belongs_to_no_time(engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant, enabled=False)

    begun = system_jobs.run_now(tenant.pk, schedule.pk, actor="ann")
    relay.flush()
    engine.drain()
    system_jobs.advance_executions()

    found = execution(tenant)
    assert (begun.pk, found.nominal_at, found.created_by, found.status) == (found.pk, None, "ann", "success")
    assert firings(schedule) == []


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [("allow", "running"), ("queue_one", "queued"), ("skip", None), ("cancel_running", None)],
)
def test_by_hand_it_heeds_what_is_under_way(tenant: Tenant, overlap: str, expected: str | None) -> None:
    schedule = make_schedule(tenant, overlap=overlap)
    system_jobs.run_now(tenant.pk, schedule.pk, actor="ann")

    if expected is None:
        with pytest.raises(system_jobs.ExecutionUnderWay):
            system_jobs.run_now(tenant.pk, schedule.pk, actor="ann")
    else:
        assert system_jobs.run_now(tenant.pk, schedule.pk, actor="ann").status == expected


def test_somebody_elses_schedule_cannot_be_run(tenant: Tenant, other_tenant: Tenant) -> None:
    schedule = make_schedule(tenant)

    with pytest.raises(system_jobs.NotFound):
        system_jobs.run_now(other_tenant.pk, schedule.pk, actor="eve")
