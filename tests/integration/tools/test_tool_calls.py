"""A tool call has one effect, and only while its run is live."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError
from psycopg.errors import DeadlockDetected

from activities import activity_tree, cancellation
from activities.exceptions import RunSuperseded
from activities.execution import agent_tools, results
from activities.execution.agent_tools import NAMES
from activities.models import ToolCall
from activities.run_tokens import RunToken
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import (
    RESULT,
    accept_work,
    agent_of,
    assert_superseded,
    child,
    count_activities,
    is_called_again,
)
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.tools.calling import CALLS, LEAVES, every_tool

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


def tool_calls(tenant: Tenant) -> list[ToolCall]:
    with tenant_scope(tenant.pk):
        return list(ToolCall.objects.for_tenant(tenant.pk).order_by("at"))


def test_every_tool_is_tested() -> None:
    assert set(NAMES) == set(CALLS)


@every_tool
def test_a_call_leads_to_the_status_of_its_tool_and_is_recorded(
    engine: Engine, acme: Tenant, tool: str
) -> None:
    activity_id, agent = accept_work(engine, acme)

    answer = agent.use(tool, **CALLS[tool])

    created = child(acme, activity_id)
    extra_fields = {"held": [str(activity_id)], "not_held": []} if tool == "create_approval" else {}
    assert (answer.status_code, answer.json()) == (
        201, {"id": str(created.pk), "status": LEAVES[tool], "stop": True, "duplicate": False, **extra_fields},
    )  # fmt: skip
    assert engine.status(acme, activity_id) == LEAVES[tool]
    (run,) = engine.runs(acme, activity_id)
    assert (run.status, run.ended_by_tool) == ("completed", tool)
    (call,) = tool_calls(acme)
    assert (call.tool, call.run_id, call.answer["id"]) == (tool, agent.run_id, str(created.pk))


@every_tool
@pytest.mark.parametrize("key", ["", "k-1"])
def test_a_repeated_call_gets_the_first_response_and_has_no_effect(
    engine: Engine, acme: Tenant, tool: str, key: str
) -> None:
    _, agent = accept_work(engine, acme)
    first = agent.use(tool, key=key, **CALLS[tool])

    again = [agent.use(tool, key=key, **CALLS[tool]) for _ in range(2)]

    assert [answer.status_code for answer in again] == [200, 200]
    assert [answer.json() for answer in again] == [{**first.json(), "duplicate": True}] * 2
    assert (count_activities(acme), len(tool_calls(acme))) == (2, 1)


def test_a_repeated_call_with_a_wide_number_is_recognised(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)
    subtask = {"name": "Count", "agent_role": "ba", "blocking": False, "params": {"atoms": 6e23}}

    first, again = (agent.use("create_subtask", **subtask) for _ in range(2))

    assert (again.status_code, again.json()) == (200, {**first.json(), "duplicate": True})


def test_calls_with_different_keys_are_different(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)
    subtask = {"name": "Look it up", "agent_role": "ba", "blocking": False}

    first, second = (agent.use("create_subtask", key=key, **subtask) for key in ("a", "b"))

    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] != second.json()["id"]
    assert agent.use("create_subtask", key="a", **subtask).json() == {**first.json(), "duplicate": True}
    assert count_activities(acme) == 3


def test_different_calls_without_a_key_are_different(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)

    answers = [agent.use("create_subtask", name=name, agent_role="ba", blocking=False) for name in "ab"]

    assert [(answer.status_code, answer.json()["stop"]) for answer in answers] == [(201, False)] * 2


def test_a_key_of_another_call_is_refused(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)
    agent.use("create_subtask", key="a", name="one", agent_role="ba", blocking=False)

    answer = agent.use("create_subtask", key="a", name="two", agent_role="ba", blocking=False)

    problem(answer, 422, "idempotency_key_reused")
    assert count_activities(acme) == 2


@in_one_test("key", ["x" * 256, "with\ttab"])
def test_an_invalid_key_is_refused(engine: Engine, acme: Tenant, key: str) -> None:
    _, agent = accept_work(engine, acme)

    problem(agent.use("report_blocker", key=key, **CALLS["report_blocker"]), 400, "invalid_idempotency_key")


def test_keys_that_differ_in_their_last_character_are_different(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)
    keys = ["x" * 254 + end for end in "ab"]

    answers = [
        agent.use("create_subtask", key=key, name="n", agent_role="ba", blocking=False) for key in keys
    ]

    assert len({answer.json()["id"] for answer in answers}) == 2


@every_tool
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "lost"])
def test_a_tool_call_after_the_run_does_nothing_and_says_stop(
    engine: Engine, acme: Tenant, tool: str, end: str
) -> None:
    activity_id, agent = accept_work(engine, acme)
    if end == "completed":
        agent.post("complete", RESULT)
    elif end == "failed":
        agent.post("fail", {"error": {"message": "x", "retryable": False}})
    elif end == "cancelled":
        cancellation.cancel(acme.pk, activity_id, actor="test")
    else:
        (run,) = engine.runs(acme, activity_id)
        results.record_stalled(RunToken(acme.pk, activity_id, run.pk, run.fence))
        engine.drain()
    before = (count_activities(acme), engine.status(acme, activity_id))

    assert_superseded(agent.use(tool, **CALLS[tool]))
    # The end of the run precedes errors of the call.
    assert_superseded(agent.use(tool, nonsense=True))

    assert (count_activities(acme), engine.status(acme, activity_id)) == before
    assert tool_calls(acme) == []


@every_tool
def test_a_tool_call_after_one_that_ended_the_run_does_nothing(
    engine: Engine, acme: Tenant, tool: str
) -> None:
    _, agent = accept_work(engine, acme)
    agent.create_with("request_human_review", question="First?")

    assert_superseded(agent.use(tool, key="another", **CALLS[tool]), "request_human_review")

    assert count_activities(acme) == 2


def test_the_token_of_a_superseded_run_does_not_affect_the_next_run(engine: Engine, acme: Tenant) -> None:
    activity_id, old = accept_work(engine, acme)
    (run,) = engine.runs(acme, activity_id)
    results.record_stalled(RunToken(acme.pk, activity_id, run.pk, run.fence))
    engine.drain()

    for tool, arguments in CALLS.items():
        assert_superseded(old.use(tool, **arguments))

    assert engine.status(acme, activity_id) == "in_progress"
    assert agent_of(engine, activity_id).use("report_blocker", **CALLS["report_blocker"]).status_code == 201


def test_a_run_superseded_before_the_lock_has_no_effect(engine: Engine, acme: Tenant) -> None:
    """A tool that does not end the run writes no row that would detect it."""
    activity_id, _ = accept_work(engine, acme)
    (run,) = engine.runs(acme, activity_id)
    stale = RunToken(acme.pk, activity_id, run.pk, run.fence)
    results.record_stalled(stale)
    engine.drain()

    with pytest.raises(RunSuperseded):
        agent_tools.perform(stale, "create_subtask", {"name": "n", "agent_role": "ba", "blocking": False})

    assert count_activities(acme) == 1


def test_a_tool_call_that_is_refused_late_leaves_nothing(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolution exists already when the run turns out to be over."""
    activity_id, agent = accept_work(engine, acme)

    def raise_superseded(*arguments: Any, **more: Any) -> None:
        raise RunSuperseded(agent.run_id)

    monkeypatch.setattr("activities.models.ToolCall.objects.create", raise_superseded)
    assert_superseded(agent.use("report_blocker", **CALLS["report_blocker"]))
    monkeypatch.undo()

    assert (engine.status(acme, activity_id), count_activities(acme)) == ("in_progress", 1)
    assert not is_called_again(engine, activity_id)


@pytest.mark.parametrize("report", ["complete", "tools/report_blocker"])
def test_a_report_that_meets_a_deadlock_is_retried(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch, report: str
) -> None:
    _, agent = accept_work(engine, acme)
    lock, deadlocks = activity_tree.lock, iter([True])

    def deadlock_once(*arguments: Any) -> Any:
        if next(deadlocks, False):
            raise OperationalError("deadlock detected") from DeadlockDetected()
        return lock(*arguments)

    monkeypatch.setattr(activity_tree, "lock", deadlock_once)
    answer = agent.post(report, RESULT if report == "complete" else CALLS["report_blocker"])

    assert answer.status_code in (200, 201), answer.content
