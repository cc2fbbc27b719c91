"""Races of calls by the same agent, and of a call and the wake that it waits for."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from activities import relay, suspension
from activities.states import LinkKind
from agents.contracts import Accepted, AgentRequest, AgentResult
from tenants.models import Tenant
from tests.accepted_work import (
    RESULT,
    AgentClient,
    accept_work,
    action_url,
    agent_of,
    child,
    children,
    count_activities,
    next_call,
)
from tests.concurrency.waiting_races.outcomes import DOWN, TRIES, statuses
from tests.engine import Engine, simultaneously
from tests.integration.subtasks.parts import PART, start_waiting_parent

pytestmark = [pytest.mark.concurrency, pytest.mark.usefixtures("one_at_a_time")]


def test_five_equal_tool_calls_at_once_have_one_effect(engine: Engine, acme: Tenant) -> None:
    for tool, arguments in (
        ("report_blocker", DOWN),
        ("create_subtask", PART),
        ("reassign_task", {"agent_role": "dev", "reason": "x"}),
    ):
        activity_id, agent = accept_work(engine, acme)

        answers = simultaneously(*[partial(agent.use, tool, **arguments)] * 5)

        assert sorted(statuses(answers)) == [200, 200, 200, 200, 201]
        assert {answer.json()["id"] for answer in answers} == {str(child(acme, activity_id).pk)}
        assert sum(not answer.json()["duplicate"] for answer in answers) == 1


def test_two_simultaneous_tool_calls_that_end_the_run_leave_one_question(
    engine: Engine, acme: Tenant
) -> None:
    for _ in range(TRIES):
        activity_id, agent = accept_work(engine, acme)

        answers = simultaneously(
            partial(agent.use, "report_blocker", **DOWN),
            partial(agent.use, "request_human_review", question="?"),
        )

        assert sorted(statuses(answers)) == [201, 409]
        question = child(acme, activity_id)
        status = {"resolution": "blocked", "review": "awaiting_review"}[question.link_kind or ""]
        assert engine.status(acme, activity_id) == status


def test_a_result_and_a_simultaneous_tool_call_do_not_both_count(engine: Engine, acme: Tenant) -> None:
    for _ in range(TRIES):
        activity_id, agent = accept_work(engine, acme)

        done, blocker = simultaneously(
            partial(agent.post, "complete", RESULT), partial(agent.use, "report_blocker", **DOWN)
        )

        assert done.status_code == 200
        if done.json()["accepted"]:
            assert (blocker.status_code, engine.status(acme, activity_id)) == (409, "done")
            assert children(acme, activity_id) == []
        else:
            assert (blocker.status_code, engine.status(acme, activity_id)) == (201, "blocked")


def test_the_limit_of_five_subtasks_holds_when_four_are_requested_at_once(
    engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = accept_work(engine, acme)
    for number in range(4):
        agent.create_with("create_subtask", **{**PART, "name": str(number), "blocking": False})

    answers = simultaneously(
        *[
            partial(agent.use, "create_subtask", **{**PART, "name": name, "blocking": False})
            for name in "abcd"
        ]
    )

    assert sorted(statuses(answers)) == [201, 429, 429, 429]
    assert len(children(acme, activity_id, LinkKind.SUBTASK)) == 5


def test_simultaneous_requests_do_not_grow_a_tree_beyond_its_limit(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_ACTIVITIES_PER_TREE = 7
    _, agent = accept_work(engine, acme)
    for number in range(4):
        agent.create_with("create_subtask", **{**PART, "name": str(number), "blocking": False})
    engine.drain()
    members = [AgentClient(call) for call in engine.agent.calls]

    answers = simultaneously(
        *[
            partial(member.use, "create_subtask", **{**PART, "name": "more", "blocking": False})
            for member in members
        ]
    )

    assert sorted(statuses(answers)) == [201, 201, 429, 429, 429]
    assert count_activities(acme) == 7


def test_a_resolution_between_the_end_of_the_call_and_the_release_of_its_slot_is_not_missed(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offer of the resolution comes while the slot is still held, so it changes nothing by itself."""
    release_and_acquire = relay.release_and_acquire

    def resolved_before(*arguments: Any, **more: Any) -> Any:
        simultaneously(partial(suspension.resolve_blocker, acme.pk, activity_id, actor="a", note="up"))
        assert relay.flush()
        return release_and_acquire(*arguments, **more)

    def behaviour(request: AgentRequest) -> AgentResult:
        if request.wake_reason == "new_task":
            simultaneously(partial(AgentClient(request).create_with, "report_blocker", **DOWN))
        return Accepted()

    engine.agent.behaviour = behaviour
    monkeypatch.setattr(relay, "release_and_acquire", resolved_before)
    (activity_id,) = engine.submit(acme)
    assert engine.deliver()
    monkeypatch.undo()

    assert engine.messages() == 1
    assert next_call(engine, activity_id).wake_reason == "unblocked"


def test_the_api_answers_simultaneous_actions_with_conflicts_and_never_with_server_errors(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("operator")
    for _ in range(TRIES):
        parent, subtask = start_waiting_parent(engine, acme)
        resolution = agent_of(engine, subtask).create_with("report_blocker", **DOWN)

        answers = simultaneously(
            partial(client.post, action_url(resolution, "resolve"), {"note": "up"}),
            partial(client.post, action_url(subtask, "resolve"), {"note": "up"}),
            partial(client.post, action_url(subtask, "cancel")),
            partial(client.post, action_url(parent, "cancel")),
            partial(client.post, action_url(subtask, "reassign"), {"agent_role": "seo", "reason": "x"}),
            partial(client.post, action_url(parent, "reassign"), {"agent_role": "seo", "reason": "x"}),
        )
        engine.drain()

        assert set(statuses(answers)) <= {200, 201, 409}
        assert engine.status(acme, parent) in ("cancelled", "reassigned")
        assert engine.status(acme, resolution) in ("done", "cancelled")
