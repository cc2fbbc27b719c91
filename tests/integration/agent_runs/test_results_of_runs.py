"""Agents report results: each counts once, and malformed ones are refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from activities import outputs, relay
from activities.admission import Exchange, exchange
from agents.contracts import Accepted, AgentRequest
from pipelines import versions
from pipelines.submission import NewRun, start_run
from tenants.models import Tenant
from tests.accepted_work import RESULT, AgentClient, accept_work
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine, simultaneously

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


def test_a_completed_run_completes_its_activity_and_frees_its_slot(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    activity_id, agent = accept_work(engine, acme)
    (waiting,) = engine.submit(acme)

    answer = agent.post(
        "complete",
        {
            **RESULT,
            "usage": {"input_tokens": 5, "output_tokens": 7, "cost_usd": "0.125", "model": "m"},
            "session_id": "s-1",
        },
    )

    assert (answer.status_code, answer.json()) == (200, {"accepted": True, "duplicate": False})
    done, run = engine.get(acme, activity_id), engine.runs(acme, activity_id)[-1]
    assert (done.status, done.output_ref, run.status, run.session_id) == (
        "done",
        agent.run_id,
        "completed",
        "s-1",
    )
    assert run.usage == {"input_tokens": 5, "output_tokens": 7, "cost_usd": "0.125", "model": "m"}
    stored = outputs.read(acme.pk, agent.run_id)
    assert stored is not None
    assert (stored.content, stored.data) == ("# Bees", {"words": [1, 2.5, None]})
    assert engine.drain() == 1
    assert engine.status(acme, waiting) == "in_progress"


def test_the_timeline_names_the_run_that_reported(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    agent.post("complete", RESULT)

    entries = api().get(f"/api/v1/activities/{activity_id}/timeline/").json()["results"]

    assert [m["actor"] for m in entries if m.get("verb") == "complete"] == [f"run:{agent.run_id}"]


def test_a_result_that_needs_an_approval_waits_for_it(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme, requires_approval=True)

    agent.post("complete", RESULT)

    assert engine.status(acme, activity_id) == "awaiting_approval"
    assert engine.get(acme, activity_id).finished_at is None


def test_a_result_starts_the_next_step_of_its_pipeline(engine: Engine, acme: Tenant) -> None:
    steps = [{"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "qa"}]
    versions.save(acme.pk, {"key": "two", "name": "Two", "steps": steps}, actor="test")
    start_run(acme.pk, "two", NewRun(), actor="test")
    engine.drain()

    AgentClient(engine.agent.calls[-1]).post("complete", RESULT)
    engine.drain()

    assert [call.pipeline_step for call in engine.agent.calls] == ["a", "b"]
    assert (engine.agent.calls[-1].input or {})["content"] == "# Bees"


def test_a_result_may_arrive_before_the_call_of_the_agent_returns(engine: Engine, acme: Tenant) -> None:
    answers = []

    def report_early(request: AgentRequest) -> Accepted:
        answers.append(AgentClient(request).post("complete", RESULT))
        return Accepted()

    engine.agent.behaviour = report_early
    (activity_id,) = engine.submit(acme)
    engine.drain()

    assert [answer.status_code for answer in answers] == [200]
    assert engine.status(acme, activity_id) == "done"
    relay.flush()
    assert exchange(Exchange()) == []


@pytest.mark.parametrize("body", [RESULT, {"output": {"data": {"n": [6e23, 1e300, -0.0, 1e2]}}}])
def test_a_repeated_result_is_a_duplicate(engine: Engine, acme: Tenant, body: Any) -> None:
    activity_id, agent = accept_work(engine, acme)
    agent.post("complete", body)

    again = agent.post("complete", body)
    outputs.copy_waiting()
    later = agent.post("complete", body)

    assert (
        (again.status_code, again.json())
        == (later.status_code, later.json())
        == (200, {"accepted": True, "duplicate": True})
    )
    assert len(engine.runs(acme, activity_id)) == 1


def test_one_of_five_concurrent_equal_results_counts(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)

    answers = simultaneously(*[lambda: agent.post("complete", RESULT) for _ in range(5)])

    assert [answer.status_code for answer in answers] == [200] * 5
    assert sorted(answer.json()["duplicate"] for answer in answers) == [False, True, True, True, True]
    assert engine.status(acme, activity_id) == "done"


def test_a_different_second_result_is_refused(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)
    agent.post("complete", RESULT)

    refused = problem(agent.post("complete", {"output": {"content": "other"}}), 409, "already_completed")

    assert refused["stop"] is True
    stored = outputs.read(acme.pk, agent.run_id)
    assert stored is not None
    assert stored.content == "# Bees"


@in_one_test(
    ("body", "path"),
    [
        ({}, "output"), ({"output": "text"}, "output"), ({"output": {"content": 5}}, "output.content"),
        ({"output": {"content_type": "nonsense"}}, "output.content_type"),
        ({"output": {"content_type": f"text/{'x' * 60}; {'y' * 60}"}}, "output.content_type"),
        ({"output": {}, "usage": {"input_tokens": -1}}, "usage.input_tokens"), ({"output": {}, "session_id": ""}, "session_id"),
    ],
)  # fmt: skip
def test_a_malformed_result_is_refused_with_its_path_and_the_run_continues(
    engine: Engine, acme: Tenant, body: Any, path: str
) -> None:
    activity_id, agent = accept_work(engine, acme)

    refused = problem(agent.post("complete", body), 400, "validation_failed")

    assert path in [fault["path"] for fault in refused["errors"]]
    assert engine.status(acme, activity_id) == "in_progress"
    assert agent.post("complete", RESULT).status_code == 200


def test_unknown_fields_of_a_result_are_ignored(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)

    assert agent.post("complete", {**RESULT, "confidence": 0.9}).status_code == 200


def test_the_largest_output_is_measured_without_json_escapes(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    _, agent = accept_work(engine, acme)
    limit = settings.ORCHESTRATOR_MAX_OUTPUT_BYTES
    largest = "\u00e9" * ((limit - 4) // 2)

    problem(agent.post("complete", {"output": {"content": largest + "xxxxx"}}), 413, "output_too_large")
    problem(agent.post("complete", {"output": {"content": "x" * (4 * limit)}}), 413, "body_too_large")
    escaped = orjson.dumps({"output": {"content": "@"}}).replace(
        b"@", largest.encode("ascii", "backslashreplace").replace(b"\\x", b"\\u00")
    )
    answer = agent.client.generic(
        "POST", f"/{agent.address}complete/", escaped, content_type="application/json"
    )
    assert (answer.status_code, answer.json()["duplicate"]) == (200, False)
