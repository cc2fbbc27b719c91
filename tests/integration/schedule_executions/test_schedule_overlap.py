"""A schedule fires while its last execution runs, and cancelled executions."""

from __future__ import annotations

from datetime import timedelta

import pytest

from activities import cancellation
from activities.models import Activity
from pipelines.exceptions import PipelineError
from pipelines.models import Firing, PipelineRun, Schedule, ScheduleExecution
from pipelines.schedules import editing, firing, system_jobs
from pipelines.schedules import executions as schedule_executions
from tenants.context import tenant_scope
from tenants.events import log
from tenants.events.log import EventFilter
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

pytestmark = pytest.mark.usefixtures("scheduler_defaults")


def wait_for_a_person(engine: Engine, tenant: Tenant, status: str) -> None:
    """Make the only activity wait for a person."""
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
def test_an_execution_that_waits_for_a_person_makes_the_next_time_skipped(
    engine: Engine, tenant: Tenant, status: str
) -> None:
    schedule = make_schedule(tenant, overlap="skip")
    fire(schedule, FIRST)
    wait_for_a_person(engine, tenant, status)

    fire(schedule, SECOND)

    assert statuses(tenant) == ["running"]
    assert states(schedule) == ["fired", "skipped"]
    with tenant_scope(tenant.pk):
        assert Firing.objects.get(state="skipped").reason == firing.OVERLAPS


@pytest.mark.parametrize("status", ["awaiting_approval", "blocked"])
def test_one_time_is_queued_until_the_execution_ends_and_further_ones_are_skipped(
    engine: Engine, tenant: Tenant, status: str
) -> None:
    schedule = make_schedule(tenant, overlap="queue_one")
    fire(schedule, FIRST)
    wait_for_a_person(engine, tenant, status)
    fire(schedule, SECOND)
    fire(schedule, THIRD)
    before = (statuses(tenant), states(schedule), len(jobs(tenant)))

    cancellation.cancel(tenant.pk, jobs(tenant)[0].activity_id, actor="ann")
    after = statuses(tenant)
    engine.drain()

    assert before == (["running", "queued"], ["fired", "queued", "skipped"], 1)
    assert (after, states(schedule)) == (["failed", "running"], ["fired", "fired", "skipped"])
    assert statuses(tenant) == ["failed", "success"]


def test_no_time_is_skipped_after_the_last_execution_ended(engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant, overlap="skip")

    for time in (FIRST, SECOND):
        fire(schedule, time)
        engine.drain()
        statuses(tenant)

    assert states(schedule) == ["fired", "fired"]


@pytest.mark.parametrize("overlap", ["skip", "queue_one", "cancel_running"])
def test_an_execution_whose_jobs_have_ended_does_not_overlap_before_it_is_settled(
    engine: Engine, tenant: Tenant, overlap: str
) -> None:
    schedule = make_schedule(tenant, overlap=overlap)
    fire(schedule, FIRST)
    engine.drain()
    unsettled = execution(tenant).status

    fire(schedule, SECOND)
    engine.drain()

    assert (unsettled, states(schedule)) == ("running", ["fired", "fired"])
    assert statuses(tenant) == ["success", "success"]


def test_a_time_comes_after_the_queued_one_even_if_the_execution_before_is_not_settled(
    engine: Engine, tenant: Tenant
) -> None:
    schedule = make_schedule(tenant, overlap="queue_one")
    fire(schedule, FIRST)
    fire(schedule, SECOND)
    engine.drain()

    begun = firing.fire(tenant.pk, schedule.pk, now=THIRD)

    assert (begun, states(schedule)) == ([], ["fired", "queued", "skipped"])


def test_a_new_time_cancels_the_running_execution(engine: Engine, tenant: Tenant) -> None:
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
def test_the_overlap_policy_applies_to_times_that_are_caught_up_together(
    tenant: Tenant, overlap: str, expected: list[str]
) -> None:
    schedule = make_schedule(tenant, overlap=overlap, catch_up={"up_to": 3})

    firing.fire(tenant.pk, schedule.pk, now=THIRD + timedelta(minutes=10))

    assert states(schedule) == expected


def queue_one_and_change_to(tenant: Tenant, policy: str) -> Schedule:
    """Fire a schedule twice, so that its second execution is queued, and then change its policy."""
    schedule = make_schedule(tenant, overlap="queue_one")
    fire(schedule, FIRST)
    fire(schedule, SECOND)
    editing.change(tenant.pk, schedule.pk, {"overlap": policy}, actor="ann", now=SECOND)
    return schedule


def test_a_new_time_cancels_the_queued_execution_too_if_the_policy_was_changed(
    engine: Engine, tenant: Tenant
) -> None:
    schedule = queue_one_and_change_to(tenant, "cancel_running")

    fire(schedule, THIRD)
    engine.drain()

    assert statuses(tenant) == ["cancelled", "cancelled", "success"]
    assert states(schedule) == ["fired", "skipped", "fired"]


def test_a_queued_execution_does_not_wait_for_later_ones_if_overlaps_are_allowed_since(
    engine: Engine, tenant: Tenant
) -> None:
    schedule = queue_one_and_change_to(tenant, "allow")
    fire(schedule, THIRD)
    before = statuses(tenant)

    cancellation.cancel(tenant.pk, jobs(tenant)[0].activity_id, actor="ann")
    after = statuses(tenant)

    assert (before, after) == (["running", "queued", "running"], ["failed", "running", "running"])


def test_a_queued_execution_waits_for_the_one_before_even_if_the_schedule_is_deleted(
    engine: Engine, tenant: Tenant
) -> None:
    schedule = make_schedule(tenant, overlap="queue_one")
    fire(schedule, FIRST)
    fire(schedule, SECOND)
    editing.delete(tenant.pk, schedule.pk, actor="ann")

    before = statuses(tenant)
    engine.drain()
    after = statuses(tenant)
    engine.drain()

    assert (before, after) == (["running", "queued"], ["success", "running"])
    assert statuses(tenant) == ["success", "success"]


def test_a_queued_execution_starts_if_no_execution_is_running(engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant, overlap="queue_one")
    fire(schedule, FIRST)
    fire(schedule, SECOND)
    with tenant_scope(tenant.pk):
        ScheduleExecution.objects.filter(status="running").delete()

    assert statuses(tenant) == ["running"]


def test_a_cancelled_execution_starts_no_jobs_and_cancels_running_ones(
    engine: Engine, tenant: Tenant
) -> None:
    tickers(tenant, 4)
    schedule = make_schedule(
        tenant, params={"ticker": "db:ticker:all:id?batchSize=2&staggerDelay=0&batch_gate=completion"}
    )
    fire(schedule, FIRST)

    schedule_executions.cancel(tenant.pk, execution(tenant).pk, actor="ann", reason="wrong list")
    engine.drain()

    assert statuses(tenant) == ["cancelled"]
    assert {job.state for job in jobs(tenant)} == {"cancelled"}
    assert engine.agent.calls == []
    cancelled = execution(tenant)
    assert (cancelled.jobs_failed, cancelled.metadata["cancelled"]["by"]) == (4, "ann")
    assert cancelled.finished_at is not None


def test_an_interrupted_cancellation_is_finished_by_the_system_job(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickers(tenant, 3)
    schedule = make_schedule(
        tenant, pipeline=make_pipeline(tenant), params={"ticker": "db:ticker:all:id?staggerDelay=0"}
    )
    fire(schedule, FIRST)
    with monkeypatch.context() as patched:
        patched.setattr(schedule_executions, "close_jobs", lambda *_: None)  # as if the process died
        schedule_executions.cancel(tenant.pk, execution(tenant).pk, actor="ann")
    interrupted = (execution(tenant).status, execution(tenant).finished_at)

    system_jobs.advance_executions()

    assert interrupted == ("cancelled", None)
    assert statuses(tenant) == ["cancelled"]
    with tenant_scope(tenant.pk):
        assert set(PipelineRun.objects.values_list("status", flat=True)) == {"cancelled"}
    assert {job.error["message"] for job in jobs(tenant)} == {"The pipeline run was cancelled."}
    assert execution(tenant).finished_at is not None


def test_a_queued_execution_can_be_cancelled_and_its_time_counts_as_skipped(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, overlap="queue_one")
    fire(schedule, FIRST)
    fire(schedule, SECOND)

    schedule_executions.cancel(tenant.pk, executions(tenant)[1].pk, actor="ann")

    assert statuses(tenant) == ["running", "cancelled"]
    assert states(schedule) == ["fired", "skipped"]
    events = log.page(
        tenant.pk, None, 100, EventFilter(frozenset({"schedule.fired", "schedule.skipped"}))
    ).events
    assert [(event.kind, event.data["status"]) for event in events] == [
        ("schedule.fired", "fired"),
        ("schedule.fired", "queued"),
        ("schedule.skipped", "skipped"),
    ]


def test_an_ended_execution_or_one_of_another_tenant_cannot_be_cancelled(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    schedule = make_schedule(tenant)
    fire(schedule, FIRST)
    row = execution(tenant)

    with pytest.raises(schedule_executions.NotFound):
        schedule_executions.cancel(other_tenant.pk, row.pk, actor="eve")
    engine.drain()
    statuses(tenant)
    with pytest.raises(PipelineError, match="has ended with"):
        schedule_executions.cancel(tenant.pk, row.pk, actor="ann")
