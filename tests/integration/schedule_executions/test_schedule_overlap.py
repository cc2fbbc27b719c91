"""A time comes while the execution before it goes on, and executions that are called off."""

from __future__ import annotations

from datetime import timedelta

import pytest

from activities import cancellation
from activities.models import Activity
from pipelines.models import Firing, PipelineRun, ScheduleExecution
from pipelines.schedules import executions as at_work
from pipelines.schedules import firing, system_jobs
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine
from tests.integration.schedule_executions.moments import FIRST, SECOND, THIRD
from tests.scheduling import (
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


def begin_waiting(engine: Engine, tenant: Tenant, status: str) -> None:
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


@pytest.mark.parametrize("status", ["awaiting_approval", "blocked", "awaiting_review"])
def test_what_waits_for_a_person_is_under_way_so_the_next_time_is_skipped(
    engine: Engine, tenant: Tenant, status: str
) -> None:
    schedule = make_schedule(tenant, overlap="skip")
    fire(schedule, FIRST)
    begin_waiting(engine, tenant, status)

    fire(schedule, SECOND)

    assert statuses(tenant) == ["running"]
    assert states(schedule) == ["fired", "skipped"]
    with tenant_scope(tenant.pk):
        assert Firing.objects.get(state="skipped").reason == firing.OVERLAPS


@pytest.mark.parametrize("status", ["awaiting_approval", "blocked"])
def test_one_waits_until_what_is_under_way_has_ended_and_further_ones_are_skipped(
    engine: Engine, tenant: Tenant, status: str
) -> None:
    schedule = make_schedule(tenant, overlap="queue_one")
    fire(schedule, FIRST)
    begin_waiting(engine, tenant, status)
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
    assert (old.jobs_failed, old.metadata["cancelled"]["reason"]) == (1, firing.REPLACED)
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

    system_jobs.advance_executions()

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

    with pytest.raises(at_work.NotFound):
        at_work.cancel(other_tenant.pk, found.pk, actor="eve")
    engine.drain()
    statuses(tenant)
    with pytest.raises(at_work.ExecutionEnded):
        at_work.cancel(tenant.pk, found.pk, actor="ann")
