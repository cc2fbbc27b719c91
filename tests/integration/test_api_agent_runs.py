"""The callbacks of agents that accepted their work: who is believed, what a report does, and what happens when it comes again."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from django.core import signing
from rest_framework.test import APIClient

from activities import outputs, relay, run_tokens, wakes
from activities.admission import Exchange, exchange
from activities.models import ActivityRun
from activities.run_tokens import RunToken
from agents.contracts import Accepted, AgentRequest, Completed, Output
from agents.job import job_of
from pipelines import versions
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, at_once
from tests.integration.test_api_door import problem

pytestmark = pytest.mark.usefixtures("one_at_a_time")

RESULT = {"output": {"content": "# Bees", "data": {"words": [1, 2.5, None]}, "content_type": "text/markdown"}}


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    return tenant


class Agent:
    """What an agent has in hand: the address and the token that came with its job."""

    def __init__(self, request: AgentRequest, token: str = "") -> None:
        self.run_id = request.run_id
        self.address = request.callback.url.partition("//")[2].partition("/")[2]
        self.client = APIClient()
        self.client.credentials(HTTP_AUTHORIZATION=f"Bearer {token or request.callback.token}")

    def get(self) -> Any:
        return self.client.get(f"/{self.address}")

    def post(self, verb: str, body: Any = None) -> Any:
        return self.client.post(f"/{self.address}{verb}/", {} if body is None else body)


def accepted(engine: Engine, acme: Tenant, **fields: Any) -> tuple[UUID, Agent]:
    """An activity whose agent has accepted it."""
    (activity_id,) = engine.submit(acme, **fields)
    engine.drain()
    return activity_id, Agent(engine.agent.calls[-1])


def run_of(engine: Engine, acme: Tenant, activity_id: UUID) -> ActivityRun:
    return engine.runs(acme, activity_id)[-1]


def over(response: Any, reason: str = "") -> None:
    """The answer tells the agent to stop."""
    body = problem(response, 409, "run_superseded")
    assert body["stop"] is True
    assert reason in body["reason"]


# Results


def test_a_completed_run_completes_its_activity_and_gives_its_slot_back(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    activity_id, agent = accepted(engine, acme)
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
    done, run = engine.get(acme, activity_id), run_of(engine, acme, activity_id)
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


def test_the_history_says_which_run_reported(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accepted(engine, acme)
    agent.post("complete", RESULT)

    moments = api().get(f"/api/v1/activities/{activity_id}/timeline/").json()["results"]

    assert [m["actor"] for m in moments if m.get("verb") == "complete"] == [f"run:{agent.run_id}"]


def test_a_result_that_needs_an_approval_waits_for_it(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accepted(engine, acme, requires_approval=True)

    agent.post("complete", RESULT)

    assert engine.status(acme, activity_id) == "awaiting_approval"


def test_a_result_moves_its_pipeline_on(engine: Engine, acme: Tenant) -> None:
    steps = [{"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "qa"}]
    versions.save(acme.pk, {"key": "two", "name": "Two", "steps": steps}, actor="test")
    start_run(acme.pk, "two", NewRun(), actor="test")
    engine.drain()

    Agent(engine.agent.calls[-1]).post("complete", RESULT)
    engine.drain()

    assert [call.pipeline_step for call in engine.agent.calls] == ["a", "b"]
    assert (engine.agent.calls[-1].input or {})["content"] == "# Bees"


def test_a_result_may_come_before_our_own_call_has_returned(engine: Engine, acme: Tenant) -> None:
    answers = []

    def hasty(request: AgentRequest) -> Accepted:
        answers.append(Agent(request).post("complete", RESULT))
        return Accepted()

    engine.agent.behaviour = hasty
    (activity_id,) = engine.submit(acme)
    engine.drain()

    assert [answer.status_code for answer in answers] == [200]
    assert engine.status(acme, activity_id) == "done"
    relay.flush()
    assert exchange(Exchange()) == []


def test_a_result_that_comes_again_is_recognised(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accepted(engine, acme)
    agent.post("complete", RESULT)

    again = agent.post("complete", RESULT)
    outputs.copy_waiting()
    later = agent.post("complete", RESULT)

    assert (
        (again.status_code, again.json())
        == (later.status_code, later.json())
        == (200, {"accepted": True, "duplicate": True})
    )
    assert len(engine.runs(acme, activity_id)) == 1


def test_of_five_equal_results_at_once_one_counts(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accepted(engine, acme)

    answers = at_once(*[lambda: agent.post("complete", RESULT) for _ in range(5)])

    assert [answer.status_code for answer in answers] == [200] * 5
    assert sorted(answer.json()["duplicate"] for answer in answers) == [False, True, True, True, True]
    assert engine.status(acme, activity_id) == "done"


def test_another_result_of_a_completed_run_is_refused_and_the_first_stands(
    engine: Engine, acme: Tenant
) -> None:
    _, agent = accepted(engine, acme)
    agent.post("complete", RESULT)

    refused = problem(agent.post("complete", {"output": {"content": "other"}}), 409, "already_completed")

    assert refused["stop"] is True
    stored = outputs.read(acme.pk, agent.run_id)
    assert stored is not None
    assert stored.content == "# Bees"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "output"), ({"output": "text"}, "output"), ({"output": {"content": 5}}, "output.content"),
        ({"output": {"content_type": "nonsense"}}, "output.content_type"),
        ({"output": {"content_type": f"text/{'x' * 60}; {'y' * 60}"}}, "output.content_type"),
        ({"output": {}, "usage": {"input_tokens": -1}}, "usage.input_tokens"), ({"output": {}, "session_id": ""}, "session_id"),
    ],
)  # fmt: skip
def test_a_result_that_is_none_is_refused_by_path_and_the_run_goes_on(
    engine: Engine, acme: Tenant, body: Any, path: str
) -> None:
    activity_id, agent = accepted(engine, acme)

    refused = problem(agent.post("complete", body), 400, "validation_failed")

    assert path in [fault["path"] for fault in refused["errors"]]
    assert engine.status(acme, activity_id) == "in_progress"
    assert agent.post("complete", RESULT).status_code == 200


def test_members_that_we_do_not_know_are_ignored(engine: Engine, acme: Tenant) -> None:
    _, agent = accepted(engine, acme)

    assert agent.post("complete", {**RESULT, "confidence": 0.9}).status_code == 200


def test_outputs_have_a_largest_size_however_they_are_written(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    _, agent = accepted(engine, acme)
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


# Failures


def test_a_retryable_failure_is_tried_again_after_the_wait_that_was_asked_for(
    engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = accepted(engine, acme)

    answer = agent.post(
        "fail", {"error": {"message": "busy", "code": "overloaded", "retryable": True, "retry_after": 60}}
    )

    assert (answer.status_code, answer.json()) == (200, {"accepted": True, "duplicate": False})
    waiting, run = engine.get(acme, activity_id), run_of(engine, acme, activity_id)
    assert (waiting.status, waiting.attempts, run.status) == ("created", 1, "failed")
    assert run.error == {"code": "overloaded", "message": "busy", "retryable": True}
    engine.make_due(acme)
    assert engine.drain() == 1
    assert engine.agent.calls[-1].attempt == 2


def test_a_permanent_failure_is_final(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accepted(engine, acme)

    agent.post("fail", {"error": {"message": "no such site"}})

    failed = engine.get(acme, activity_id)
    assert (failed.status, failed.error["message"], failed.error["retryable"]) == (
        "failed",
        "no such site",
        False,
    )


def test_being_rate_limited_uses_up_no_attempt(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accepted(engine, acme)

    agent.post(
        "fail",
        {"error": {"message": "slow down", "code": "rate_limited", "retryable": True, "retry_after": 1}},
    )

    assert (engine.get(acme, activity_id).status, engine.get(acme, activity_id).attempts) == ("created", 0)


def test_a_failure_that_comes_again_is_recognised_and_another_one_is_refused(
    engine: Engine, acme: Tenant
) -> None:
    _, agent = accepted(engine, acme)
    body = {"error": {"message": "busy", "retryable": True}}
    agent.post("fail", body)

    assert agent.post("fail", body).json() == {"accepted": True, "duplicate": True}
    over(agent.post("fail", {"error": {"message": "else", "retryable": True}}), "failed already")
    over(agent.post("complete", RESULT), "failed already")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "error"), ({"error": "x"}, "error"), ({"error": {}}, "error.message"), ({"error": {"message": ""}}, "error.message"),
        ({"error": {"message": "x", "retryable": "yes"}}, "error.retryable"),
        ({"error": {"message": "x", "retry_after": -1}}, "error.retry_after"),
        ({"error": {"message": "x" * 2001}}, "error.message"), ({"error": {"message": "x", "trace": "y"}}, "error.trace"),
    ],
)  # fmt: skip
def test_a_failure_that_is_none_is_refused_by_path(
    engine: Engine, acme: Tenant, body: Any, path: str
) -> None:
    activity_id, agent = accepted(engine, acme)

    refused = problem(agent.post("fail", body), 400, "validation_failed")

    assert path in [fault["path"] for fault in refused["errors"]]
    assert engine.status(acme, activity_id) == "in_progress"


# Heartbeats


def test_a_heartbeat_is_counted_and_shows_how_far_the_work_is(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accepted(engine, acme)

    first = agent.post("heartbeat", {"progress": {"done": 3}, "usage": {"input_tokens": 9}})
    second = agent.post("heartbeat")

    assert first.json() == second.json() == {"stop": False, "reason": None}
    (shown,) = api("viewer").get(f"/api/v1/activities/{activity_id}/runs/").json()["results"]
    assert (shown["beats"], shown["progress"], shown["usage"]["input_tokens"]) == (2, {"done": 3}, 9)
    assert shown["accepted_at"]


def test_a_heartbeat_tells_that_the_work_was_cancelled(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accepted(engine, acme)
    api("operator").post(f"/api/v1/activities/{activity_id}/cancel/")

    assert agent.post("heartbeat").json() == {"stop": True, "reason": "The work was cancelled."}
    over(agent.post("complete", RESULT), "cancelled")
    over(agent.post("fail", {"error": {"message": "x"}}), "cancelled")
    assert engine.status(acme, activity_id) == "cancelled"


def test_reports_of_a_run_that_another_one_took_over_from_are_refused(engine: Engine, acme: Tenant) -> None:
    activity_id, first = accepted(engine, acme)
    first.post("fail", {"error": {"message": "busy", "retryable": True}})
    engine.make_due(acme)
    engine.drain()
    second = Agent(engine.agent.calls[-1])

    for answer in (
        first.post("heartbeat"),
        first.post("complete", RESULT),
        first.get(),
        first.post("tools/report_blocker"),
    ):
        over(answer)

    assert engine.status(acme, activity_id) == "in_progress"
    assert second.post("complete", RESULT).json()["duplicate"] is False


def test_a_usage_that_is_none_is_refused(engine: Engine, acme: Tenant) -> None:
    _, agent = accepted(engine, acme)

    refused = problem(agent.post("heartbeat", {"usage": {"output_tokens": "many"}}), 400, "validation_failed")

    assert refused["errors"][0]["path"] == "usage.output_tokens"


def test_a_heartbeat_is_short(engine: Engine, acme: Tenant) -> None:
    _, agent = accepted(engine, acme)

    problem(agent.post("heartbeat", {"progress": "x" * 40_000}), 413, "body_too_large")


# The job again


def test_the_job_is_told_again_as_it_was(engine: Engine, acme: Tenant) -> None:
    _, agent = accepted(
        engine,
        acme,
        params={"topic": "bees"},
        input={"content": "begin", "data": [1]},
        description="Write.",
        priority=4,
        deliverable_id=uuid4(),
    )
    told = orjson.loads(orjson.dumps(job_of(engine.agent.calls[-1]), default=str))

    again = agent.get()

    assert again.status_code == 200
    job = again.json()
    assert job.keys() == told.keys()
    varying = {"prompt", "deadline", "callback"}  # the token says when it was made, too
    assert [run_tokens.read(one["callback"]["token"]) for one in (job, told)] == [
        run_tokens.read(told["callback"]["token"])
    ] * 2
    assert job["callback"]["url"] == told["callback"]["url"]
    assert {name: job[name] for name in job if name not in varying} == {
        name: told[name] for name in told if name not in varying
    }
    assert "bees" in job["prompt"]


def test_the_job_of_a_revision_holds_the_notes_and_the_joined_outputs(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Completed(Output(f"{request.name} v{request.attempt}"))
    steps = [
        {"id": "a", "agent_role": "qa", "depends_on": []}, {"id": "b", "agent_role": "qa", "depends_on": []},
        {"id": "c", "agent_role": "qa", "depends_on": ["a", "b"], "requires_approval": True},
    ]  # fmt: skip
    versions.save(acme.pk, {"key": "join", "name": "Join", "steps": steps}, actor="test")
    start_run(acme.pk, "join", NewRun(), actor="test")
    engine.drain()
    engine.agent.behaviour = lambda request: Accepted()
    (gate,) = api().get("/api/v1/inbox/").json()["results"]
    api().post(f"/api/v1/activities/{gate['parent']}/reject/", {"notes": "Shorter."})
    outputs.copy_waiting()
    engine.drain()
    told = engine.agent.calls[-1]

    job = Agent(told).get().json()

    assert (job["wake_reason"], job["reviewer_notes"], job["rejection_ref"]) == (
        "rejection",
        "Shorter.",
        str(told.wake_context["rejection_ref"]),
    )
    assert {step: given["content"] for step, given in job["input"]["steps"].items()} == {
        "a": "a v1",
        "b": "b v1",
    }
    assert "c v1" in job["prompt"]


def test_the_job_of_a_run_that_has_ended_is_not_told_again(engine: Engine, acme: Tenant) -> None:
    _, agent = accepted(engine, acme)
    agent.post("complete", RESULT)

    over(agent.get(), "completed already")


# Who is believed


def forged(text: str) -> str:
    return text[:-1] + ("A" if text[-1] != "A" else "B")


@pytest.mark.parametrize("verb", ["", "heartbeat", "complete", "fail", "tools/report_blocker"])
def test_without_the_runs_own_token_nobody_is_heard(
    api: Any, engine: Engine, acme: Tenant, verb: str
) -> None:
    activity_id, agent = accepted(engine, acme)
    request = engine.agent.calls[-1]
    user = api("admin")._credentials["HTTP_AUTHORIZATION"].partition(" ")[2]
    foreign_key = signing.dumps(
        [str(acme.pk), str(activity_id), str(agent.run_id), 1], salt="another.purpose"
    )

    def status(token: str | None) -> int:
        stranger = Agent(request, token or "x")
        if token is None:
            stranger.client.credentials()
        answer = stranger.post(verb, RESULT) if verb else stranger.get()
        return int(problem(answer, 401, "not_authenticated" if token is None else "invalid_token")["status"])

    assert {status(token) for token in (None, user, "", forged(request.callback.token), foreign_key)} == {401}
    assert engine.status(acme, activity_id) == "in_progress"


def test_a_token_opens_its_own_run_alone(engine: Engine, acme: Tenant) -> None:
    first_id, first = accepted(engine, acme)
    second_id, second = accepted(engine, acme)

    first.address = second.address

    for answer in (
        first.get(),
        first.post("complete", RESULT),
        first.post("heartbeat"),
        first.post("fail", {"error": {"message": "x"}}),
    ):
        problem(answer, 404, "not_found")
    assert {engine.status(acme, first_id), engine.status(acme, second_id)} == {"in_progress"}


def test_a_run_token_opens_nothing_else(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accepted(engine, acme)

    for address in (
        "/api/v1/activities/",
        f"/api/v1/activities/{activity_id}/",
        "/api/v1/inbox/",
        "/api/v1/agent-configs/",
    ):
        problem(agent.client.get(address), 401, "invalid_token")
    problem(agent.client.post(f"/api/v1/activities/{activity_id}/approve/", {}), 401, "invalid_token")


def test_a_token_of_another_fence_or_tenant_changes_nothing(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    activity_id, agent = accepted(engine, acme)
    request = engine.agent.calls[-1]

    for token in (
        RunToken(acme.pk, activity_id, agent.run_id, 0), RunToken(acme.pk, activity_id, agent.run_id, 2),
        RunToken(other_tenant.pk, activity_id, agent.run_id, 1), RunToken(acme.pk, uuid4(), agent.run_id, 1),
    ):  # fmt: skip
        stranger = Agent(request, run_tokens.issue(token).token)
        for answer in (
            stranger.get(),
            stranger.post("heartbeat"),
            stranger.post("complete", RESULT),
            stranger.post("fail", {"error": {"message": "x"}}),
        ):
            over(answer)
    assert engine.status(acme, activity_id) == "in_progress"


def test_tools_that_do_not_exist_are_404_and_say_so(engine: Engine, acme: Tenant) -> None:
    _, agent = accepted(engine, acme)

    problem(agent.post("tools/launch_rocket", {"name": "x"}), 404, "tool_not_available")


def test_a_wake_during_the_run_leads_to_another_run_after_its_result(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accepted(engine, acme)
    with tenant_scope(acme.pk):
        wakes.record(engine.get(acme, activity_id), "unblocked", payload={"blocker_resolution": "fixed"})

    agent.post("complete", RESULT)
    engine.drain()

    assert [call.wake_reason for call in engine.agent.calls] == ["new_task", "unblocked"]
