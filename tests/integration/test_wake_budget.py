"""Wakes: equal ones merge, several lead to one run, and an activity that makes no progress is stopped."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from threading import Event
from typing import Any
from uuid import UUID

import pytest
from django.db import connections

from activities import activity_tree, cancellation, dead_letters, outbox, relay, suspension, transitions
from activities.exceptions import RunSuperseded
from activities.human_tasks import approvals, decisions
from activities.models import Activity, Alert, DeadLetter
from activities.run_tokens import RunToken
from activities.states import WakeReason
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output, Usage
from agents.exceptions import PermanentAgentError, RetryableAgentError
from tenants.context import OWNER, tenant_scope
from tenants.models import Tenant
from tests.accepted_work import (
    AgentClient,
    accept_and_create,
    accept_work,
    children,
    is_called_again,
    wakes_of,
    wakes_per_call,
)
from tests.engine import Engine, eventually, simultaneously, somebody_waits_for_a_lock
from tests.open_questions import DIRECTION

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")

QUESTION = {"question": "Good?"}


def record_wake(engine: Engine, tenant: Tenant, activity_id: UUID, reason: str, **payload: Any) -> UUID:
    activity = engine.get(tenant, activity_id)
    with tenant_scope(tenant.pk):
        return outbox.record(activity, reason, payload=payload)


def keeps_asking(usage: Usage | None = None) -> Callable[[AgentRequest], AgentResult]:
    """An agent that answers each start by asking for another review."""

    def ask_again(request: AgentRequest) -> AgentResult:
        AgentClient(request).create_with("request_human_review", **QUESTION)
        return Completed(Output(content="?"), usage=usage)

    return ask_again


def answer_reviews(engine: Engine, tenant: Tenant, activity_id: UUID, times: int = 1) -> None:
    for _ in range(times):
        review = children(tenant, activity_id, "review")[-1]
        decisions.reject(tenant.pk, review.pk, actor="Ann", notes="Once more.")
        engine.drain()


# Merging


def test_a_hundred_equal_wakes_are_one_row_and_one_run(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)

    ids = simultaneously(*[lambda: record_wake(engine, acme, activity_id, "unblocked", note="x")] * 20)
    ids += [record_wake(engine, acme, activity_id, "unblocked", note="x") for _ in range(80)]
    engine.drain()

    assert len(set(ids)) == 1
    assert [(wake.reason, wake.merged) for wake in wakes_of(acme, activity_id)] == [
        ("new_task", 0),
        ("unblocked", 99),
    ]
    assert [wake["reason"] for wake in wakes_per_call(engine, activity_id)[0]] == ["new_task", "unblocked"]
    assert len(engine.agent.calls) == 1


def test_three_different_wakes_during_a_run_lead_to_one_more_run_that_carries_all_three(
    engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = accept_work(engine, acme)
    for number, reason in enumerate(("unblocked", "subtask_completed", "review_feedback")):
        record_wake(engine, acme, activity_id, reason, number=number)
        record_wake(engine, acme, activity_id, reason, number=number)
    relay.flush()
    assert engine.messages() == 0, "no second run at the same time"

    agent.post("complete", {"output": {"content": "x"}})
    engine.drain()

    _, second = wakes_per_call(engine, activity_id)
    assert [wake["reason"] for wake in second] == ["unblocked", "subtask_completed", "review_feedback"]
    assert [wake["number"] for wake in second] == [0, 1, 2]
    assert engine.messages() == 0


def test_wakes_of_a_failed_attempt_are_part_of_the_next_attempt(engine: Engine, acme: Tenant) -> None:
    def fail(request: AgentRequest) -> AgentResult:
        raise RetryableAgentError("not yet")

    engine.agent.behaviour = fail
    (activity_id,) = engine.submit(acme, retry={"base_seconds": 0})
    record_wake(engine, acme, activity_id, "unblocked")
    engine.deliver()
    record_wake(engine, acme, activity_id, "review_feedback")
    engine.agent.behaviour = lambda request: Accepted()

    engine.make_due(acme)
    engine.drain()

    assert [wake["reason"] for wake in wakes_per_call(engine, activity_id)[-1]] == [
        "new_task",
        "unblocked",
        "review_feedback",
    ]


def test_a_wake_that_is_recorded_while_the_claim_waits_for_the_activity_is_part_of_a_retry(
    engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)
    relay.flush()
    locked = Event()

    def fail(request: AgentRequest) -> AgentResult:
        raise PermanentAgentError("no")

    def record_meanwhile() -> None:
        with tenant_scope(acme.pk):
            activity = activity_tree.lock(acme.pk, [activity_id])[activity_id]
            locked.set()
            eventually(somebody_waits_for_a_lock)
            outbox.record(activity, "unblocked")

    def deliver() -> bool:
        assert locked.wait(60)
        return engine.deliver()

    engine.agent.behaviour = fail
    assert simultaneously(record_meanwhile, deliver) == [None, True]
    assert engine.status(acme, activity_id) == "failed"
    cancellation.retry(acme.pk, activity_id, actor="Ann")
    engine.drain()

    assert [[wake["reason"] for wake in wakes] for wakes in wakes_per_call(engine, activity_id)] == [
        ["new_task"],
        ["new_task", "unblocked"],
    ]


def test_a_wake_that_is_repeated_during_its_run_reaches_the_next_run_once(
    engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme, retry={"base_seconds": 0})
    record_wake(engine, acme, activity_id, "unblocked", note="x")

    def fail(request: AgentRequest) -> AgentResult:
        record_wake(engine, acme, activity_id, "unblocked", note="x")
        raise RetryableAgentError("not yet")

    engine.agent.behaviour = fail
    engine.deliver()
    engine.agent.behaviour = lambda request: Accepted()
    engine.make_due(acme)
    engine.drain()

    assert sorted(wake["reason"] for wake in wakes_per_call(engine, activity_id)[-1]) == [
        "new_task",
        "unblocked",
    ]


def test_a_retry_of_failed_work_carries_the_wakes_of_the_failed_run_and_later_ones(
    engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = accept_work(engine, acme, max_attempts=1)
    record_wake(engine, acme, activity_id, "unblocked")
    agent.post("complete", {"output": {"content": "x"}})
    engine.drain()
    record_wake(engine, acme, activity_id, "review_feedback", number=1)
    AgentClient(engine.agent.calls[-1]).post("fail", {"error": {"message": "no", "retryable": False}})

    cancellation.retry(acme.pk, activity_id, actor="Ann")
    engine.drain()

    assert [wake["reason"] for wake in wakes_per_call(engine, activity_id)[-1]] == [
        "unblocked",
        "review_feedback",
    ]


# Delays


def in_hours(hours: int) -> datetime:
    return datetime.now(UTC) + timedelta(hours=hours)


def delay(engine: Engine, tenant: Tenant, activity_id: UUID, hours: int) -> datetime:
    """Record a wake that is due in so many hours."""
    activity, due_at = engine.get(tenant, activity_id), in_hours(hours)
    with tenant_scope(tenant.pk):
        outbox.record(activity, "unblocked", payload={"hours": hours}, due_at=due_at)
    return due_at


def test_a_new_wake_waits_for_the_last_delay_of_its_activity(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)

    first, last, _ = (delay(engine, acme, activity_id, hours) for hours in (1, 3, 2))
    record_wake(engine, acme, activity_id, "unblocked", note="x")

    assert [wake.due_at for wake in wakes_of(acme, activity_id)] == [None, first, last, last, last]


def test_a_retry_of_a_run_does_not_bring_a_later_wake_forward(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    later = delay(engine, acme, activity_id, 1)

    agent.post("fail", {"error": {"message": "x", "retryable": True}})

    of_the_run, delayed = wakes_of(acme, activity_id)
    assert of_the_run.due_at < delayed.due_at == later  # type: ignore[operator]


def test_work_that_is_retried_after_its_failure_does_not_wait_for_a_date_that_the_failure_ended(
    engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = accept_work(engine, acme)
    delay(engine, acme, activity_id, 1)
    agent.post("fail", {"error": {"message": "x", "retryable": False}})

    cancellation.retry(acme.pk, activity_id, actor="ann")

    pending = [wake for wake in wakes_of(acme, activity_id) if wake.state == "pending"]
    assert {wake.due_at for wake in pending} == {None}
    assert is_called_again(engine, activity_id)


def test_a_superseded_run_returns_and_delays_no_wake(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    record_wake(engine, acme, activity_id, "unblocked", note="x")
    before = [(wake.state, wake.due_at) for wake in wakes_of(acme, activity_id)]

    with tenant_scope(acme.pk):
        superseded = RunToken(acme.pk, activity_id, agent.run_id, engine.get(acme, activity_id).fence - 1)
        with pytest.raises(RunSuperseded):
            transitions.requeue(
                superseded, run_status="failed", error=None, cause="retry", due_at=in_hours(1)
            )

    assert [(wake.state, wake.due_at) for wake in wakes_of(acme, activity_id)] == before


# What never runs


@pytest.mark.parametrize("end", ["done", "cancelled", "failed"])
def test_an_ended_activity_never_runs_again_whatever_wakes_it(engine: Engine, acme: Tenant, end: str) -> None:
    activity_id, agent = accept_work(engine, acme, max_attempts=1)
    if end == "done":
        agent.post("complete", {"output": {"content": "x"}})
    elif end == "failed":
        agent.post("fail", {"error": {"message": "no", "retryable": False}})
    else:
        cancellation.cancel(acme.pk, activity_id, actor="Ann")
    calls = len(engine.agent.calls)

    record_wake(engine, acme, activity_id, "unblocked")
    engine.drain()

    assert engine.status(acme, activity_id) == end
    assert len(engine.agent.calls) == calls


def test_a_run_never_wakes_its_own_activity(engine: Engine, acme: Tenant) -> None:
    activity_id, _ = accept_and_create(engine, acme, "request_human_review", QUESTION)
    (run,) = engine.runs(acme, activity_id)

    with tenant_scope(acme.pk):
        activity = Activity.objects.get(pk=activity_id)
        woken = outbox.wake(activity, WakeReason.REVIEW_FEEDBACK, payload={}, actor="run", run_id=run.pk)
    assert woken is False

    assert engine.status(acme, activity_id) == "awaiting_review"
    assert len(wakes_of(acme, activity_id)) == 1


def test_a_wake_for_another_wait_does_not_wake_the_activity(engine: Engine, acme: Tenant) -> None:
    activity_id, _ = accept_and_create(engine, acme, "request_human_review", QUESTION)

    with tenant_scope(acme.pk):
        activity = Activity.objects.get(pk=activity_id)
        woken = outbox.wake(activity, WakeReason.UNBLOCKED, payload={}, actor="Ann")

    assert (woken, engine.status(acme, activity_id)) == (False, "awaiting_review")


# The budget


def test_the_tenth_wake_without_progress_stops_the_activity_and_tells_people_its_cost(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = keeps_asking(Usage(input_tokens=1, output_tokens=1, cost_usd=Decimal("0.25")))
    (activity_id,) = engine.submit(acme)
    engine.drain()

    answer_reviews(engine, acme, activity_id, 9)
    assert engine.status(acme, activity_id) == "awaiting_review"
    answer_reviews(engine, acme, activity_id)
    dead_letters.handle_waiting()

    stopped = engine.get(acme, activity_id)
    assert (stopped.status, stopped.error["code"]) == ("needs_review", "wake_budget")
    assert len(engine.agent.calls) == 10
    with tenant_scope(acme.pk):
        letter = DeadLetter.objects.get(activity_id=activity_id)
        alert = Alert.objects.get(activity_id=activity_id)
    assert (letter.reason, letter.state, str(letter.cost_usd)) == ("wake_budget", "open", "2.500000")
    assert (alert.kind, alert.severity, alert.facts["cost_usd"]) == ("wake_budget", "critical", "2.500000")
    assert "cost so far is $2.5." in alert.body
    (escalation,) = children(acme, activity_id, "escalation")
    assert (escalation.human_role, escalation.status) == ("operator", "created")


def test_stopped_work_whose_blocker_was_resolved_has_no_blocker(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_WAKE_BUDGET = 1
    blocker = {"type": "api_outage", "message": "It is down."}
    activity_id, _ = accept_and_create(engine, acme, "report_blocker", blocker)

    suspension.resolve_blocker(acme.pk, activity_id, actor="Ann", note="It is up.")

    stopped = engine.get(acme, activity_id)
    assert stopped.status == "needs_review"
    assert (stopped.blocker_type, stopped.blocker_message, stopped.blocked_at) == (None, None, None)


def test_a_retry_by_an_operator_starts_with_the_last_answer_and_a_new_budget(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_WAKE_BUDGET = 3
    engine.agent.behaviour = keeps_asking()
    (activity_id,) = engine.submit(acme)
    engine.drain()
    answer_reviews(engine, acme, activity_id, 3)

    cancellation.retry(acme.pk, activity_id, actor="Ann")
    engine.drain()
    assert engine.agent.calls[-1].wakes[-1]["reviewer_feedback"] == "Once more."
    answer_reviews(engine, acme, activity_id, 2)

    assert engine.status(acme, activity_id) == "awaiting_review"
    answer_reviews(engine, acme, activity_id)
    assert engine.status(acme, activity_id) == "needs_review"


def test_a_retry_does_not_repeat_what_the_agent_was_told_before_it_suspended_the_work(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_WAKE_BUDGET = 1
    blocker = {"type": "credentials", "message": "expired"}
    activity_id, resolution = accept_and_create(engine, acme, "report_blocker", blocker)
    suspension.resolve_blocker(acme.pk, resolution, actor="Ann", note="renewed")
    assert engine.status(acme, activity_id) == "needs_review"

    cancellation.retry(acme.pk, activity_id, actor="Ann")
    engine.drain()

    first, second = wakes_per_call(engine, activity_id)
    assert [wake["reason"] for wake in (*first, *second)] == ["new_task", "unblocked"]


def test_the_new_budget_of_a_retry_survives_a_failed_attempt(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_WAKE_BUDGET = 3
    engine.agent.behaviour = keeps_asking()
    (activity_id,) = engine.submit(acme, retry={"base_seconds": 0})
    engine.drain()
    answer_reviews(engine, acme, activity_id, 3)

    def fail(request: AgentRequest) -> AgentResult:
        raise RetryableAgentError("not yet")

    engine.agent.behaviour = fail
    cancellation.retry(acme.pk, activity_id, actor="Ann")
    engine.deliver()
    engine.agent.behaviour = keeps_asking()
    engine.make_due(acme)
    engine.drain()

    answer_reviews(engine, acme, activity_id)

    assert engine.status(acme, activity_id) == "awaiting_review"


def test_wakes_from_before_the_window_do_not_count(engine: Engine, acme: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_WAKE_BUDGET = 3
    engine.agent.behaviour = keeps_asking()
    (activity_id,) = engine.submit(acme)
    engine.drain()
    answer_reviews(engine, acme, activity_id, 2)
    with connections[OWNER].cursor() as cursor:
        cursor.execute("SET row_security = off")
        cursor.execute(
            "UPDATE activities_activityevent SET at = at - interval '601 seconds' WHERE activity_id = %s AND verb = 'wake'",
            [activity_id],
        )

    answer_reviews(engine, acme, activity_id)

    assert engine.status(acme, activity_id) == "awaiting_review"


def test_a_completed_subtask_is_progress_and_a_failed_one_is_not(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_WAKE_BUDGET, settings.ORCHESTRATOR_SUBTASKS_PER_ACTIVITY = 3, 20

    def delegate(request: AgentRequest) -> AgentResult:
        if request.agent_role == "dev":
            if request.params.get("breaks"):
                raise PermanentAgentError("no")
            return Completed(Output(content="x"))
        wake = len(wakes_per_call(engine, request.activity_id))
        part = {"name": f"part {wake}", "agent_role": "dev", "blocking": True, "params": {"breaks": wake > 6}}
        AgentClient(request).create_with("create_subtask", **part)
        return Completed(Output(content="?"))

    engine.agent.behaviour = delegate
    (activity_id,) = engine.submit(acme)
    engine.drain()

    assert engine.status(acme, activity_id) == "needs_review"
    outcomes = [wakes[-1].get("subtask_outcome") for wakes in wakes_per_call(engine, activity_id)]
    assert outcomes == [None, *["done"] * 6, "failed", "failed"]


def test_an_accepted_result_is_progress(engine: Engine, acme: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_WAKE_BUDGET = 3
    activity_id, review = accept_and_create(engine, acme, "request_human_review", QUESTION)
    for _ in range(2):
        decisions.reject(acme.pk, review, actor="Ann", notes="x")
        engine.drain()
        agent = AgentClient(engine.agent.calls[-1])
        record_wake(engine, acme, activity_id, "unblocked")
        assert agent.post("complete", {"output": {"content": "x"}}).status_code == 200
        engine.drain()
        review = AgentClient(engine.agent.calls[-1]).create_with("request_human_review", **QUESTION)

    decisions.reject(acme.pk, review, actor="Ann", notes="x")

    assert engine.status(acme, activity_id) == "created"


def test_an_activity_without_budget_does_not_stop_others_that_the_same_decision_wakes(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_WAKE_BUDGET = 2
    engine.agent.behaviour = keeps_asking()
    (stopped,) = engine.submit(acme)
    engine.drain()
    answer_reviews(engine, acme, stopped)
    decisions.reject(acme.pk, children(acme, stopped, "review")[-1].pk, actor="Ann", notes="x")
    engine.agent.behaviour = lambda request: Accepted()
    assert engine.status(acme, stopped) == "needs_review"
    cancellation.retry(acme.pk, stopped, actor="Ann")
    engine.drain()
    first = AgentClient(engine.agent.calls[-1]).create_with("create_approval", **DIRECTION)
    decisions.reject(acme.pk, first, actor="Ann", notes="x")
    engine.drain()
    (fresh,) = engine.submit(acme, "dev")
    both = AgentClient(engine.agent.calls[-1]).create_with(
        "create_approval", **DIRECTION, activity_ids=[str(stopped)]
    )
    with tenant_scope(acme.pk):
        approvals.link(acme.pk, both, [engine.get(acme, fresh)], actor="op")

    decisions.approve(acme.pk, both, actor="Ann")

    assert engine.status(acme, stopped) == "needs_review"
    assert engine.status(acme, fresh) == "created"
