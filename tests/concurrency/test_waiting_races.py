"""What waits and what is asked, from several sides at once: one side wins, the others are told, nobody wakes twice, and nothing is left."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from threading import Event
from typing import Any
from uuid import UUID

import pytest
from django.db import connections

from activities import blockers, cancellation, families, people, reassignment, relay, tasks
from activities.exceptions import ActivityError
from activities.models import Activity, ActivityRun, DeadLetter
from activities.states import LinkKind
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from pipelines import cancellation as run_cancellation
from pipelines import versions
from pipelines.models import StepRun
from pipelines.submission import NewRun, start_run
from tenants.context import SYSTEM, tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, at_once, eventually
from tests.toolbox import (
    OUTPUT,
    Caller,
    at_work,
    caller_of,
    calls_of,
    child,
    children,
    count_of,
    of,
    wakes_of,
    woken,
)

pytestmark = [pytest.mark.concurrency, pytest.mark.usefixtures("one_at_a_time")]

DOWN = {"type": "api_outage", "message": "It is down."}
PART = {"name": "Look it up", "agent_role": "dev", "blocking": True}
TRIES = 5


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant, max_concurrency=50)
    engine.agent.behaviour = lambda request: Accepted()
    return tenant


@pytest.fixture(autouse=True)
def no_deadlocks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whoever gives way gives way in the order of the locks, not because PostgreSQL has broken a circle."""
    caplog.set_level(logging.WARNING)
    yield
    assert "persist_waits" not in [getattr(record, "action", "") for record in caplog.records]


def blocked(engine: Engine, acme: Tenant) -> tuple[UUID, UUID]:
    activity_id, agent = at_work(engine, acme)
    return activity_id, agent.used("report_blocker", **DOWN)


def waiting(engine: Engine, acme: Tenant) -> tuple[UUID, UUID]:
    """An activity that waits for its subtask, and the subtask, whose agent is at work."""
    parent, agent = at_work(engine, acme)
    subtask = agent.used("create_subtask", **PART)
    engine.drain()
    return parent, subtask


def won(outcomes: list[Any]) -> list[Any]:
    """What came off. Everything else was refused, and by nothing worse than a conflict."""
    refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert all(isinstance(outcome, ActivityError) for outcome in refused), refused
    return [outcome for outcome in outcomes if not isinstance(outcome, Exception)]


def statuses(answers: list[Any]) -> list[int]:
    """Of answers of the API."""
    return [answer.status_code for answer in answers]


def somebody_waits_for_a_lock() -> bool:
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


# Two of the same agent


def test_five_equal_calls_of_a_tool_at_once_have_one_effect(engine: Engine, acme: Tenant) -> None:
    for tool, arguments in (
        ("report_blocker", DOWN),
        ("create_subtask", PART),
        ("reassign_task", {"agent_role": "dev", "reason": "x"}),
    ):
        activity_id, agent = at_work(engine, acme)

        answers = at_once(*[partial(agent.use, tool, **arguments)] * 5)

        assert sorted(statuses(answers)) == [200, 200, 200, 200, 201]
        assert {answer.json()["id"] for answer in answers} == {str(child(acme, activity_id).pk)}
        assert sum(not answer.json()["duplicate"] for answer in answers) == 1


def test_two_tools_at_once_that_end_the_run_leave_one_question(engine: Engine, acme: Tenant) -> None:
    for _ in range(TRIES):
        activity_id, agent = at_work(engine, acme)

        answers = at_once(
            partial(agent.use, "report_blocker", **DOWN),
            partial(agent.use, "request_human_review", question="?"),
        )

        assert sorted(statuses(answers)) == [201, 409]
        asked = child(acme, activity_id)
        status = {"resolution": "blocked", "review": "awaiting_review"}[asked.link_kind or ""]
        assert engine.status(acme, activity_id) == status


def test_a_result_and_a_tool_at_once_do_not_both_count(engine: Engine, acme: Tenant) -> None:
    for _ in range(TRIES):
        activity_id, agent = at_work(engine, acme)

        done, asked = at_once(
            partial(agent.post, "complete", OUTPUT), partial(agent.use, "report_blocker", **DOWN)
        )

        assert done.status_code == 200
        if done.json()["accepted"]:
            assert (asked.status_code, engine.status(acme, activity_id)) == (409, "done")
            assert children(acme, activity_id) == []
        else:
            assert (asked.status_code, engine.status(acme, activity_id)) == (201, "blocked")


def test_the_fifth_subtask_is_the_last_also_when_four_are_asked_for_at_once(
    engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = at_work(engine, acme)
    for number in range(4):
        agent.used("create_subtask", **{**PART, "name": str(number), "blocking": False})

    answers = at_once(
        *[
            partial(agent.use, "create_subtask", **{**PART, "name": name, "blocking": False})
            for name in "abcd"
        ]
    )

    assert sorted(statuses(answers)) == [201, 429, 429, 429]
    assert len(children(acme, activity_id, LinkKind.SUBTASK)) == 5


def test_members_of_a_tree_that_ask_at_once_do_not_fill_it_beyond_its_bound(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_ACTIVITIES_PER_TREE = 7
    _, agent = at_work(engine, acme)
    for number in range(4):
        agent.used("create_subtask", **{**PART, "name": str(number), "blocking": False})
    engine.drain()
    members = [Caller(call) for call in engine.agent.calls]

    answers = at_once(
        *[
            partial(member.use, "create_subtask", **{**PART, "name": "more", "blocking": False})
            for member in members
        ]
    )

    assert sorted(statuses(answers)) == [201, 201, 429, 429, 429]
    assert count_of(acme) == 7


# People against people


def test_a_blocker_that_is_resolved_and_cancelled_at_once_wakes_once(engine: Engine, acme: Tenant) -> None:
    for _ in range(TRIES):
        activity_id, resolution = blocked(engine, acme)

        outcomes = at_once(
            partial(blockers.resolve, acme.pk, resolution, actor="a", note="up"),
            partial(blockers.resolve, acme.pk, activity_id, actor="b", note="up"),
            partial(cancellation.cancel, acme.pk, resolution, actor="c", reason="never mind"),
        )

        assert len(won(outcomes)) == 1
        assert woken(engine, activity_id).wake_reason == "unblocked"
        assert len(wakes_of(acme, activity_id)) == 2


def test_what_is_resolved_and_cancelled_at_once_never_runs_when_it_was_cancelled(
    engine: Engine, acme: Tenant
) -> None:
    for _ in range(TRIES):
        activity_id, resolution = blocked(engine, acme)

        outcomes = at_once(
            partial(blockers.resolve, acme.pk, resolution, actor="a", note="up"),
            partial(cancellation.cancel, acme.pk, activity_id, actor="b"),
        )
        engine.drain()

        # A resolution may come first and the cancellation after it. The other way round it is refused.
        assert not isinstance(outcomes[1], Exception)
        assert engine.status(acme, activity_id) == "cancelled"
        assert engine.status(acme, resolution) in ("done", "cancelled")
        assert {wake.state for wake in wakes_of(acme, activity_id)} == {"consumed"}
        assert len(won(outcomes)) == (2 if engine.status(acme, resolution) == "done" else 1)


def test_what_is_resolved_and_handed_on_at_once_goes_on_in_one_place(engine: Engine, acme: Tenant) -> None:
    hand_on = partial(reassignment.reassign, actor="b", reason="x", agent_role="dev")
    for _ in range(TRIES):
        activity_id, resolution = blocked(engine, acme)

        won(
            at_once(
                partial(blockers.resolve, acme.pk, resolution, actor="a", note="up"),
                partial(hand_on, acme.pk, activity_id),
            )
        )
        engine.drain()

        heir = child(acme, activity_id, LinkKind.REASSIGNED_FROM)
        assert (engine.status(acme, activity_id), engine.status(acme, heir.pk)) == (
            "reassigned",
            "in_progress",
        )
        assert engine.status(acme, resolution) in ("done", "cancelled")


def test_two_operators_who_hand_on_at_once_make_one_heir(engine: Engine, acme: Tenant) -> None:
    for _ in range(TRIES):
        activity_id, _ = at_work(engine, acme)

        outcomes = at_once(
            *[
                partial(reassignment.reassign, acme.pk, activity_id, actor=role, reason="x", agent_role=role)
                for role in ("dev", "seo", "qa")
            ]
        )

        (heir,) = won(outcomes)
        assert child(acme, activity_id).pk == heir.pk


def test_a_task_that_is_completed_and_handed_on_at_once_is_one_of_both(engine: Engine, acme: Tenant) -> None:
    for _ in range(TRIES):
        parent, agent = at_work(engine, acme)
        task = agent.used("create_subtask", name="Read it", human_role="editor", blocking=True)

        outcomes = at_once(
            partial(people.complete, acme.pk, task, actor="a", output={"content": "read"}),
            partial(reassignment.reassign, acme.pk, task, actor="b", reason="x", human_role="boss"),
            partial(cancellation.cancel, acme.pk, task, actor="c"),
        )

        (first,) = won(outcomes)
        if engine.status(acme, task) == "reassigned":
            assert engine.status(acme, parent) == "awaiting_subtask"
            people.complete(acme.pk, first.pk, actor="d")
        assert woken(engine, parent).wake_reason == "subtask_completed"


# Agents against people


def test_a_callback_and_a_cancellation_at_once_end_in_one_way(engine: Engine, acme: Tenant) -> None:
    for _ in range(TRIES):
        activity_id, agent = at_work(engine, acme)

        answer, cancelled = at_once(
            partial(agent.post, "complete", OUTPUT),
            partial(cancellation.cancel, acme.pk, activity_id, actor="c"),
        )

        if answer.status_code == 200:
            assert isinstance(cancelled, ActivityError)
            assert engine.status(acme, activity_id) == "done"
        else:
            assert (answer.status_code, answer.json()["stop"]) == (409, True)
            assert engine.status(acme, activity_id) == "cancelled"


@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_a_subtask_that_ends_while_its_parent_is_cancelled_wakes_nobody_and_leaves_nothing_open(
    engine: Engine, acme: Tenant, verb: str
) -> None:
    body = OUTPUT if verb == "complete" else {"error": {"message": "x", "retryable": False}}
    for _ in range(TRIES):
        parent, subtask = waiting(engine, acme)
        agent = caller_of(engine, subtask)

        answers = at_once(
            partial(agent.post, verb, body), partial(cancellation.cancel, acme.pk, parent, actor="c")
        )
        engine.drain()

        assert answers[0].status_code in (200, 409)
        assert engine.status(acme, parent) == "cancelled"
        assert engine.status(acme, subtask) in ("done", "cancelled")
        assert len(calls_of(engine, parent)) == 1
        with tenant_scope(acme.pk):
            assert not ActivityRun.objects.filter(status="running").exists()
            assert not DeadLetter.objects.filter(state="open").exists()


def test_a_worker_that_ends_a_subtask_locks_its_parent_first(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held up where it wakes the parent, it must not hold what a cancellation of the parent waits for, and only then want the parent."""
    engine.agent.behaviour = lambda request: (
        Completed(Output("x")) if request.agent_role == "dev" else Accepted()
    )
    parent, agent = at_work(engine, acme)
    subtask = agent.used("create_subtask", **PART)
    message, ending = engine.take(), Event()
    assert message is not None
    origin_of = families.origin_of

    def held_up(tenant_id: UUID, activity: Any) -> Any:
        if getattr(activity, "status", None) == "done":
            ending.set()
            eventually(somebody_waits_for_a_lock)
        return origin_of(tenant_id, activity)

    def cancel() -> Activity:
        assert ending.wait(10)
        return cancellation.cancel(acme.pk, parent, actor="c")

    monkeypatch.setattr(families, "origin_of", held_up)
    outcomes = at_once(partial(tasks.run, **message), cancel)
    engine.drain()

    assert not any(isinstance(outcome, Exception) for outcome in outcomes), outcomes
    assert (engine.status(acme, parent), engine.status(acme, subtask)) == ("cancelled", "done")
    assert len(calls_of(engine, parent)) == 1


def test_two_parts_that_end_at_once_wake_their_parent_once_and_by_the_right_one(
    engine: Engine, acme: Tenant
) -> None:
    for _ in range(TRIES):
        parent, agent = at_work(engine, acme)
        idle = agent.used("create_subtask", **{**PART, "blocking": False})
        subtask = agent.used("create_subtask", **PART)
        engine.drain()

        answers = at_once(
            *[partial(caller_of(engine, one).post, "complete", OUTPUT) for one in (idle, subtask)]
        )

        assert statuses(answers) == [200, 200]
        assert woken(engine, parent).wakes[0]["subtask"] == str(subtask)
        assert len(wakes_of(acme, parent)) == 2


def test_a_tree_that_grows_while_it_is_cancelled_is_cancelled_in_full(engine: Engine, acme: Tenant) -> None:
    for _ in range(TRIES):
        parent, agent = at_work(engine, acme)
        for number in range(3):
            agent.used("create_subtask", **{**PART, "name": str(number), "blocking": False})
        engine.drain()
        parts = [caller_of(engine, one.pk) for one in children(acme, parent)]

        answers = at_once(
            partial(cancellation.cancel, acme.pk, parent, actor="c"),
            *[partial(part.use, "create_subtask", **PART) for part in parts],
            *[partial(part.use, "reassign_task", agent_role="seo", reason="x") for part in parts],
        )
        engine.drain()

        assert set(statuses(answers[1:])) <= {201, 409}
        with tenant_scope(acme.pk):
            left = Activity.objects.exclude(status__in=families.ENDED)
            assert list(left.values_list("name", "status")) == []


def test_a_blocker_of_a_subtask_and_the_end_of_its_parent_at_once_leave_no_question(
    engine: Engine, acme: Tenant
) -> None:
    for _ in range(TRIES):
        parent, subtask = waiting(engine, acme)
        agent = caller_of(engine, subtask)

        at_once(
            partial(agent.use, "report_blocker", **DOWN),
            partial(cancellation.cancel, acme.pk, parent, actor="c"),
        )

        assert engine.status(acme, subtask) == "cancelled"
        assert all(one.status == "cancelled" for one in children(acme, subtask))


def test_handing_a_step_on_while_its_run_is_cancelled_leaves_nothing_at_work(
    engine: Engine, acme: Tenant
) -> None:
    versions.save(
        acme.pk, {"key": "one", "name": "One", "steps": [{"id": "a", "agent_role": "qa"}]}, actor="test"
    )
    for _ in range(TRIES):
        run = start_run(acme.pk, "one", NewRun(), actor="test")
        engine.drain()
        agent = Caller(engine.agent.calls[-1])

        at_once(
            partial(run_cancellation.cancel_run, acme.pk, run.pk, actor="c"),
            partial(agent.use, "reassign_task", agent_role="dev", reason="x"),
        )
        engine.drain()

        with tenant_scope(acme.pk):
            left = Activity.objects.filter(pipeline_run_id=run.pk).exclude(status__in=families.ENDED)
            assert not left.exists()
            assert StepRun.objects.get(run_id=run.pk).activity_id is not None


# The end of a call against what it was put aside for


def test_a_resolution_between_the_end_of_the_call_and_the_release_of_its_slot_is_not_missed(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offer comes while the slot is held, and changes nothing."""
    from activities import dispatch

    turned_over = dispatch._turned_over

    def resolved_meanwhile(grant: Any) -> Any:
        released = turned_over(grant)
        at_once(partial(blockers.resolve, acme.pk, grant.activity_id, actor="a", note="up"))
        assert relay.flush()
        return released

    def behaviour(request: AgentRequest) -> AgentResult:
        if request.wake_reason == "new_task":
            at_once(partial(Caller(request).used, "report_blocker", **DOWN))
        return Accepted()

    engine.agent.behaviour = behaviour
    monkeypatch.setattr(dispatch, "_turned_over", resolved_meanwhile)
    (activity_id,) = engine.submit(acme)
    assert engine.deliver()
    monkeypatch.undo()

    assert engine.messages() == 1
    assert woken(engine, activity_id).wake_reason == "unblocked"


def test_the_api_answers_conflicts_and_never_worse_when_all_act_at_once(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("operator")
    for _ in range(TRIES):
        parent, subtask = waiting(engine, acme)
        resolution = caller_of(engine, subtask).used("report_blocker", **DOWN)

        answers = at_once(
            partial(client.post, of(resolution, "resolve"), {"note": "up"}),
            partial(client.post, of(subtask, "resolve"), {"note": "up"}),
            partial(client.post, of(subtask, "cancel")),
            partial(client.post, of(parent, "cancel")),
            partial(client.post, of(subtask, "reassign"), {"agent_role": "seo", "reason": "x"}),
            partial(client.post, of(parent, "reassign"), {"agent_role": "seo", "reason": "x"}),
        )
        engine.drain()

        assert set(statuses(answers)) <= {200, 201, 409}
        assert engine.status(acme, parent) in ("cancelled", "reassigned")
        assert engine.status(acme, resolution) in ("done", "cancelled")
