"""Firing: which nominal times become executions and which are skipped, each recorded exactly once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import OperationalError
from django_celery_beat.models import PeriodicTask
from psycopg.errors import DeadlockDetected

from activities import relay
from activities.models import Activity
from agents import scheduler_settings
from agents.models import PlatformConfig
from pipelines.exceptions import PipelineError
from pipelines.models import Firing, Schedule, ScheduleExecution
from pipelines.schedules import firing, system_jobs
from tenants import clock, pausing
from tenants.context import system_scope, tenant_scope
from tenants.models import PauseKind, Tenant
from tests.engine import Engine, simultaneously
from tests.scheduling import (  # fmt: skip
    HOUR,
    NOON,
    execution,
    executions,
    fire,
    fired_times,
    firings,
    make_schedule,
    reload,
    states,
    statuses,
)

pytestmark = pytest.mark.usefixtures("scheduler_defaults")

SOON = timedelta(seconds=3)


def configure(**value: Any) -> None:
    PlatformConfig.objects.update_or_create(key=scheduler_settings.KEY, defaults={"value": value})
    scheduler_settings.forget()


def pause(tenant: Tenant, **fields: bool) -> None:
    with tenant_scope(tenant.pk):
        Tenant.objects.filter(pk=tenant.pk).update(**fields)


# On time


def test_a_due_time_fires_once_however_often_it_is_checked(tenant: Tenant) -> None:
    schedule = make_schedule(tenant)

    early = fire(schedule, NOON + HOUR - SOON)
    on_time = fire(schedule, NOON + HOUR + SOON)
    later = fire(schedule, NOON + HOUR + 2 * SOON)

    assert (early, len(on_time), later) == ([], 1, [])
    assert firings(schedule) == [(NOON + HOUR, "fired")]
    row = reload(schedule)
    assert (row.looked_until, row.next_run_at) == (NOON + HOUR + SOON, NOON + 2 * HOUR)
    assert row.last_run_at == NOON + HOUR + SOON


def test_a_time_that_fires_within_the_check_interval_is_not_late(
    tenant: Tenant,
) -> None:
    schedule = make_schedule(tenant, catch_up={"up_to": 0})

    fire(schedule, NOON + HOUR + timedelta(seconds=85))

    assert fired_times(schedule) == [NOON + HOUR]


def test_a_longer_check_interval_allows_later_firing(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, catch_up={"up_to": 0})
    configure(check_interval=600_000)

    fire(schedule, NOON + HOUR + timedelta(minutes=10))

    assert fired_times(schedule) == [NOON + HOUR]


def test_an_execution_has_its_nominal_time_and_runs_the_agent_with_its_parameters(
    engine: Engine, tenant: Tenant
) -> None:
    schedule = make_schedule(tenant, params={"depth": 3})

    fire(schedule, NOON + HOUR + SOON)
    engine.drain()

    assert statuses(tenant) == ["success"]
    only = execution(tenant)
    assert (only.nominal_at, only.schedule_id, only.created_by) == (NOON + HOUR, schedule.pk, "schedule")
    assert (only.jobs_created, only.jobs_enqueued, only.jobs_failed, only.errors) == (1, 1, 0, [])
    assert [call.params for call in engine.agent.calls] == [{"depth": 3}]
    assert only.finished_at is not None


def test_the_work_of_an_agent_has_priority_timeout_and_retry_of_its_schedule(tenant: Tenant) -> None:
    retry = {"max_attempts": 2, "strategy": "fixed", "base_seconds": 9}
    schedule = make_schedule(tenant, priority=4, timeout_seconds=77, retry=retry)

    fire(schedule, NOON + HOUR)

    with tenant_scope(tenant.pk):
        work = Activity.objects.get(schedule_id=schedule.pk)
    assert (work.priority, work.timeout_seconds, work.max_attempts, work.retry) == (4, 77, 2, retry)


# Outages


@pytest.mark.parametrize(("up_to", "expected"), [(0, 0), (1, 1), (3, 3)])
def test_after_an_outage_the_catch_up_policy_decides_and_skipped_times_are_recorded(
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


def test_a_time_at_the_end_of_an_outage_fires_whatever_the_policy(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, catch_up={"up_to": 0})

    fire(schedule, NOON + 6 * HOUR + SOON)

    assert fired_times(schedule) == [NOON + 6 * HOUR]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], datetime]:
    """Sets the clock to so long after noon."""

    def move(passed: timedelta) -> datetime:
        monkeypatch.setattr(clock, "now", lambda: NOON + passed)
        return NOON + passed

    return move


def switch_tenant(api: Any, schedule: Schedule, paused: bool) -> None:
    assert api("admin").post(f"/api/v1/tenant/{'pause' if paused else 'resume'}/").status_code == 200


def switch_schedule(api: Any, schedule: Schedule, paused: bool) -> None:
    verb = "pause" if paused else "resume"
    assert api("admin").post(f"/api/v1/schedules/{schedule.pk}/{verb}/").status_code == 200


def switch_scheduling(api: Any, schedule: Schedule, paused: bool) -> None:
    change = {"enabled": not paused}
    assert api("admin", platform=True).put("/api/v1/platform-configs/scheduler/", change).status_code == 200


SWITCHES = [switch_tenant, switch_schedule, switch_scheduling]


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [({"up_to": 0}, []), ({"up_to": 1}, [20]), ({"up_to": 5}, [10, 20])],
)
def test_the_times_of_a_short_pause_follow_the_catch_up_policy(
    api: Any, tenant: Tenant, at: Any, switch: Any, catch_up: dict[str, int], expected: list[int]
) -> None:
    schedule = make_schedule(tenant, cron="", interval_ms=10_000, catch_up=catch_up)
    at(timedelta(seconds=5))
    switch(api, schedule, True)
    assert fire(schedule, at(timedelta(seconds=15))) == []

    at(timedelta(seconds=25))
    switch(api, schedule, False)
    fire(schedule, at(timedelta(seconds=26)))
    fire(schedule, at(timedelta(seconds=31)))

    assert fired_times(schedule) == [NOON + timedelta(seconds=one) for one in (*expected, 30)]
    assert [nominal for nominal, _ in firings(schedule)] == [
        NOON + timedelta(seconds=one) for one in (10, 20, 30)
    ]


@pytest.mark.parametrize("switch", SWITCHES)
def test_resuming_what_was_not_paused_makes_no_time_a_missed_one(
    api: Any, tenant: Tenant, at: Any, switch: Any
) -> None:
    schedule = make_schedule(tenant, cron="", interval_ms=10_000, catch_up={"up_to": 0})

    at(timedelta(seconds=11))
    switch(api, schedule, False)
    fire(schedule, at(timedelta(seconds=12)))

    assert fired_times(schedule) == [NOON + timedelta(seconds=10)]


def test_the_pause_of_another_tenant_or_schedule_changes_nothing(
    api: Any, tenant: Tenant, other_tenant: Tenant, at: Any
) -> None:
    schedule = make_schedule(tenant, cron="", interval_ms=10_000, catch_up={"up_to": 0})
    sibling = make_schedule(tenant, "sibling", cron="", interval_ms=10_000, catch_up={"up_to": 0})
    stranger = make_schedule(other_tenant, cron="", interval_ms=10_000, catch_up={"up_to": 0})
    at(timedelta(seconds=5))
    switch_schedule(api, schedule, True)

    at(timedelta(seconds=11))
    switch_schedule(api, schedule, False)
    for each in (schedule, sibling, stranger):
        fire(each, at(timedelta(seconds=12)))

    assert [states(each) for each in (schedule, sibling, stranger)] == [["skipped"], ["fired"], ["fired"]]


def test_consecutive_skipped_times_are_one_record_with_their_count(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, cron="", interval_ms=1_000, catch_up={"up_to": 1})

    fire(schedule, NOON + 30 * 24 * HOUR + timedelta(seconds=0.5))

    with tenant_scope(tenant.pk):
        skipped = Firing.objects.get(schedule_id=schedule.pk, state="skipped")
    last = NOON + 30 * 24 * HOUR
    on_time = fired_times(schedule)
    assert on_time[-1] == last
    assert (skipped.nominal_at, skipped.last_at) == (
        NOON + timedelta(seconds=1),
        on_time[0] - timedelta(seconds=1),
    )
    assert skipped.count + len(on_time) == 30 * 86_400


def test_times_that_pass_while_scheduling_is_disabled_are_missed_as_in_an_outage(tenant: Tenant) -> None:
    schedule = make_schedule(tenant)
    configure(enabled=False)

    off = fire(schedule, NOON + HOUR)
    with system_scope():
        waiting = firing.list_due(NOON + HOUR).exists()
    execution_ids = firing.fire_due(NOON + HOUR)
    configure(enabled=True)
    fire(schedule, NOON + 3 * HOUR + SOON)

    assert (off, waiting, execution_ids) == ([], False, [])
    assert states(schedule) == ["skipped", "skipped", "fired"]


@pytest.mark.parametrize("field", [{"is_active": False}, {"paused": True}])
def test_schedules_of_an_inactive_or_paused_tenant_fire_only_after_its_return(
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


# Daylight saving time


def test_at_a_change_of_clocks_a_missing_time_fires_at_the_change_and_a_repeated_one_once(
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
        for half_hour in range(2 * 30):
            firing.fire_due(since + half_hour * timedelta(minutes=30))

    assert fired_times(spring) == [datetime(2026, 3, 8, 7, 0, tzinfo=UTC)]
    assert fired_times(skipping) == []
    assert fired_times(autumn) == [datetime(2026, 11, 1, 5, 30, tzinfo=UTC)]
    assert fired_times(both) == [
        datetime(2026, 11, 1, 5, 30, tzinfo=UTC),
        datetime(2026, 11, 1, 6, 30, tzinfo=UTC),
    ]


# Jitter


def test_a_time_fires_only_after_its_jitter(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, jitter_seconds=600)
    due = reload(schedule).next_run_at
    assert due is not None
    assert NOON + HOUR < due < NOON + HOUR + timedelta(minutes=10)

    before = fire(schedule, due - timedelta(seconds=1))
    fire(schedule, due)

    assert before == []
    assert firings(schedule) == [(NOON + HOUR, "fired")]


def test_jitter_fires_no_time_after_the_end_of_the_schedule(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, jitter_seconds=600, end_at=NOON + HOUR + timedelta(seconds=1))

    fire(schedule, NOON + HOUR + timedelta(seconds=1))

    assert firings(schedule) == [(NOON + HOUR, "fired")]
    assert reload(schedule).next_run_at is None


def test_jitter_longer_than_the_interval_loses_and_repeats_no_time(tenant: Tenant) -> None:
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
def test_a_one_time_schedule_in_the_past_fires_or_is_recorded_as_skipped_by_its_policy(
    tenant: Tenant, up_to: int, expected: str
) -> None:
    schedule = make_schedule(
        tenant, repeat="once", start_at=NOON, looked_until=NOON - firing.INSTANT, catch_up={"up_to": up_to}
    )

    fire(schedule, NOON + 10 * HOUR)

    assert firings(schedule) == [(NOON, expected)]
    row = reload(schedule)
    assert (row.enabled, row.next_run_at) == (False, None)
    assert not PeriodicTask.objects.get(pk=row.beat_task_id).enabled


def test_a_schedule_that_is_deleted_after_its_one_time_leaves_its_execution_to_finish(
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


def test_a_schedule_that_is_paused_while_it_fires_for_the_last_time_leaves_no_pause_behind(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = make_schedule(
        tenant, repeat="once", start_at=NOON, looked_until=NOON - firing.INSTANT, after_once="delete"
    )
    record = firing.record

    def pause_first(*arguments: Any) -> Any:
        pausing.switch_part(tenant.pk, PauseKind.SCHEDULE, schedule.pk, name="", paused=True, actor="ann")
        return record(*arguments)

    monkeypatch.setattr(firing, "record", pause_first)
    fire(schedule, NOON)
    engine.drain()

    assert statuses(tenant) == ["success"]


def test_a_schedule_does_not_fire_after_its_end(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, end_at=NOON + HOUR)

    fire(schedule, NOON + HOUR)
    fire(schedule, NOON + 2 * HOUR)

    assert firings(schedule) == [(NOON + HOUR, "fired")]
    row = reload(schedule)
    assert (row.enabled, row.next_run_at) == (True, None)
    assert not PeriodicTask.objects.get(pk=row.beat_task_id).enabled


# Several schedules


def test_an_invalid_schedule_is_postponed_and_does_not_affect_others(tenant: Tenant) -> None:
    bad, good = make_schedule(tenant, "bad"), make_schedule(tenant, "good")
    with tenant_scope(tenant.pk):
        Schedule.objects.filter(pk=bad.pk).update(cron="nonsense", next_run_at=NOON)

    execution_ids = firing.fire_due(NOON + HOUR)

    assert len(execution_ids) == 1
    assert fired_times(good) == [NOON + HOUR]
    assert reload(bad).next_run_at == NOON + HOUR + firing.BACK_OFF
    assert reload(bad).looked_until == NOON


def test_a_schedule_that_met_a_conflict_of_transactions_is_due_again_at_once(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = make_schedule(tenant)

    def meet_a_deadlock(*_: Any) -> list[Any]:
        raise OperationalError("deadlock detected") from DeadlockDetected("deadlock detected")

    with monkeypatch.context() as patched:
        patched.setattr(firing, "record", meet_a_deadlock)
        assert firing.fire_due(NOON + HOUR) == []
    assert len(firing.fire_due(NOON + HOUR)) == 1
    assert fired_times(schedule) == [NOON + HOUR]


def test_schedules_of_all_tenants_are_fired_in_one_pass(tenant: Tenant, other_tenant: Tenant) -> None:
    schedules = [
        make_schedule(owner, f"s{number}") for owner in (tenant, other_tenant) for number in range(3)
    ]

    execution_ids = firing.fire_due(NOON + HOUR)

    assert len(execution_ids) == 6
    assert all(fired_times(schedule) == [NOON + HOUR] for schedule in schedules)


def test_two_concurrent_schedulers_fire_each_of_a_thousand_times_exactly_once(tenant: Tenant) -> None:
    schedules = [make_schedule(tenant, f"s{number}", cron="", interval_ms=1_000) for number in range(20)]

    def fire_all() -> int:
        return sum(len(firing.fire_due(NOON + second * timedelta(seconds=1))) for second in range(1, 51))

    counts = simultaneously(fire_all, fire_all)
    firing.fire_due(NOON + timedelta(seconds=50))

    assert sum(counts) <= 1_000
    for schedule in schedules:
        assert fired_times(schedule) == [NOON + second * timedelta(seconds=1) for second in range(1, 51)]
    with tenant_scope(tenant.pk):
        assert ScheduleExecution.objects.count() == 1_000


def test_a_time_whose_scheduler_died_before_its_commit_is_fired_by_the_next(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = make_schedule(tenant)
    with monkeypatch.context() as patched:
        patched.setattr(firing, "move_on", lambda *_, **__: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            firing.fire(tenant.pk, schedule.pk, now=NOON + HOUR)

    assert firings(schedule) == []
    fire(schedule, NOON + HOUR)
    assert fired_times(schedule) == [NOON + HOUR]


# Run now


def test_run_now_works_for_a_disabled_schedule_and_has_no_nominal_time(
    engine: Engine, tenant: Tenant
) -> None:
    schedule = make_schedule(tenant, enabled=False)

    execution_ids = system_jobs.run_now(tenant.pk, schedule.pk, actor="ann")
    relay.flush()
    engine.drain()
    system_jobs.advance_executions()

    only = execution(tenant)
    assert (execution_ids.pk, only.nominal_at, only.created_by, only.status) == (
        only.pk,
        None,
        "ann",
        "success",
    )
    assert firings(schedule) == []


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [("allow", "running"), ("queue_one", "queued"), ("skip", None), ("cancel_running", None)],
)
def test_run_now_obeys_the_overlap_policy(tenant: Tenant, overlap: str, expected: str | None) -> None:
    schedule = make_schedule(tenant, overlap=overlap)
    system_jobs.run_now(tenant.pk, schedule.pk, actor="ann")

    if expected is None:
        with pytest.raises(PipelineError, match="has not ended"):
            system_jobs.run_now(tenant.pk, schedule.pk, actor="ann")
    else:
        assert system_jobs.run_now(tenant.pk, schedule.pk, actor="ann").status == expected


@pytest.mark.parametrize("overlap", ["queue_one", "skip", "cancel_running"])
def test_run_now_begins_at_once_if_the_jobs_of_the_execution_before_have_ended(
    engine: Engine, tenant: Tenant, overlap: str
) -> None:
    schedule = make_schedule(tenant, overlap=overlap)
    system_jobs.run_now(tenant.pk, schedule.pk, actor="ann")
    relay.flush()
    engine.drain()

    assert system_jobs.run_now(tenant.pk, schedule.pk, actor="ann").status == "running"


def test_a_schedule_of_another_tenant_cannot_be_run(tenant: Tenant, other_tenant: Tenant) -> None:
    schedule = make_schedule(tenant)

    with pytest.raises(system_jobs.NotFound):
        system_jobs.run_now(other_tenant.pk, schedule.pk, actor="eve")
