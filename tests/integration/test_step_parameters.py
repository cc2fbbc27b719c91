"""Parameters of steps are checked against the schema of their agent when a pipeline is saved, previewed and run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agents import configuration
from agents.models import Agent
from pipelines import versions
from pipelines.models import Pipeline, PipelineRun, StepRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.scheduling import NOON, execution, fire, jobs, make_rows, make_schedule
from tests.tickers import SCHEDULES, body

PIPELINES, RUNS = "/api/v1/pipelines/", "/api/v1/pipelines/flow/runs/"
SCHEMA = {
    "type": "object",
    "required": ["tickerId"],
    "properties": {"tickerId": {"type": "string"}, "depth": {"type": "integer"}, "item": {"type": "string"}},
}


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Iterator[Tenant]:
    """The agent `dev` requires a tickerId that is text; `qa` accepts anything."""
    engine.serve(tenant)
    set_schema(SCHEMA)
    yield tenant
    set_schema(None)


def set_schema(schema: Any) -> None:
    Agent.objects.filter(role="dev").update(input_schema=schema)
    configuration.forget()


def flow(*steps: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"key": "flow", "name": "Flow", "steps": list(steps), **members}


def save(tenant: Tenant, *steps: dict[str, Any], **members: Any) -> None:
    versions.save(tenant.pk, flow(*steps, **members), actor="test")


def messages_by_path(answer: Any, code: str) -> dict[str, str]:
    return {fault["path"]: fault["message"] for fault in problem(answer, 400, code)["errors"]}


def states(tenant: Tenant) -> dict[str, tuple[str, str]]:
    with tenant_scope(tenant.pk):
        rows = StepRun.objects.filter(branch=0).order_by("position")
        return {row.step: (row.status, (row.error or {}).get("code", "")) for row in rows}


def test_the_parameters_of_a_step_are_checked_when_the_pipeline_is_saved(api: Any, acme: Tenant) -> None:
    steps = [
        {"id": "a", "agent_role": "qa", "params": {"depth": "x"}},
        {"id": "b", "agent_role": "dev", "params": {"depth": "x"}},
    ]

    refused = messages_by_path(api("admin").post(PIPELINES, flow(*steps)), "invalid_definition")
    steps[1]["params"] = {"depth": 3}  # a run may still provide the tickerId

    assert refused == {"steps[1].params.depth": "'x' is not of type 'integer'"}
    assert api("admin").post(PIPELINES, flow(*steps)).status_code == 201


def test_a_parameter_that_the_schema_forbids_is_refused_when_the_pipeline_is_saved(
    api: Any, acme: Tenant
) -> None:
    set_schema({**SCHEMA, "additionalProperties": False})

    answer = api("admin").post(PIPELINES, flow({"id": "a", "agent_role": "dev", "params": {"colour": 1}}))

    assert list(messages_by_path(answer, "invalid_definition")) == ["steps[0].params"]


def test_a_run_with_invalid_parameters_for_a_step_is_not_started(api: Any, acme: Tenant) -> None:
    save(acme, {"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "dev", "params": {"depth": 1}})
    client = api("operator")

    missing = messages_by_path(client.post(RUNS, {}), "invalid_params")
    wrong = messages_by_path(
        client.post(RUNS, {"params": {"tickerId": 12345, "depth": "hidden by the step"}}), "invalid_params"
    )

    assert missing == {"params.tickerId": "step b: 'tickerId' is a required property"}
    assert wrong == {"params.tickerId": "step b: 12345 is not of type 'string'"}
    with tenant_scope(acme.pk):
        assert not PipelineRun.objects.exists()
    assert client.post(RUNS, {"params": {"tickerId": "AAPL"}}).status_code == 201


def test_default_parameters_of_the_pipeline_are_checked_like_those_of_the_run(api: Any, acme: Tenant) -> None:
    save(acme, {"id": "a", "agent_role": "dev"}, params={"tickerId": "AAPL"})

    assert api("operator").post(RUNS, {}).status_code == 201
    assert list(
        messages_by_path(api("operator").post(RUNS, {"params": {"tickerId": 1}}), "invalid_params")
    ) == ["params.tickerId"]


def test_a_conditional_step_is_checked_when_it_starts_and_fails_like_any_step(
    engine: Engine, acme: Tenant
) -> None:
    save(
        acme,
        {"id": "a", "agent_role": "qa"},
        {"id": "b", "agent_role": "dev", "when": "params.on"},
        {"id": "c", "agent_role": "qa"},
        {"id": "d", "agent_role": "qa", "depends_on": ["b"], "on_upstream_failure": "continue"},
    )
    start_run(acme.pk, "flow", NewRun(params={"on": True}), actor="test")

    engine.drain()

    assert states(acme) == {
        "a": ("done", ""),
        "b": ("failed", "invalid_params"),
        "c": ("skipped", ""),
        "d": ("done", ""),
    }
    assert {call.agent_role for call in engine.agent.calls} == {"qa"}
    with tenant_scope(acme.pk):
        assert PipelineRun.objects.get().status == "failed"


def test_a_conditional_step_that_does_not_start_is_not_checked(engine: Engine, acme: Tenant) -> None:
    save(acme, {"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "dev", "when": "params.on"})
    start_run(acme.pk, "flow", NewRun(params={"on": False}), actor="test")

    engine.drain()

    assert states(acme) == {"a": ("done", ""), "b": ("skipped", "")}


def test_a_schema_changed_during_a_run_applies_to_steps_that_start_later(
    engine: Engine, acme: Tenant
) -> None:
    save(acme, {"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "dev"})
    start_run(acme.pk, "flow", NewRun(params={"tickerId": "AAPL"}), actor="test")
    set_schema({**SCHEMA, "required": ["tickerId", "depth"]})

    engine.drain()

    assert states(acme) == {"a": ("done", ""), "b": ("failed", "invalid_params")}


def test_items_of_a_fan_out_are_checked_before_any_branch_starts(engine: Engine, acme: Tenant) -> None:
    save(acme, {"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "dev", "for_each": "params.items"})
    start_run(acme.pk, "flow", NewRun(params={"tickerId": "AAPL", "items": ["x", 2]}), actor="test")

    engine.drain()

    assert states(acme) == {"a": ("done", ""), "b": ("failed", "invalid_params")}
    with tenant_scope(acme.pk):
        assert (
            "item 1: params.item: 2 is not of type 'string'"
            in StepRun.objects.get(step="b", branch=0).error["message"]
        )


def test_jobs_of_a_schedule_fail_if_a_step_would_refuse_their_parameters(
    engine: Engine, acme: Tenant
) -> None:
    save(acme, {"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "dev"})
    make_rows(acme, "ticker", [{"id": "T0", "number": 1}], number="integer")
    make_rows(acme, "ticker", [{"id": "T1", "number": 2}], number="integer")
    with tenant_scope(acme.pk):
        pipeline = Pipeline.objects.get()
    wrong = make_schedule(acme, "wrong", pipeline=pipeline, params={"tickerId": "db:ticker:all:number"})

    fire(wrong, NOON.replace(hour=13))

    assert [(job.state, job.error["code"]) for job in jobs(acme)] == [("failed", "invalid_params")] * 2
    assert execution(acme).status == "failed"
    right = make_schedule(acme, "right", pipeline=pipeline, params={"tickerId": "db:ticker:all:id"})
    fire(right, NOON.replace(hour=13))
    assert [job.state for job in jobs(acme)][2:] == ["enqueued"] * 2


def test_a_schedule_of_a_pipeline_is_checked_when_saved_and_its_preview_checks_the_jobs(
    api: Any, acme: Tenant
) -> None:
    save(acme, {"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "dev"})
    make_rows(acme, "ticker", [{"id": "T0", "number": 1}], number="integer")
    client = api("admin")

    def schedule_with(**params: Any) -> dict[str, Any]:
        return body(target_type="pipeline", agent_role=None, pipeline="flow", params=params)

    assert messages_by_path(client.post(SCHEDULES, schedule_with(depth=1)), "invalid_schedule") == {
        "params.tickerId": "step b: 'tickerId' is a required property"
    }
    saved = client.post(SCHEDULES, schedule_with(tickerId="db:ticker:all:number"))
    assert saved.status_code == 201, saved.content
    errors_of_jobs = client.get(f"{saved.json()['link']}preview/?count=1").json()["errors"]
    assert errors_of_jobs == [
        {"path": "jobs[0].params.tickerId", "message": "step b: 1 is not of type 'string'"}
    ]
    literal = client.post(f"{SCHEDULES}preview/?count=1", schedule_with(tickerId=7)).json()["errors"]
    assert literal == [{"path": "params.tickerId", "message": "step b: 7 is not of type 'string'"}]
