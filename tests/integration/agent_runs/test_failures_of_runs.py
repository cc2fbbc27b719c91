"""Agents report failures and heartbeats."""

from __future__ import annotations

from typing import Any

import pytest

from activities import outbox
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import RESULT, AgentClient, accept_work, assert_superseded
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


def test_a_retryable_failure_is_retried_after_the_requested_delay(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)

    answer = agent.post(
        "fail", {"error": {"message": "busy", "code": "overloaded", "retryable": True, "retry_after": 60}}
    )

    assert (answer.status_code, answer.json()) == (200, {"accepted": True, "duplicate": False})
    waiting, run = engine.get(acme, activity_id), engine.runs(acme, activity_id)[-1]
    assert (waiting.status, waiting.attempts, run.status) == ("created", 1, "failed")
    assert run.error == {"code": "overloaded", "message": "busy", "retryable": True}
    engine.make_due(acme)
    assert engine.drain() == 1
    assert engine.agent.calls[-1].attempt == 2


def test_a_permanent_failure_is_final(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)

    agent.post("fail", {"error": {"message": "no such site"}})

    failed = engine.get(acme, activity_id)
    assert (failed.status, failed.error["message"], failed.error["retryable"]) == (
        "failed",
        "no such site",
        False,
    )


def test_a_rate_limit_uses_no_attempt(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)

    agent.post(
        "fail",
        {"error": {"message": "slow down", "code": "rate_limited", "retryable": True, "retry_after": 1}},
    )

    assert (engine.get(acme, activity_id).status, engine.get(acme, activity_id).attempts) == ("created", 0)


@in_one_test("code", ["overloaded", "rate_limited"])
def test_a_repeated_failure_is_a_duplicate_and_a_different_one_is_refused(
    engine: Engine, acme: Tenant, code: str
) -> None:
    _, agent = accept_work(engine, acme)
    body = {"error": {"message": "busy", "code": code, "retryable": True}}
    agent.post("fail", body)

    assert agent.post("fail", body).json() == {"accepted": True, "duplicate": True}
    assert_superseded(agent.post("fail", {"error": {"message": "else", "retryable": True}}), "failed already")
    assert_superseded(agent.post("complete", RESULT), "failed already")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "error"), ({"error": "x"}, "error"), ({"error": {}}, "error.message"), ({"error": {"message": ""}}, "error.message"),
        ({"error": {"message": "x", "retryable": "yes"}}, "error.retryable"),
        ({"error": {"message": "x", "retry_after": -1}}, "error.retry_after"),
        ({"error": {"message": "x" * 2001}}, "error.message"), ({"error": {"message": "x", "trace": "y"}}, "error.trace"),
    ],
)  # fmt: skip
def test_a_malformed_failure_is_refused_with_its_path(
    engine: Engine, acme: Tenant, body: Any, path: str
) -> None:
    activity_id, agent = accept_work(engine, acme)

    refused = problem(agent.post("fail", body), 400, "validation_failed")

    assert path in [fault["path"] for fault in refused["errors"]]
    assert engine.status(acme, activity_id) == "in_progress"


def test_a_heartbeat_is_counted_and_stores_progress_and_usage(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)

    first = agent.post("heartbeat", {"progress": {"done": 3}, "usage": {"input_tokens": 9}})
    second = agent.post("heartbeat")

    assert first.json() == second.json() == {"stop": False, "reason": None}
    (run,) = api("viewer").get(f"/api/v1/activities/{activity_id}/runs/").json()["results"]
    assert (run["beats"], run["progress"], run["usage"]["input_tokens"]) == (2, {"done": 3}, 9)
    assert run["accepted_at"]


def test_a_heartbeat_of_cancelled_work_says_stop(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    api("operator").post(f"/api/v1/activities/{activity_id}/cancel/")

    assert agent.post("heartbeat").json() == {"stop": True, "reason": "The work was cancelled or reassigned."}
    assert_superseded(agent.post("complete", RESULT), "cancelled")
    assert_superseded(agent.post("fail", {"error": {"message": "x"}}), "cancelled")
    assert engine.status(acme, activity_id) == "cancelled"


def test_reports_of_a_superseded_run_are_refused(engine: Engine, acme: Tenant) -> None:
    activity_id, first = accept_work(engine, acme)
    first.post("fail", {"error": {"message": "busy", "retryable": True}})
    engine.make_due(acme)
    engine.drain()
    second = AgentClient(engine.agent.calls[-1])

    for answer in (
        first.post("heartbeat"),
        first.post("complete", RESULT),
        first.get_job(),
        first.post("tools/report_blocker"),
    ):
        assert_superseded(answer)

    assert engine.status(acme, activity_id) == "in_progress"
    assert second.post("complete", RESULT).json()["duplicate"] is False


def test_a_malformed_usage_is_refused(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)

    refused = problem(agent.post("heartbeat", {"usage": {"output_tokens": "many"}}), 400, "validation_failed")

    assert refused["errors"][0]["path"] == "usage.output_tokens"


def test_a_large_heartbeat_is_refused(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)

    problem(agent.post("heartbeat", {"progress": "x" * 40_000}), 413, "body_too_large")


def test_a_wake_during_a_run_leads_to_another_run_after_its_result(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    with tenant_scope(acme.pk):
        outbox.record(engine.get(acme, activity_id), "unblocked", payload={"blocker_resolution": "fixed"})

    agent.post("complete", RESULT)
    engine.drain()

    assert [call.wake_reason for call in engine.agent.calls] == ["new_task", "unblocked"]
