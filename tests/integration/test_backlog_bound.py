"""The backlog of a role is bounded: more work is refused, or waits elsewhere until there is room, however it is submitted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import connections

from activities import backlog, cancellation, relay, rescheduling, tasks
from activities.backlog import BacklogFull
from activities.maintenance.invariants import check
from activities.models import Activity
from agents import configuration
from agents.models import AgentConfig
from pipelines import cancellation as run_cancellation
from pipelines import versions, waiting_steps
from pipelines.models import PipelineRun, Schedule, ScheduleExecution, StepRun
from pipelines.schedules import system_jobs
from pipelines.submission import NewRun, WhenFull, start_run, start_runs
from tenants import sweeps
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.damage import temporary_damage
from tests.engine import Engine, simultaneously
from tests.flows import Flow, step
from tests.scheduling import (
    HOUR,
    NOON,
    execution,
    executions,
    fire,
    jobs,
    make_pipeline,
    make_schedule,
    tickers,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time", "fresh")

BOUND = 2
ALL_ROWS = "db:ticker:all:id?enabled=true"


@pytest.fixture
def fresh() -> None:
    backlog._counts.clear()
    backlog._refused.clear()


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    """Two activities of `qa` may wait. Nothing starts before a test delivers its message."""
    engine.serve(tenant)
    bound(tenant, "qa", BOUND)
    return tenant


def bound(tenant: Tenant, role: str, most: int, when_full: str = "reject") -> None:
    with tenant_scope(tenant.pk):
        AgentConfig.objects.update_or_create(
            tenant=tenant,
            agent_id=role,
            defaults={"backlog": {"max_waiting": most, "when_full": when_full}},
        )
    configuration.forget()


def waiting(tenant: Tenant, role: str = "qa") -> int:
    with tenant_scope(tenant.pk):
        return Activity.objects.for_tenant(tenant.pk).filter(status="created", agent_role=role).count()


def deferred_roles(tenant: Tenant) -> list[str]:
    with tenant_scope(tenant.pk):
        rows = StepRun.objects.filter(tenant_id=tenant.pk, reason="backlog").order_by("run_id", "position")
        return list(rows.values_list("step", flat=True))


def run_states(tenant: Tenant) -> list[str]:
    with tenant_scope(tenant.pk):
        return list(PipelineRun.objects.for_tenant(tenant.pk).order_by("pk").values_list("status", flat=True))


def test_every_intake_point_refuses_work_when_the_backlog_is_full(
    api: Callable[..., Any], engine: Engine, acme: Tenant
) -> None:
    make_pipeline(acme)
    client = api()
    body = {"name": "x", "agent_role": "qa"}
    assert [client.post("/api/v1/activities/", body).status_code for _ in range(BOUND)] == [201] * BOUND

    doors = [
        client.post("/api/v1/activities/", body),
        client.post("/api/v1/activities/", [body, body]),
        client.post("/api/v1/pipelines/flow/runs/", {}),
        client.post("/api/v1/mailboxes/chat/items/", {"kind": "message", "text": "Hi.", "agent_role": "qa"}),
        client.post(
            "/api/v1/subagents/", {"subagent_type": "qa", "prompt": "Look.", "description": "A look"}
        ),
    ]

    for refused in doors:
        problem(refused, 429, "backlog_full")
        assert int(refused["Retry-After"]) > 0
    assert (waiting(acme), run_states(acme)) == (BOUND, [])
    assert client.get("/api/v1/mailboxes/").json()["results"] == []


def test_a_repeated_submission_needs_no_room(api: Callable[..., Any], acme: Tenant) -> None:
    client, work = api(), {"name": "x", "agent_role": "qa"}
    first = client.post("/api/v1/activities/", {**work, "dedup_key": "first"}).json()
    both = client.post("/api/v1/activities/", [{**work, "dedup_key": "second"}] * 2)
    assert (both.status_code, waiting(acme)) == (201, BOUND), "the last place is enough for two with one key"

    again = client.post("/api/v1/activities/", {**work, "dedup_key": "first"})
    assert (again.status_code, again.json()["id"], again.json()["deduplicated"]) == (200, first["id"], True)
    mixed = [{**work, "dedup_key": key} for key in ("first", "third")]
    problem(client.post("/api/v1/activities/", mixed), 429, "backlog_full")
    assert waiting(acme) == BOUND


def test_no_work_is_dropped_for_a_repeated_submission(api: Callable[..., Any], acme: Tenant) -> None:
    for role, when_full in (("qa", "drop_oldest"), ("ba", "evict_lowest")):
        bound(acme, role, 1, when_full)
        work = {"name": "x", "agent_role": role, "dedup_key": role}
        first = api().post("/api/v1/activities/", {**work, "priority": "background"}).json()

        again = api().post("/api/v1/activities/", {**work, "priority": "urgent"})

        assert (again.status_code, again.json()["id"], again.json()["status"]) == (
            200,
            first["id"],
            "created",
        )


def test_jobs_of_a_schedule_wait_for_room_with_their_reason_and_none_is_lost(
    api: Callable[..., Any], engine: Engine, acme: Tenant
) -> None:
    tickers(acme, 9)
    schedule = make_schedule(acme, params={"ticker": ALL_ROWS})
    fire(schedule, NOON + HOUR)

    assert [job.state for job in jobs(acme)] == ["enqueued"] * BOUND + ["waiting"] * 7
    reason = (
        api().get(f"/api/v1/schedules/{schedule.pk}/executions/{execution(acme).pk}/jobs/").json()["results"]
    )
    assert {job["error"]["code"] for job in reason if job["state"] == "waiting"} == {"backlog_full"}

    rounds = 0
    while execution(acme).finished_at is None and rounds < 20:
        rounds += 1
        assert waiting(acme) <= BOUND
        engine.drain()
        system_jobs.advance_executions()
        assert waiting(acme) <= BOUND
    assert (execution(acme).status, execution(acme).jobs_enqueued) == ("success", 9)
    assert [job.error for job in jobs(acme)] == [None] * 9
    assert len(engine.agent.calls) == 9


def test_jobs_of_an_execution_that_wait_for_room_drop_no_other_job_of_it(
    engine: Engine, acme: Tenant
) -> None:
    """They are background work, and the oldest of them is the oldest work of its role."""
    bound(acme, "qa", BOUND, when_full="drop_oldest")
    tickers(acme, BOUND + 2)
    schedule = make_schedule(acme, params={"ticker": ALL_ROWS}, priority=20)

    fire(schedule, NOON + HOUR)
    system_jobs.settle()

    assert [job.state for job in jobs(acme)] == ["enqueued"] * BOUND + ["waiting"] * 2
    for _ in range(2):
        engine.drain()
        system_jobs.settle()
        relay.flush()
    engine.drain()
    assert len(engine.agent.calls) == BOUND + 2


def test_a_schedule_without_a_source_waits_for_room_as_well(engine: Engine, acme: Tenant) -> None:
    engine.submit(acme, count=BOUND)

    fire(make_schedule(acme), NOON + HOUR)
    assert ([job.state for job in jobs(acme)], execution(acme).jobs_enqueued) == (["waiting"], 0)
    with tenant_scope(acme.pk):
        ScheduleExecution.objects.update(expanded_at=datetime.now(UTC) - HOUR)
        Schedule.objects.update(next_run_at=None)  # The test fires it in the past.
    assert check(quiesced=True) == [], "the execution waits on purpose"

    engine.drain()
    assert check(quiesced=True) == [], "there has been room for a moment only"
    with temporary_damage("UPDATE activities_activityevent SET at = at - interval '5 minutes'"):
        assert "I32" in {violation.invariant for violation in check(quiesced=True)}

    system_jobs.advance_executions()
    engine.drain()
    system_jobs.advance_executions()
    assert (execution(acme).status, len(engine.agent.calls)) == ("success", BOUND + 1)


def test_executions_that_wait_for_room_keep_no_later_one_from_its_end(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "PAGE", 1)
    tickers(acme, BOUND + 1)
    fire(make_schedule(acme, params={"ticker": ALL_ROWS}), NOON + HOUR)
    fire(make_schedule(acme, "later", agent_role="dev"), NOON + HOUR)
    later = jobs(acme)[-1]
    cancellation.cancel(acme.pk, later.activity_id, actor="ann")

    system_jobs.settle()

    assert [(each.finished_at is None) for each in executions(acme)] == [True, False]


def test_a_schedule_starts_as_many_pipeline_runs_as_there_is_room_for(engine: Engine, acme: Tenant) -> None:
    tickers(acme, 5)
    schedule = make_schedule(acme, pipeline=make_pipeline(acme), params={"ticker": ALL_ROWS})

    fire(schedule, NOON + HOUR)
    assert (run_states(acme), waiting(acme)) == (["running"] * BOUND, BOUND)

    for _ in range(5):
        engine.drain()
        system_jobs.advance_executions()
        assert waiting(acme) <= BOUND
    assert run_states(acme) == ["completed"] * 5
    assert execution(acme).status == "success"


def start_flow_runs(tenant: Tenant, count: int, *steps: dict[str, Any]) -> list[UUID]:
    versions.save(tenant.pk, {"key": "flow", "name": "Flow", "steps": list(steps)}, actor="test")
    return [start_run(tenant.pk, "flow", NewRun(), actor="test").pk for _ in range(count)]


def test_steps_of_runs_under_way_wait_for_room_and_none_is_lost(
    api: Callable[..., Any], engine: Engine, acme: Tenant
) -> None:
    bound(acme, "ba", BOUND)  # no worker serves it
    runs = start_flow_runs(acme, 5, step("first", agent_role="dev"), step("second", "first", agent_role="ba"))
    engine.drain()

    assert (waiting(acme, "ba"), deferred_roles(acme)) == (BOUND, ["second"] * 3)
    reason = api().get(f"/api/v1/pipeline-runs/{runs[-1]}/").json()["steps"][1]
    assert (reason["status"], reason["reason"]) == ("pending", "backlog")
    problem(api().post("/api/v1/activities/", {"name": "x", "agent_role": "ba"}), 429, "backlog_full")
    assert waiting_steps.admit_steps() == 0

    with tenant_scope(acme.pk):
        first = Activity.objects.filter(agent_role="ba").earliest("created_at")
    cancellation.cancel(acme.pk, first.pk, actor="test")
    assert waiting_steps.admit_steps() == 1

    assert (waiting(acme, "ba"), len(deferred_roles(acme))) == (BOUND, 2)


def test_a_run_whose_definition_cannot_be_read_keeps_no_other_from_its_room(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(acme, "ba", 1)
    engine.submit(acme, "ba")
    first = step("first", agent_role="dev")
    (broken,) = start_flow_runs(acme, 1, first, step("second", "first", agent_role="ba"))
    start_flow_runs(acme, 1, first, step("second", "first", agent_role="ba", timeout_seconds=9))
    engine.drain()
    assert deferred_roles(acme) == ["second"] * 2
    with tenant_scope(acme.pk):
        version_of_broken = PipelineRun.objects.get(pk=broken).version_id
    compiled = versions.compile_version

    def compile_others(version_id: UUID) -> Any:
        if version_id == version_of_broken:
            raise ZeroDivisionError
        return compiled(version_id)

    monkeypatch.setattr(versions, "compile_version", compile_others)
    bound(acme, "ba", 3)

    assert waiting_steps.admit_steps() == 1
    assert waiting(acme, "ba") == 2


def test_all_runs_of_a_month_begin_and_their_first_steps_wait_for_room(engine: Engine, acme: Tenant) -> None:
    make_pipeline(acme)

    start_runs(acme.pk, "flow", [NewRun()] * 5, actor="test", when_full=WhenFull.WAIT)

    assert (run_states(acme), waiting(acme), len(deferred_roles(acme))) == (["running"] * 5, BOUND, 3)
    for _ in range(4):
        engine.drain()
        waiting_steps.admit_steps()
        assert waiting(acme) <= BOUND
    assert (run_states(acme), deferred_roles(acme)) == (["completed"] * 5, [])


@pytest.mark.parametrize("first", [{}, {"when": "true"}, {"for_each": "[1]"}])
def test_first_steps_keep_their_date_while_they_wait_for_room(
    engine: Engine, acme: Tenant, first: dict[str, Any]
) -> None:
    versions.save(
        acme.pk, {"key": "flow", "name": "Flow", "steps": [step("a", **first), step("b", "a")]}, actor="test"
    )
    others = engine.submit(acme, count=BOUND)
    date = datetime.now(UTC) + HOUR

    start_runs(acme.pk, "flow", [NewRun(not_before=date)], actor="test", when_full=WhenFull.WAIT)
    before = deferred_roles(acme)
    for activity_id in others:
        cancellation.cancel(acme.pk, activity_id, actor="test")
    waiting_steps.admit_steps()

    assert (before, deferred_roles(acme)) == (["a"], [])
    with tenant_scope(acme.pk):
        assert Activity.objects.get(step="a").not_before == date


def test_a_step_after_one_that_people_let_run_before_its_date_does_not_wait_for_the_date(
    engine: Engine, acme: Tenant
) -> None:
    versions.save(
        acme.pk, {"key": "flow", "name": "Flow", "steps": [step("a"), step("b", "a")]}, actor="test"
    )
    (run,) = start_runs(acme.pk, "flow", [NewRun(not_before=datetime.now(UTC) + HOUR)], actor="test")
    with tenant_scope(acme.pk):
        first = Activity.objects.get(pipeline_run_id=run.pk)

    rescheduling.run_now(acme.pk, first.pk, actor="ann", reason="today")
    engine.drain()

    assert run_states(acme) == ["completed"]


def test_steps_that_start_together_share_the_available_room(engine: Engine, acme: Tenant) -> None:
    start_flow_runs(acme, 1, step("first", agent_role="dev"), *(step(name, "first") for name in "abcd"))

    engine.deliver()
    assert (waiting(acme), deferred_roles(acme)) == (BOUND, ["c", "d"])

    engine.drain()
    waiting_steps.admit_steps()
    assert (waiting(acme), deferred_roles(acme)) == (BOUND, [])


def test_all_deferred_work_gets_done(engine: Engine, acme: Tenant) -> None:
    start_flow_runs(
        acme, 5, step("first", agent_role="dev"), step("a", "first"), step("b", "first"), step("c", "a", "b")
    )

    for _ in range(12):
        while engine.deliver():
            assert waiting(acme) <= BOUND
        waiting_steps.admit_steps()
        assert waiting(acme) <= BOUND

    assert (run_states(acme), deferred_roles(acme)) == (["completed"] * 5, [])
    assert len(engine.agent.calls) == 20


def test_a_fan_out_larger_than_the_bound_starts_once_nothing_else_waits(engine: Engine, acme: Tenant) -> None:
    many = step("many", "list", for_each="steps.list.data")
    flow = Flow(engine, acme, step("list", agent_role="dev"), many, step("end", "many", agent_role="dev"))
    (other,) = engine.submit(acme, not_before=datetime.now(UTC) + HOUR)
    flow.drain(list=[1, 2, 3, 4])
    assert deferred_roles(acme) == ["many"]

    assert waiting_steps.admit_steps() == 0
    cancellation.cancel(acme.pk, other, actor="test")
    assert waiting_steps.admit_steps() == 1
    flow.drain()

    assert flow.outcome == ("completed", 0)
    assert flow.branches("many") == ["done"] * 4


def test_what_waits_for_room_ends_with_its_run(engine: Engine, acme: Tenant) -> None:
    bound(acme, "ba", 1)
    runs = start_flow_runs(acme, 2, step("first", agent_role="dev"), step("second", "first", agent_role="ba"))
    engine.drain()
    assert deferred_roles(acme) == ["second"]

    for run in runs:
        run_cancellation.cancel_run(acme.pk, run, actor="test")

    assert (waiting_steps.admit_steps(), waiting(acme, "ba"), deferred_roles(acme)) == (0, 0, [])


def test_a_revision_of_accepted_work_is_never_refused(
    api: Callable[..., Any], engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme, requires_approval=True)
    engine.drain()
    engine.submit(acme, count=BOUND)
    with tenant_scope(acme.pk):
        gate = Activity.objects.get(parent_id=activity_id, link_kind="gate")

    answer = api().post(f"/api/v1/activities/{gate.pk}/reject/", {"notes": "Again."})

    assert answer.status_code == 200
    assert waiting(acme) == BOUND + 1


@pytest.mark.parametrize("known", [True, False])
def test_simultaneous_submissions_never_exceed_the_bound(engine: Engine, acme: Tenant, known: bool) -> None:
    make_pipeline(acme)
    start = (
        (lambda: start_run(acme.pk, "flow", NewRun(), actor="test"))
        if known
        else (lambda: engine.submit(acme))
    )

    outcomes = simultaneously(*[start] * 5)

    assert sum(isinstance(outcome, BacklogFull) for outcome in outcomes) == 3
    assert [
        outcome
        for outcome in outcomes
        if isinstance(outcome, Exception) and not isinstance(outcome, BacklogFull)
    ] == []
    assert waiting(acme) == BOUND


def test_steps_that_end_at_once_share_the_available_room(engine: Engine, acme: Tenant) -> None:
    bound(acme, "ba", BOUND)
    engine.serve(acme, "dev", max_concurrency=4)
    start_flow_runs(acme, 4, step("first", agent_role="dev"), step("second", "first", agent_role="ba"))
    messages = [engine.take() or {} for _ in range(4)]

    outcomes = simultaneously(*[lambda message=message: tasks.run(**message) for message in messages])

    assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
    assert (waiting(acme, "ba"), len(deferred_roles(acme))) == (BOUND, 2)


def test_without_a_bound_the_backlog_is_not_counted(engine: Engine, acme: Tenant) -> None:
    engine.submit(acme, "dev")

    queries: list[str] = []

    def listen(execute: Any, sql: str, *rest: Any) -> Any:
        queries.append(sql)
        return execute(sql, *rest)

    with connections["default"].execute_wrapper(listen):
        engine.submit(acme, "dev")

    assert [sql for sql in queries if "count(" in sql.lower() or "advisory" in sql.lower()] == []


def test_work_of_a_role_that_has_left_the_registry_waits_within_the_platforms_bound(
    engine: Engine, tenant: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAX_BACKLOG = 1
    assert engine.submit(tenant, "gone-from-the-registry")
    assert waiting(tenant, "gone-from-the-registry") == 1
    with pytest.raises(BacklogFull):
        engine.submit(tenant, "gone-from-the-registry")


def test_work_that_enters_only_as_a_whole_drops_nothing_and_takes_no_room_if_a_part_has_none(
    engine: Engine, acme: Tenant
) -> None:
    make_pipeline(acme, steps=[step("dev", agent_role="dev"), step("qa")])
    bound(acme, "dev", 1, when_full="drop_oldest")
    (background,) = engine.submit(acme, "dev", priority=20)
    engine.submit(acme, count=BOUND)

    with tenant_scope(acme.pk):
        assert start_runs(acme.pk, "flow", [NewRun()], actor="test", when_full=WhenFull.FEWER) == []
    assert engine.status(acme, background) == "created"

    bound(acme, "dev", 2)
    with tenant_scope(acme.pk):
        groups = [[backlog.Newcomer("dev"), backlog.Newcomer("qa")], [backlog.Newcomer("dev")]]
        assert list(backlog.entering(acme.pk, groups)) == [False, True]
