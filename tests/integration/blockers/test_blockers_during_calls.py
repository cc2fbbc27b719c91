"""Blockers that an agent reports during its call, which goes on afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from activities import cancellation, tasks
from activities.admission import rebuilding
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output, Usage
from agents.exceptions import PermanentAgentError, RetryableAgentError
from tenants.models import Tenant
from tests.accepted_work import RESULT, AgentClient, action_url, assert_superseded, next_call
from tests.engine import Engine, in_another_thread
from tests.integration.blockers.blocked_work import DOWN, block_work

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


def script_first_call(
    engine: Engine, meanwhile: Callable[[AgentClient], None], then: Callable[[], AgentResult]
) -> None:
    """Let the agent's first call do `meanwhile` and then end; every later call accepts."""

    def behaviour(request: AgentRequest) -> AgentResult:
        if len(engine.agent.calls) > 1:
            return Accepted()
        meanwhile(AgentClient(request))
        return then()

    engine.agent.behaviour = behaviour


def fail(error: Exception) -> AgentResult:
    raise error


ENDS: dict[str, Callable[[], AgentResult]] = {
    "result": lambda: Completed(Output("never mind")),
    "202": Accepted,
    "error": lambda: fail(PermanentAgentError("gave up")),
    "retryable error": lambda: fail(RetryableAgentError("gave up")),
}


@pytest.mark.parametrize("end", ENDS)
def test_work_stays_blocked_however_the_call_ends(engine: Engine, acme: Tenant, end: str) -> None:
    script_first_call(
        engine,
        lambda agent: in_another_thread(lambda: agent.create_with("report_blocker", **DOWN)),
        ENDS[end],
    )

    (activity_id,) = engine.submit(acme)
    engine.drain()

    (run,) = engine.runs(acme, activity_id)
    waiting = engine.get(acme, activity_id)
    assert (waiting.status, waiting.output_ref, run.status) == ("blocked", None, "completed")
    assert (waiting.error, run.error) == (None, None)


def test_only_session_and_usage_of_a_result_after_the_blocker_are_stored(
    engine: Engine, acme: Tenant
) -> None:
    result = Completed(Output("never mind"), Usage(input_tokens=5, output_tokens=7), session_id="s-1")
    script_first_call(
        engine,
        lambda agent: in_another_thread(lambda: agent.create_with("report_blocker", **DOWN)),
        lambda: result,
    )

    (activity_id,) = engine.submit(acme)
    engine.drain()

    (run,) = engine.runs(acme, activity_id)
    assert (run.session_id, run.usage["input_tokens"], run.usage["output_tokens"]) == ("s-1", 5, 7)
    assert engine.get(acme, activity_id).output_ref is None


@pytest.mark.parametrize("end", ENDS)
def test_work_resolved_during_the_call_runs_exactly_once_more_after_it(
    api: Any, engine: Engine, acme: Tenant, end: str
) -> None:
    ready: list[int] = []

    def meanwhile(agent: AgentClient) -> None:
        in_another_thread(lambda: agent.create_with("report_blocker", **DOWN))
        in_another_thread(
            lambda: api("reviewer").post(action_url(agent.activity_id, "resolve"), {"note": "Up."})
        )
        ready.append(engine.messages())

    script_first_call(engine, meanwhile, ENDS[end])
    (activity_id,) = engine.submit(acme)
    assert engine.deliver()

    assert (ready, engine.messages()) == ([0], 1)
    engine.drain()
    assert [call.wake_reason for call in engine.agent.calls] == ["new_task", "unblocked"]
    assert engine.status(acme, activity_id) == "in_progress"


def test_work_resolved_during_the_call_says_that_the_call_must_end_first(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    seen: list[dict[str, Any]] = []

    def meanwhile(agent: AgentClient) -> None:
        in_another_thread(lambda: agent.create_with("report_blocker", **DOWN))
        url = action_url(agent.activity_id, "resolve")
        in_another_thread(lambda: api("reviewer").post(url, {"note": "Up."}))
        why = action_url(agent.activity_id, "why")
        in_another_thread(lambda: seen.append(api("reviewer").get(why).json()))

    script_first_call(engine, meanwhile, Accepted)
    engine.submit(acme)
    engine.deliver()

    assert [(answer["code"], answer["detail"]) for answer in seen] == [
        ("queued", "The agent has not ended the call of the run before. This one starts when it has.")
    ]


def test_a_second_delivery_during_the_call_starts_nothing(api: Any, engine: Engine, acme: Tenant) -> None:
    calls: list[int] = []

    def meanwhile(agent: AgentClient) -> None:
        in_another_thread(lambda: agent.create_with("report_blocker", **DOWN))
        in_another_thread(lambda: tasks.run(**message))  # the work is blocked
        in_another_thread(
            lambda: api("reviewer").post(action_url(agent.activity_id, "resolve"), {"note": "Up."})
        )
        in_another_thread(lambda: tasks.run(**message))  # the work is ready
        calls.append(len(engine.agent.calls) + engine.messages())

    script_first_call(engine, meanwhile, ENDS["result"])
    (activity_id,) = engine.submit(acme)
    message = engine.take()
    assert message is not None
    tasks.run(**message)

    assert calls == [1]
    assert next_call(engine, activity_id).wake_reason == "unblocked"
    assert len(engine.runs(acme, activity_id)) == 2


def test_a_wiped_redis_does_not_start_the_work_during_the_call(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    ready: list[int] = []

    def meanwhile(agent: AgentClient) -> None:
        in_another_thread(lambda: agent.create_with("report_blocker", **DOWN))
        in_another_thread(rebuilding.rebuild)
        in_another_thread(
            lambda: api("reviewer").post(action_url(agent.activity_id, "resolve"), {"note": "Up."})
        )
        ready.append(engine.messages())

    script_first_call(engine, meanwhile, ENDS["result"])
    (activity_id,) = engine.submit(acme)
    assert engine.deliver()

    assert ready == [0]
    assert next_call(engine, activity_id).wake_reason == "unblocked"


def test_work_resolved_and_cancelled_during_the_call_does_not_run_again(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    def meanwhile(agent: AgentClient) -> None:
        in_another_thread(lambda: agent.create_with("report_blocker", **DOWN))
        in_another_thread(
            lambda: api("reviewer").post(action_url(agent.activity_id, "resolve"), {"note": "Up."})
        )
        in_another_thread(lambda: cancellation.cancel(acme.pk, agent.activity_id, actor="test"))

    script_first_call(engine, meanwhile, ENDS["result"])
    (activity_id,) = engine.submit(acme)
    engine.drain()

    assert (engine.status(acme, activity_id), len(engine.agent.calls)) == ("cancelled", 1)
    engine.serve(acme, "qa", max_concurrency=1)
    engine.submit(acme)
    assert engine.drain() == 1  # because its slot is free


def test_an_agent_that_suspended_its_work_is_told_to_stop(engine: Engine, acme: Tenant) -> None:
    activity_id, agent, _ = block_work(engine, acme)

    beat = agent.post("heartbeat", {"progress": "still here"}).json()
    late = agent.post("complete", {**RESULT, "session_id": "s-1", "usage": {"input_tokens": 3}})
    failed = agent.post("fail", {"error": {"message": "x", "retryable": True}})

    assert (beat["stop"], "report_blocker" in beat["reason"]) == (True, True)
    for answer in (late, failed):
        assert (answer.status_code, answer.json()) == (
            200,
            {"accepted": False, "duplicate": False, "stop": True},
        )
    assert_superseded(agent.get_job(), "report_blocker")
    (run,) = engine.runs(acme, activity_id)
    assert (run.session_id, run.usage["input_tokens"]) == ("s-1", 3)
    assert engine.status(acme, activity_id) == "blocked"


def test_a_late_result_of_a_suspended_run_does_not_change_the_next_run(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, agent, _ = block_work(engine, acme)
    api("reviewer").post(action_url(activity_id, "resolve"), {"note": "Up."})
    next_call(engine, activity_id)

    assert agent.post("complete", RESULT).json()["accepted"] is False

    assert engine.status(acme, activity_id) == "in_progress"
    assert [run.status for run in engine.runs(acme, activity_id)] == ["completed", "running"]
