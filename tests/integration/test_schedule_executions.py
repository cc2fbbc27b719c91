"""Executions: expansion of parameters into jobs, batches, and how the ends of jobs settle an execution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import connections

from activities import cancellation, dead_letters, reassignment, relay, rescheduling
from activities.human_tasks import decisions
from activities.maintenance import invariants
from activities.models import Activity, DeadLetter
from agents import configuration, scheduler_settings
from agents.contracts import AgentResult, Completed, Output, Usage
from agents.exceptions import PermanentAgentError, RetryableAgentError
from agents.models import Agent
from pipelines import cancellation as run_cancellation
from pipelines import versions
from pipelines.models import Dataset, PipelineRun, Schedule
from pipelines.schedules import executions as schedule_executions
from pipelines.schedules import expansion, firing, lifecycle, system_jobs
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
def restored_agent(scheduler_defaults: None) -> Iterator[None]:
    yield
    Agent.objects.filter(role="qa").update(enabled=True, input_schema=None)
    configuration.forget()


def failing(*values: Any) -> Any:
    """An agent that fails permanently for jobs with these values of `ticker`."""

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


def test_a_hundred_rows_become_jobs_in_ten_batches_a_second_apart(tenant: Tenant) -> None:
    tickers(tenant, 100)
    schedule = make_schedule(
        tenant,
        params={"ticker": "db:ticker:all:id?enabled=true&batchSize=10&staggerDelay=1000", "depth": 2},
    )

    fire(schedule, FIRST)

    row = execution(tenant)
    rows = jobs(tenant)
    assert (row.jobs_created, row.jobs_enqueued, row.jobs_failed) == (100, 100, 0)
    assert [job.params for job in rows] == [{"ticker": f"T{n:05}", "depth": 2} for n in range(100)]
    assert [job.batch for job in rows] == [n // 10 for n in range(100)]
    assert [job.due_at - row.started_at for job in rows[::10]] == [timedelta(seconds=n) for n in range(10)]
    assert {name: row.metadata[name] for name in ("jobs", "batches", "batch_size", "stagger_ms")} == {
        "jobs": 100, "batches": 10, "batch_size": 10, "stagger_ms": 1_000,
    }  # fmt: skip
    start_times = {activity.pk: activity.not_before for activity in activities_of(tenant)}
    assert [start_times[job.activity_id] for job in rows] == [None] * 10 + [job.due_at for job in rows[10:]]


def test_the_settings_decide_the_batches_of_a_source_without_options_of_its_own(tenant: Tenant) -> None:
    tickers(tenant, 5)
    scheduler_settings.save(
        {"default_batch_processing": {"batch_size": 2, "stagger_delay": 3000}}, actor="test"
    )

    fire(make_schedule(tenant, "plain", params={"ticker": "db:ticker:all:id"}), FIRST)
    fire(
        make_schedule(tenant, "own", params={"ticker": "db:ticker:all:id?batchSize=4&staggerDelay=0"}), FIRST
    )

    plain, own = executions(tenant)
    assert [(job.batch, (job.due_at - plain.started_at).total_seconds()) for job in jobs(tenant)[:5]] == [
        (0, 0), (0, 0), (1, 3), (1, 3), (2, 6),
    ]  # fmt: skip
    assert [(row.metadata["batch_size"], row.metadata["stagger_ms"]) for row in (plain, own)] == [
        (2, 3000),
        (4, 0),
    ]


def test_each_execution_reads_the_rows_as_they_are_then(tenant: Tenant) -> None:
    tickers(tenant, 2)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id"})

    fire(schedule, FIRST)
    with tenant_scope(tenant.pk):
        from pipelines.models import DatasetRow

        DatasetRow.objects.filter(key="T00000").delete()
    fire(schedule, FIRST + HOUR)

    assert [job.params["ticker"] for job in jobs(tenant)] == ["T00000", "T00001", "T00001"]


def test_a_schedule_can_pass_the_recent_runs_of_its_tenant_to_an_agent(
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

    runs = engine.agent.calls[-1].params["runs"]
    assert sorted(runs, key=lambda run: run["status"]) == [
        {
            "role": "qa", "status": "completed", "attempt": 1, "error_code": None, "model": "some-model", "input_tokens": 1200,
            "output_tokens": 300, "dollars": 0.05,
        },
        {
            "role": "qa", "status": "failed", "attempt": 1, "error_code": "no_data", "model": None, "input_tokens": None,
            "output_tokens": None, "dollars": None,
        },
    ]  # fmt: skip


def test_an_execution_without_matching_rows_is_a_success_without_jobs(tenant: Tenant) -> None:
    tickers(tenant, 2)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?enabled=false"})

    fire(schedule, FIRST)

    row = execution(tenant)
    assert (row.status, row.jobs_created) == ("success", 0)
    assert "note" in row.metadata


def test_an_execution_whose_source_cannot_be_read_fails_with_the_reason(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, params={"ticker": "db:nowhere:all:id"})

    fire(schedule, FIRST)

    row = execution(tenant)
    assert (row.status, row.jobs_created) == ("failed", 0)
    (error,) = row.errors
    assert error["message"].startswith("params.ticker:")
    assert error["timestamp"].endswith("Z")


def test_an_execution_whose_dataset_has_lost_a_field_fails_and_names_the_field(tenant: Tenant) -> None:
    tickers(tenant, 2)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?enabled=true"})
    with tenant_scope(tenant.pk):
        dataset = Dataset.objects.get(name="ticker")
        # Stored directly, as when the schedule is saved at the same moment: the change is refused once the schedule exists.
        dataset.fields = {name: kind for name, kind in dataset.fields.items() if name != "enabled"}
        dataset.save()

    fire(schedule, FIRST)

    row = execution(tenant)
    assert (row.status, row.jobs_created) == ("failed", 0)
    assert "enabled" in row.errors[0]["message"]


def test_a_job_with_invalid_parameters_fails_without_affecting_others(engine: Engine, tenant: Tenant) -> None:
    tickers(tenant, 3)
    set_schema(type="object", properties={"ticker": {"not": {"const": "T00001"}}})
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?staggerDelay=0"})

    fire(schedule, FIRST)
    engine.drain()

    assert statuses(tenant) == ["partial"]
    row = execution(tenant)
    assert (row.jobs_created, row.jobs_enqueued, row.jobs_failed) == (3, 2, 1)
    assert [job.state for job in jobs(tenant)] == ["done", "failed", "done"]
    assert [(error["job"], error["code"]) for error in row.errors] == [(1, "invalid_params")]
    assert jobs(tenant)[1].error["faults"][0]["path"] == "params.ticker"


def test_a_scheduled_pipeline_has_a_run_per_row_with_the_settings_of_the_schedule(
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


# Unavailable targets


def test_the_execution_of_a_disabled_agent_fails_and_others_run(tenant: Tenant) -> None:
    schedule, other = make_schedule(tenant), make_schedule(tenant, "other", agent_role="dev")
    Agent.objects.filter(role="qa").update(enabled=False)
    configuration.forget()

    system_jobs.expand() if firing.fire_due(FIRST) else None

    failed, fine = sorted(executions(tenant), key=lambda each: each.schedule_id == other.pk)
    assert failed.schedule_id == schedule.pk
    assert (failed.status, [error["code"] for error in failed.errors]) == ("failed", ["target_unavailable"])
    assert "'qa' is switched off" in failed.errors[0]["message"]
    assert fine.jobs_enqueued == 1


def test_the_execution_of_a_missing_agent_or_a_disabled_pipeline_fails(tenant: Tenant) -> None:
    nobody = make_schedule(tenant, "nobody", agent_role="qa")
    off = make_schedule(tenant, "off", pipeline=make_pipeline(tenant))
    with tenant_scope(tenant.pk):
        Schedule.objects.filter(pk=nobody.pk).update(agent_role="never-heard-of")
        off.pipeline.enabled = False
        off.pipeline.save()

    fire(nobody, FIRST)
    fire(off, FIRST)

    assert statuses(tenant) == ["failed", "failed"]
    assert [each.errors[0]["code"] for each in executions(tenant)] == [
        "target_unavailable",
        "pipeline_disabled",
    ]


# Ends


def fire_two_jobs_of_which_one_fails(engine: Engine, tenant: Tenant) -> Schedule:
    tickers(tenant, 2)
    schedule = make_schedule(tenant, params={"ticker": "db:ticker:all:id?staggerDelay=0"})
    engine.agent.behaviour = failing("T00000")
    fire(schedule, FIRST)
    return schedule


def test_an_execution_is_partial_if_some_jobs_fail_and_failed_if_all_do(
    engine: Engine, tenant: Tenant
) -> None:
    schedule = fire_two_jobs_of_which_one_fails(engine, tenant)
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


def retry(tenant: Tenant, activity_id: UUID) -> None:
    cancellation.retry(tenant.pk, activity_id, actor="ann")


def replay(tenant: Tenant, activity_id: UUID) -> None:
    with tenant_scope(tenant.pk):
        dead_letters.replay(
            tenant.pk, DeadLetter.objects.for_tenant(tenant.pk).filter(activity_id=activity_id), actor="ann"
        )


@pytest.mark.parametrize("retry_it", [retry, replay])
def test_a_successful_retry_of_a_failed_job_corrects_the_execution(
    engine: Engine, tenant: Tenant, retry_it: Callable[[Tenant, UUID], None]
) -> None:
    fire_two_jobs_of_which_one_fails(engine, tenant)
    engine.drain()
    before = statuses(tenant)
    engine.agent.behaviour = failing()

    retry_it(tenant, jobs(tenant)[0].activity_id)
    reopened = (jobs(tenant)[0].state, execution(tenant).status, execution(tenant).finished_at)
    engine.drain()

    assert (before, reopened) == (["partial"], ("enqueued", "running", None))
    assert statuses(tenant) == ["success"]
    row = execution(tenant)
    assert (row.jobs_failed, row.errors, jobs(tenant)[0].error) == (0, [], None)


def test_a_retry_of_a_failed_job_reopens_a_cancelled_execution_which_ends_as_cancelled(
    engine: Engine, tenant: Tenant
) -> None:
    fire_two_jobs_of_which_one_fails(engine, tenant)
    while jobs(tenant)[0].state != "failed":
        assert engine.deliver()
    schedule_executions.cancel(tenant.pk, execution(tenant).pk, actor="ann")
    before = statuses(tenant)
    engine.agent.behaviour = failing()

    cancellation.retry(tenant.pk, jobs(tenant)[0].activity_id, actor="ann")
    reopened = (execution(tenant).status, execution(tenant).finished_at)
    assert invariants.check() == []
    engine.drain()

    assert (before, reopened, statuses(tenant)) == (["cancelled"], ("running", None), ["cancelled"])
    assert [job.state for job in jobs(tenant)] == ["done", "cancelled"]
    assert execution(tenant).jobs_failed == 1


def test_a_job_follows_the_successor_of_its_reassigned_activity(engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant)
    fire(schedule, FIRST)
    first = jobs(tenant)[0].activity_id

    successor = reassignment.reassign(tenant.pk, first, actor="ann", reason="better", agent_role="dev")
    moved = jobs(tenant)[0]
    early = statuses(tenant)
    engine.drain()

    assert (moved.activity_id, moved.state, early) == (successor.pk, "enqueued", ["running"])
    assert successor.schedule_id == schedule.pk
    assert statuses(tenant) == ["success"]


def test_reassigning_a_failed_job_reopens_it(engine: Engine, tenant: Tenant) -> None:
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


def test_a_job_follows_the_revision_of_a_rejected_result(engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant)
    execution_ids = fire(schedule, FIRST)
    with tenant_scope(tenant.pk):
        Activity.objects.for_tenant(tenant.pk).update(requires_approval=True)
    engine.drain()
    before_decision = statuses(tenant)
    gate = next(each for each in activities_of(tenant) if each.link_kind == "gate")

    decisions.reject(tenant.pk, gate.parent_id, actor="ann", notes="shorter")
    revision = jobs(tenant)[0].activity_id
    after = statuses(tenant)
    engine.drain()
    decisions.approve(tenant.pk, revision, actor="ann")

    assert (len(execution_ids), before_decision, after) == (1, ["running"], ["running"])
    assert revision not in (None, gate.parent_id)
    assert statuses(tenant) == ["success"]


def test_retrying_a_failed_run_reopens_its_job(engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant, pipeline=make_pipeline(tenant))
    engine.agent.behaviour = failing(None)
    fire(schedule, FIRST)
    engine.drain()
    failed = statuses(tenant)
    engine.agent.behaviour = failing("x")
    (activity,) = [each for each in activities_of(tenant) if each.step == "a"]

    cancellation.retry(tenant.pk, activity.pk, actor="ann")
    open_again = statuses(tenant)
    engine.drain()

    assert (failed, open_again, statuses(tenant)) == (["failed"], ["running"], ["success"])


def test_a_cancelled_run_counts_as_failed(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, pipeline=make_pipeline(tenant))
    fire(schedule, FIRST)

    run_cancellation.cancel_run(tenant.pk, jobs(tenant)[0].pipeline_run_id, actor="ann")

    assert statuses(tenant) == ["failed"]
    assert [(job.state, job.error["code"]) for job in jobs(tenant)] == [("cancelled", "cancelled")]


def test_work_without_a_schedule_reads_no_jobs(engine: Engine, tenant: Tenant) -> None:
    (activity_id,) = engine.submit(tenant)
    statements: list[str] = []

    def record(execute: Any, sql: str, *rest: Any) -> Any:
        statements.append(sql)
        return execute(sql, *rest)

    with connections["default"].execute_wrapper(record):
        engine.drain()

    assert engine.status(tenant, activity_id) == "done"
    assert not [sql for sql in statements if "schedulejob" in sql]


# Batch gates


def test_with_the_completion_gate_a_batch_starts_when_the_batch_before_has_ended(
    engine: Engine, tenant: Tenant
) -> None:
    tickers(tenant, 5)
    schedule = make_schedule(
        tenant, params={"ticker": "db:ticker:all:id?batchSize=2&staggerDelay=0&batch_gate=completion"}
    )
    engine.agent.behaviour = failing("T00001")
    states_seen = []

    fire(schedule, FIRST)
    states_seen.append([job.state for job in jobs(tenant)])
    engine.deliver()
    system_jobs.settle()
    states_seen.append([job.state for job in jobs(tenant)])
    while engine.drain():
        system_jobs.settle()
        relay.flush()
        states_seen.append([job.state for job in jobs(tenant)])

    assert states_seen == [
        ["enqueued", "enqueued", "waiting", "waiting", "waiting"],
        ["done", "enqueued", "waiting", "waiting", "waiting"],
        ["done", "failed", "enqueued", "enqueued", "waiting"],
        ["done", "failed", "done", "done", "enqueued"],
        ["done", "failed", "done", "done", "done"],
    ]
    assert statuses(tenant) == ["partial"]


def test_with_the_completion_gate_the_delay_counts_from_the_end_of_the_last_job_of_the_batch_before(
    engine: Engine, tenant: Tenant
) -> None:
    tickers(tenant, 3)
    schedule = make_schedule(
        tenant, params={"ticker": "db:ticker:all:id?batchSize=2&staggerDelay=60000&batch_gate=completion"}
    )

    fire(schedule, FIRST)
    engine.drain()
    system_jobs.settle()

    first, second, third = jobs(tenant)
    assert third.due_at == max(first.ended_at, second.ended_at) + timedelta(minutes=1)


def test_with_the_start_gate_a_batch_starts_the_delay_after_the_actual_start_of_the_batch_before(
    engine: Engine, tenant: Tenant
) -> None:
    """Workers are away for longer than all delays together, and still the batches do not all start at once."""
    tickers(tenant, 5)
    schedule = make_schedule(
        tenant, params={"ticker": "db:ticker:all:id?batchSize=2&staggerDelay=60000&batch_gate=start"}
    )

    fire(schedule, FIRST)
    system_jobs.settle()
    assert [job.state for job in jobs(tenant)] == ["enqueued"] * 2 + ["waiting"] * 3
    assert not system_jobs.list_unsettled().exists(), "nothing to settle before the first start"

    engine.deliver()
    system_jobs.settle()
    rows = jobs(tenant)
    start_times = activities_of(tenant)[0].started_at
    assert start_times is not None
    assert [job.state for job in rows] == ["done"] + ["enqueued"] * 3 + ["waiting"]
    assert [job.due_at - start_times for job in rows[2:4]] == [timedelta(minutes=1)] * 2
    assert {each.not_before for each in activities_of(tenant)[2:]} == {rows[2].due_at}

    assert engine.drain() == 1, "the second job of the first batch; the others are delayed"
    system_jobs.settle()
    assert jobs(tenant)[4].state == "waiting"
    rescheduling.run_now(tenant.pk, rows[2].activity_id, actor="ann", reason="at once")
    engine.drain()
    system_jobs.settle()
    last = jobs(tenant)[4]
    second = next(each for each in activities_of(tenant) if each.pk == rows[2].activity_id).started_at
    assert (last.state, last.due_at - second) == ("enqueued", timedelta(minutes=1))


def test_with_the_start_gate_a_batch_cancelled_before_its_start_releases_the_next(
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


def test_a_batch_whose_jobs_all_fail_at_once_releases_the_next(engine: Engine, tenant: Tenant) -> None:
    tickers(tenant, 4)
    set_schema(type="object", properties={"ticker": {"const": "T00003"}})
    schedule = make_schedule(
        tenant, params={"ticker": "db:ticker:all:id?batchSize=1&staggerDelay=0&batch_gate=completion"}
    )

    fire(schedule, FIRST)
    engine.drain()

    assert statuses(tenant) == ["partial"]
    assert [job.state for job in jobs(tenant)] == ["failed", "failed", "failed", "done"]


def test_the_api_lists_jobs_with_their_agent_status_and_whether_a_retry_may_help(
    engine: Engine, tenant: Tenant, api: Any
) -> None:
    tickers(tenant, 3)
    schedule = make_schedule(
        tenant, params={"tickerId": "db:ticker:all:id"}, priority=4, retry={"max_attempts": 1}
    )
    answers = iter([Completed(Output(content="done")), RetryableAgentError("503", code="http_503")])
    engine.agent.behaviour = lambda request: return_or_raise(next(answers))

    fire(schedule, NOON + HOUR)
    engine.deliver()
    engine.deliver()

    row = execution(tenant)
    answer = api("viewer").get(f"/api/v1/schedules/{schedule.pk}/executions/{row.pk}/jobs/").json()
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
        (status, "qa", None, 4, str(row.pk), str(schedule.pk))
        for status in ("completed", "failed", "pending")
    ]
    assert [(job["error"] or {}).get("retryable") for job in answer["results"]] == [None, True, None]


def return_or_raise(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def test_the_metadata_of_an_execution_count_finished_batches_and_the_outcomes_of_runs(
    engine: Engine, tenant: Tenant, api: Any
) -> None:
    steps = [{"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "dev", "priority": 2}]
    pipeline = make_pipeline(tenant, "flow", steps)
    tickers(tenant, 3)
    schedule = make_schedule(
        tenant, pipeline=pipeline, params={"tickerId": "db:ticker:all:id?batchSize=2&batch_gate=completion"}
    )
    engine.agent.behaviour = lambda request: return_or_raise(
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


def test_the_version_in_the_metadata_is_that_of_the_first_runs(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(tenant, "flow", [{"id": "a", "agent_role": "qa"}])
    tickers(tenant, 2)
    schedule = make_schedule(tenant, pipeline=pipeline, params={"tickerId": "db:ticker:all:id"})
    monkeypatch.setattr(lifecycle, "PAGE", 1)
    start = expansion.start

    def save_a_version_meanwhile(*arguments: Any) -> None:
        start(*arguments)
        steps = [{"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "dev"}]
        versions.save(tenant.pk, {"key": "flow", "name": "Flow", "steps": steps}, actor="test")

    monkeypatch.setattr(expansion, "start", save_a_version_meanwhile)
    fire(schedule, NOON + HOUR)

    with tenant_scope(tenant.pk):
        numbers = list(PipelineRun.objects.order_by("pk").values_list("version__number", flat=True))
    figures = execution(tenant).metadata["pipeline"]
    assert (numbers, figures["version"], figures["steps"]) == ([1, 2], 1, 1)
