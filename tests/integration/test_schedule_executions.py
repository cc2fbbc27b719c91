"""Executions: from parameters to jobs, their batches, how they end, and what follows when one is under way already."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connections

from activities import cancellation, reassignment, relay, rescheduling
from activities.human_tasks import approvals
from activities.models import Activity
from agents import configuration, scheduler_settings
from agents.contracts import AgentResult, Completed, Output, Usage
from agents.exceptions import PermanentAgentError, RetryableAgentError
from agents.models import Agent
from pipelines import cancellation as run_cancellation
from pipelines.models import PipelineRun, Schedule
from pipelines.schedules import firing, system_jobs
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine
from tests.scheduling import (
    HOUR,
    NOON,
    execution,
    executions,
    fire,
    jobs,
    make_pipeline,
    make_schedule,
    statuses,
    tickers,
)

FIRST = NOON + HOUR


@pytest.fixture(autouse=True)
def _served(engine: Engine, tenant: Tenant) -> Iterator[None]:
    engine.serve(tenant)
    scheduler_settings.forget()
    yield
    Agent.objects.filter(role="qa").update(enabled=True, input_schema=None)
    configuration.forget()
    scheduler_settings.forget()


def failing(*values: Any) -> Any:
    """An agent that fails for good for jobs with these values of `ticker`."""

    def answer(request: Any) -> AgentResult:
        if request.params.get("ticker") in values:
            raise PermanentAgentError(f"nothing about {request.params.get('ticker')}", code="no_data")
        return Completed(Output(content="done"))

    return answer


def activities_of(tenant: Tenant) -> list[Activity]:
    with tenant_scope(tenant.pk):
        return list(Activity.objects.for_tenant(tenant.pk).order_by("pk"))


def set_schema(**schema: Any) -> None:
    Agent.objects.filter(role="qa").update(input_schema=schema)
    configuration.forget()


# Expansion


def test_a_hundred_rows_become_a_hundred_jobs_in_ten_batches_a_second_apart(tenant: Tenant) -> None:
    tickers(tenant, 100)
    schedule = make_schedule(
        tenant,
        params={"ticker": "db:ticker:all:id?enabled=true&batchSize=10&staggerDelay=1000", "depth": 2},
    )

    fire(schedule, FIRST)

    found = execution(tenant)
    rows = jobs(tenant)
    assert (found.jobs_created, found.jobs_enqueued, found.jobs_failed) == (100, 100, 0)
    assert [job.params for job in rows] == [{"ticker": f"T{n:05}", "depth": 2} for n in range(100)]
    assert [job.batch for job in rows] == [n // 10 for n in range(100)]
    assert [job.due_at - found.started_at for job in rows[::10]] == [timedelta(seconds=n) for n in range(10)]
    assert {name: found.metadata[name] for name in ("jobs", "batches", "batch_size", "stagger_ms")} == {
        "jobs": 100, "batches": 10, "batch_size": 10, "stagger_ms": 1_000,
    }  # fmt: skip
    began = {activity.pk: activity.not_before for activity in activities_of(tenant)}
    assert [began[job.activity_id] for job in rows] == [None] * 10 + [job.due_at for job in rows[10:]]


def test_rows_that_come_or_go_between_two_times_are_heeded_by_themselves(tenant: Tenant) -> None:
    tickers(tenant, 2)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id"})

    fire(schedule, FIRST)
    with tenant_scope(tenant.pk):
        from pipelines.models import DatasetRow

        DatasetRow.objects.filter(key="T00000").delete()
    fire(schedule, FIRST + HOUR)

    assert [job.params["ticker"] for job in jobs(tenant)] == ["T00000", "T00001", "T00001"]


def test_a_learning_agent_reads_on_its_own_schedule_what_other_runs_have_reported(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    def answer(request: Any) -> AgentResult:
        if request.params.get("ticker") == "T00001":
            raise PermanentAgentError("nothing about it", code="no_data")
        usage = Usage(input_tokens=1200, output_tokens=300, cost_usd=Decimal("0.05"), model="some-model")
        return Completed(Output(content="done"), usage=usage)

    engine.agent.behaviour = answer
    engine.serve(other_tenant)
    engine.submit(other_tenant)
    tickers(tenant, 2)
    fire(make_schedule(tenant, params={"ticker": "db:ticker:all:id?staggerDelay=0"}), FIRST)
    engine.drain()
    fields = "role,status,attempt,error_code,model,input_tokens,output_tokens,dollars"
    recent = '{"hours_ago":{"$lt":24},"status":{"$in":["completed","failed"]}}'
    learner = make_schedule(
        tenant, "learn", params={"runs": f"db:run:all:{fields}?expand=list&limit=500&filter={recent}"}
    )

    fire(learner, FIRST + HOUR)
    engine.drain()

    told = engine.agent.calls[-1].params["runs"]
    assert sorted(told, key=lambda run: run["status"]) == [
        {
            "role": "qa", "status": "completed", "attempt": 1, "error_code": None, "model": "some-model", "input_tokens": 1200,
            "output_tokens": 300, "dollars": 0.05,
        },
        {
            "role": "qa", "status": "failed", "attempt": 1, "error_code": "no_data", "model": None, "input_tokens": None,
            "output_tokens": None, "dollars": None,
        },
    ]  # fmt: skip


def test_no_matching_row_is_a_success_with_nothing_to_do(tenant: Tenant) -> None:
    tickers(tenant, 2)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?enabled=false"})

    fire(schedule, FIRST)

    found = execution(tenant)
    assert (found.status, found.jobs_created) == ("success", 0)
    assert "note" in found.metadata


def test_a_source_that_cannot_be_read_makes_the_execution_fail_with_the_fault_named(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, params={"ticker": "db:nowhere:all:id"})

    fire(schedule, FIRST)

    found = execution(tenant)
    assert (found.status, found.jobs_created) == ("failed", 0)
    (error,) = found.errors
    assert error["message"].startswith("params.ticker:")
    assert error["timestamp"].endswith("Z")


def test_a_job_that_the_agent_would_not_take_has_failed_and_hinders_no_other(
    engine: Engine, tenant: Tenant
) -> None:
    tickers(tenant, 3)
    set_schema(type="object", properties={"ticker": {"not": {"const": "T00001"}}})
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?staggerDelay=0"})

    fire(schedule, FIRST)
    engine.drain()

    assert statuses(tenant) == ["partial"]
    found = execution(tenant)
    assert (found.jobs_created, found.jobs_enqueued, found.jobs_failed) == (3, 2, 1)
    assert [job.state for job in jobs(tenant)] == ["done", "failed", "done"]
    assert [(error["job"], error["code"]) for error in found.errors] == [(1, "invalid_params")]
    assert jobs(tenant)[1].error["faults"][0]["path"] == "params.ticker"


def test_a_pipeline_gets_a_run_for_each_row_with_the_schedules_own_settings(
    engine: Engine, tenant: Tenant
) -> None:
    tickers(tenant, 2)
    pipeline = make_pipeline(tenant)
    schedule = make_schedule(
        tenant,
        pipeline=pipeline,
        params={"ticker": "db:ticker:all:id?staggerDelay=0"},
        timeout_seconds=55,
        priority=3,
        retry={"max_attempts": 7},
    )

    fire(schedule, FIRST)
    with tenant_scope(tenant.pk):
        runs = list(PipelineRun.objects.order_by("pk"))
    engine.drain()

    assert statuses(tenant) == ["success"]
    assert [run.pk for run in runs] == [job.pipeline_run_id for job in jobs(tenant)]
    assert {(run.schedule_id, run.timeout_seconds, run.priority) for run in runs} == {(schedule.pk, 55, 3)}
    assert [run.params for run in runs] == [{"ticker": "T00000"}, {"ticker": "T00001"}]


# What is gone


def test_an_agent_that_is_switched_off_makes_the_execution_fail_with_a_clear_error(tenant: Tenant) -> None:
    schedule, other = make_schedule(tenant), make_schedule(tenant, "other", agent_role="dev")
    Agent.objects.filter(role="qa").update(enabled=False)
    configuration.forget()

    system_jobs.expand() if firing.fire_due(FIRST) else None

    failed, fine = sorted(executions(tenant), key=lambda found: found.schedule_id == other.pk)
    assert failed.schedule_id == schedule.pk
    assert (failed.status, [error["code"] for error in failed.errors]) == ("failed", ["target_unavailable"])
    assert "'qa' is switched off" in failed.errors[0]["message"]
    assert fine.jobs_enqueued == 1


def test_an_agent_or_a_pipeline_that_is_gone_makes_the_execution_fail(tenant: Tenant) -> None:
    nobody = make_schedule(tenant, "nobody", agent_role="qa")
    off = make_schedule(tenant, "off", pipeline=make_pipeline(tenant))
    with tenant_scope(tenant.pk):
        Schedule.objects.filter(pk=nobody.pk).update(agent_role="never-heard-of")
        off.pipeline.enabled = False
        off.pipeline.save()

    fire(nobody, FIRST)
    fire(off, FIRST)

    assert statuses(tenant) == ["failed", "failed"]
    assert [found.errors[0]["code"] for found in executions(tenant)] == [
        "target_unavailable",
        "pipeline_disabled",
    ]


# Ends


def test_some_jobs_that_fail_make_it_partial_and_all_of_them_failed(engine: Engine, tenant: Tenant) -> None:
    tickers(tenant, 2)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?staggerDelay=0"})
    engine.agent.behaviour = failing("T00000")
    fire(schedule, FIRST)
    engine.drain()
    first = statuses(tenant)

    engine.agent.behaviour = failing("T00000", "T00001")
    fire(schedule, FIRST + HOUR)
    engine.drain()

    assert first == ["partial"]
    assert statuses(tenant) == ["partial", "failed"]
    partial = executions(tenant)[0]
    assert (partial.jobs_created, partial.jobs_failed) == (2, 1)
    assert partial.errors[0]["message"] == "nothing about T00000"


def test_a_failed_job_that_is_tried_again_and_ends_well_corrects_the_execution(
    engine: Engine, tenant: Tenant
) -> None:
    tickers(tenant, 2)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?staggerDelay=0"})
    engine.agent.behaviour = failing("T00000")
    fire(schedule, FIRST)
    engine.drain()
    before = statuses(tenant)
    engine.agent.behaviour = failing()

    cancellation.retry(tenant.pk, jobs(tenant)[0].activity_id, actor="ann")
    reopened = (jobs(tenant)[0].state, execution(tenant).status, execution(tenant).finished_at)
    engine.drain()

    assert (before, reopened) == (["partial"], ("enqueued", "running", None))
    assert statuses(tenant) == ["success"]
    found = execution(tenant)
    assert (found.jobs_failed, found.errors, jobs(tenant)[0].error) == (0, [], None)


def test_a_job_goes_on_with_the_heir_of_its_activity(engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant)
    fire(schedule, FIRST)
    first = jobs(tenant)[0].activity_id

    heir = reassignment.reassign(tenant.pk, first, actor="ann", reason="better", agent_role="dev")
    moved = jobs(tenant)[0]
    early = statuses(tenant)
    engine.drain()

    assert (moved.activity_id, moved.state, early) == (heir.pk, "enqueued", ["running"])
    assert heir.schedule_id == schedule.pk
    assert statuses(tenant) == ["success"]


def test_a_failed_job_that_is_handed_on_is_open_again(engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant)
    engine.agent.behaviour = failing(None)
    fire(schedule, FIRST)
    engine.drain()
    before = statuses(tenant)
    engine.agent.behaviour = failing("x")

    reassignment.reassign(
        tenant.pk, jobs(tenant)[0].activity_id, actor="ann", reason="better", agent_role="dev"
    )
    after = statuses(tenant)
    engine.drain()

    assert (before, after, statuses(tenant)) == (["failed"], ["running"], ["success"])


def test_a_job_goes_on_with_the_revision_of_what_was_rejected(engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant)
    begun = fire(schedule, FIRST)
    with tenant_scope(tenant.pk):
        Activity.objects.for_tenant(tenant.pk).update(requires_approval=True)
    engine.drain()
    waits = statuses(tenant)
    gate = next(found for found in activities_of(tenant) if found.link_kind == "gate")

    approvals.reject(tenant.pk, gate.parent_id, actor="ann", notes="shorter")
    revision = jobs(tenant)[0].activity_id
    after = statuses(tenant)
    engine.drain()
    approvals.approve(tenant.pk, revision, actor="ann")

    assert (len(begun), waits, after) == (1, ["running"], ["running"])
    assert revision not in (None, gate.parent_id)
    assert statuses(tenant) == ["success"]


def test_a_run_that_fails_and_goes_on_again_takes_its_job_along(engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant, pipeline=make_pipeline(tenant))
    engine.agent.behaviour = failing(None)
    fire(schedule, FIRST)
    engine.drain()
    failed = statuses(tenant)
    engine.agent.behaviour = failing("x")
    (activity,) = [found for found in activities_of(tenant) if found.step == "a"]

    cancellation.retry(tenant.pk, activity.pk, actor="ann")
    open_again = statuses(tenant)
    engine.drain()

    assert (failed, open_again, statuses(tenant)) == (["failed"], ["running"], ["success"])


def test_a_run_that_is_cancelled_counts_as_failed(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, pipeline=make_pipeline(tenant))
    fire(schedule, FIRST)

    run_cancellation.cancel_run(tenant.pk, jobs(tenant)[0].pipeline_run_id, actor="ann")

    assert statuses(tenant) == ["failed"]
    assert [(job.state, job.error["code"]) for job in jobs(tenant)] == [("cancelled", "cancelled")]


def test_work_that_comes_from_no_schedule_asks_nothing_about_jobs(engine: Engine, tenant: Tenant) -> None:
    (activity_id,) = engine.submit(tenant)
    asked: list[str] = []

    def listen(execute: Any, sql: str, *rest: Any) -> Any:
        asked.append(sql)
        return execute(sql, *rest)

    with connections["default"].execute_wrapper(listen):
        engine.drain()

    assert engine.status(tenant, activity_id) == "done"
    assert not [sql for sql in asked if "schedulejob" in sql]


# Batches that wait for each other


def test_with_the_completion_gate_a_batch_begins_when_all_before_have_ended(
    engine: Engine, tenant: Tenant
) -> None:
    tickers(tenant, 5)
    schedule = make_schedule(
        tenant, params={"ticker": "db:ticker:all:id?batchSize=2&staggerDelay=0&batch_gate=completion"}
    )
    engine.agent.behaviour = failing("T00001")
    seen = []

    fire(schedule, FIRST)
    seen.append([job.state for job in jobs(tenant)])
    engine.deliver()
    system_jobs.settle()
    seen.append([job.state for job in jobs(tenant)])
    while engine.drain():
        system_jobs.settle()
        relay.flush()
        seen.append([job.state for job in jobs(tenant)])

    assert seen == [
        ["enqueued", "enqueued", "waiting", "waiting", "waiting"],
        ["done", "enqueued", "waiting", "waiting", "waiting"],
        ["done", "failed", "enqueued", "enqueued", "waiting"],
        ["done", "failed", "done", "done", "enqueued"],
        ["done", "failed", "done", "done", "done"],
    ]
    assert statuses(tenant) == ["partial"]


def test_with_the_start_gate_a_batch_begins_no_sooner_than_the_delay_after_the_one_before_really_began(
    engine: Engine, tenant: Tenant
) -> None:
    """Workers are away for longer than all delays together: nothing is made up for by beginning everything at once."""
    tickers(tenant, 5)
    schedule = make_schedule(
        tenant, params={"ticker": "db:ticker:all:id?batchSize=2&staggerDelay=60000&batch_gate=start"}
    )

    fire(schedule, FIRST)
    system_jobs.settle()
    assert [job.state for job in jobs(tenant)] == ["enqueued"] * 2 + ["waiting"] * 3
    assert not system_jobs.list_unsettled().exists(), "nobody looks again before something has begun"

    engine.deliver()
    system_jobs.settle()
    rows = jobs(tenant)
    began = activities_of(tenant)[0].started_at
    assert began is not None
    assert [job.state for job in rows] == ["done"] + ["enqueued"] * 3 + ["waiting"]
    assert [job.due_at - began for job in rows[2:4]] == [timedelta(minutes=1)] * 2
    assert {each.not_before for each in activities_of(tenant)[2:]} == {rows[2].due_at}

    assert engine.drain() == 1, "the second job of the first batch; the others wait for their time"
    system_jobs.settle()
    assert jobs(tenant)[4].state == "waiting"
    rescheduling.run_now(tenant.pk, rows[2].activity_id, actor="ann", reason="at once")
    engine.drain()
    system_jobs.settle()
    last = jobs(tenant)[4]
    second = next(each for each in activities_of(tenant) if each.pk == rows[2].activity_id).started_at
    assert (last.state, last.due_at - second) == ("enqueued", timedelta(minutes=1))


def test_with_the_start_gate_a_batch_that_is_cancelled_before_it_began_lets_the_next_one_go(
    engine: Engine, tenant: Tenant
) -> None:
    tickers(tenant, 2)
    schedule = make_schedule(
        tenant, params={"ticker": "db:ticker:all:id?batchSize=1&staggerDelay=0&batch_gate=start"}
    )
    fire(schedule, FIRST)

    cancellation.cancel(tenant.pk, jobs(tenant)[0].activity_id, actor="ann")
    system_jobs.settle()
    engine.drain()

    assert [job.state for job in jobs(tenant)] == ["cancelled", "done"]
    assert statuses(tenant) == ["partial"]


def test_batches_of_which_no_job_can_begin_make_way_at_once(engine: Engine, tenant: Tenant) -> None:
    tickers(tenant, 4)
    set_schema(type="object", properties={"ticker": {"const": "T00003"}})
    schedule = make_schedule(
        tenant, params={"ticker": "db:ticker:all:id?batchSize=1&staggerDelay=0&batch_gate=completion"}
    )

    fire(schedule, FIRST)
    engine.drain()

    assert statuses(tenant) == ["partial"]
    assert [job.state for job in jobs(tenant)] == ["failed", "failed", "failed", "done"]


def test_a_job_says_who_does_it_how_it_stands_and_whether_trying_again_may_help(
    engine: Engine, tenant: Tenant, api: Any
) -> None:
    tickers(tenant, 3)
    schedule = make_schedule(
        tenant, params={"tickerId": "db:ticker:all:id"}, priority=4, retry={"max_attempts": 1}
    )
    answers = iter([Completed(Output(content="done")), RetryableAgentError("503", code="http_503")])
    engine.agent.behaviour = lambda request: raised_or(next(answers))

    fire(schedule, NOON + HOUR)
    engine.deliver()
    engine.deliver()

    found = execution(tenant)
    answer = api("viewer").get(f"/api/v1/schedules/{schedule.pk}/executions/{found.pk}/jobs/").json()
    assert [
        (
            job["status"],
            job["agent_role"],
            job["pipeline"],
            job["priority"],
            job["execution"],
            job["schedule"],
        )
        for job in answer["results"]
    ] == [
        (status, "qa", None, 4, str(found.pk), str(schedule.pk))
        for status in ("completed", "failed", "pending")
    ]
    assert [(job["error"] or {}).get("retryable") for job in answer["results"]] == [None, True, None]


def raised_or(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def test_an_execution_tells_its_batches_and_the_pipeline_with_the_ends_of_its_runs(
    engine: Engine, tenant: Tenant, api: Any
) -> None:
    steps = [{"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "dev", "priority": 2}]
    pipeline = make_pipeline(tenant, "flow", steps)
    tickers(tenant, 3)
    schedule = make_schedule(
        tenant, pipeline=pipeline, params={"tickerId": "db:ticker:all:id?batchSize=2&batch_gate=completion"}
    )
    engine.agent.behaviour = lambda request: raised_or(
        PermanentAgentError("no")
        if request.params["tickerId"] == "T00001"
        else Completed(Output(content="x"))
    )
    fire(schedule, NOON + HOUR)
    assert execution(tenant).metadata["batches_done"] == 0
    job = (
        api("viewer")
        .get(f"/api/v1/schedules/{schedule.pk}/executions/{execution(tenant).pk}/jobs/")
        .json()["results"][0]
    )
    run = api("viewer").get(f"/api/v1/pipeline-runs/{job['pipeline_run']}/").json()
    assert (job["pipeline"], job["agent_role"], job["status"]) == ("flow", None, "pending")
    assert [(step["step"], step["agent_role"], step["priority"], step["needs"]) for step in run["steps"]] == [
        ("a", "qa", 10, []),
        ("b", "dev", 2, ["a"]),
    ]

    engine.drain()
    statuses(tenant)
    assert execution(tenant).metadata["batches_done"] == 1
    engine.make_due(tenant)
    engine.drain()
    statuses(tenant)

    metadata = execution(tenant).metadata
    assert (metadata["batches"], metadata["batches_done"]) == (2, 2)
    assert metadata["pipeline"] == {
        "key": "flow",
        "version": 1,
        "steps": 2,
        "runs": {"completed": 2, "failed": 1, "cancelled": 0},
    }
