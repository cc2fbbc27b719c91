"""Races of people and due times: decisions about one question, votes, withdrawals, and actions on the same dead letters."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from activities import cancellation, dead_letters, relay
from activities.decision_rules import Voter
from activities.exceptions import AlreadyDecided, AlreadyVoted, TransitionRefused
from activities.execution.results import Answer, record_completed, record_completed_together
from activities.human_tasks import deadlines, decisions
from activities.models import Activity, Alert, DeadLetter, Vote, Wake
from activities.run_tokens import RunToken
from agents.contracts import Accepted, Completed, Output
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import accept_and_create, children, wakes_per_call
from tests.engine import Engine, eventually, in_another_thread, simultaneously, somebody_waits_for_a_lock
from tests.failed_work import submit_failing
from tests.flows import Flow, step
from tests.open_questions import DIRECTION, links_of, open_approval

pytestmark = [pytest.mark.concurrency, pytest.mark.usefixtures("one_at_a_time")]


def voter(name: str) -> Voter:
    return Voter(name, identity=f"user:{name}")


def kinds_of(outcomes: list[Any]) -> Counter[str]:
    return Counter(type(outcome).__name__ for outcome in outcomes)


# Decisions


def test_one_of_twenty_simultaneous_decisions_counts_and_wakes_each_activity_once(
    engine: Engine, acme: Tenant
) -> None:
    ids = engine.submit(acme, count=10)
    approval = open_approval(acme, ids)
    yes = [partial(decisions.approve, acme.pk, approval, actor=f"yes {n}") for n in range(10)]
    no = [partial(decisions.reject, acme.pk, approval, actor=f"no {n}", notes="no") for n in range(10)]

    outcomes = simultaneously(*yes, *no)
    engine.drain()

    assert kinds_of(outcomes) == {"Activity": 1, "AlreadyDecided": 19}
    (won,) = [outcome for outcome in outcomes if isinstance(outcome, Activity)]
    assert all(won.decided_by in str(refusal) for refusal in outcomes if isinstance(refusal, AlreadyDecided))
    assert Counter(call.activity_id for call in engine.agent.calls) == Counter(ids)


def test_over_http_losing_deciders_learn_who_decided_what_and_when(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    approval = open_approval(acme, engine.submit(acme))
    clients = [api("reviewer", name=f"r{number}") for number in range(20)]
    requests = [
        partial(
            client.post, f"/api/v1/approvals/{approval}/decide/",
            {"decision": ("approved", "rejected")[number % 2], "notes": "x"},
        )
        for number, client in enumerate(clients)
    ]  # fmt: skip

    answers = simultaneously(*requests)

    assert Counter(answer.status_code for answer in answers) == {200: 1, 409: 19}
    (won,) = [answer.json() for answer in answers if answer.status_code == 200]
    lost = [answer.json() for answer in answers if answer.status_code == 409]
    assert {problem["code"] for problem in lost} == {"already_decided"}
    assert {(p["decided_by"], p["decision"], p["decided_at"]) for p in lost} == {
        (won["decided_by"], won["status"], won["decided_at"])
    }


def test_a_decision_at_its_due_time_has_one_outcome(engine: Engine, acme: Tenant) -> None:
    for _ in range(8):
        (activity_id,) = engine.submit(acme)
        approval = open_approval(acme, [activity_id], due_seconds=60, on_timeout="reject")
        late = engine.get(acme, approval).created_at + timedelta(seconds=60)

        decided, passed = simultaneously(
            partial(decisions.approve, acme.pk, approval, actor="Ann"), partial(deadlines.pass_due, late)
        )
        engine.drain()

        item = engine.get(acme, approval)
        assert passed == 1
        if item.decided_by == "deadline":
            assert isinstance(decided, AlreadyDecided)
            assert "deadline rejected this" in str(decided)
        else:
            assert (item.decided_by, item.status) == ("Ann", "approved")
        assert len(wakes_per_call(engine, activity_id)) == 1
        with tenant_scope(acme.pk):
            alerts = Alert.objects.filter(activity_id=approval, kind="expired").count()
        assert alerts == (1 if item.decided_by == "deadline" else 0)


@pytest.mark.parametrize("together", [False, True])
def test_a_decision_about_work_that_ends_at_the_same_moment_reaches_its_agent(
    engine: Engine, acme: Tenant, together: bool
) -> None:
    """The result is recorded while the decision is not committed yet."""
    ids = engine.submit(acme, count=2 if together else 1)
    engine.agent.behaviour = lambda request: Accepted()
    engine.drain()
    engine.agent.behaviour = lambda request: Completed(Output(content="again"))
    answers = [
        Answer(
            RunToken(acme.pk, run.activity_id, run.pk, run.fence), Completed(Output(content="x")), nullcontext
        )
        for activity_id in ids
        for run in engine.runs(acme, activity_id)
    ]
    approval = open_approval(acme, ids[:1])

    def record() -> None:
        accepted = record_completed_together(answers) if together else set()
        for run, result, _ in answers:
            if run.run_id not in accepted:
                record_completed(run, result, needs_approval=False)

    with ThreadPoolExecutor(1) as pool:
        with tenant_scope(acme.pk):
            decisions.approve(acme.pk, approval, actor="Ann")
            recording = pool.submit(in_another_thread, record)
            in_another_thread(lambda: eventually(lambda: somebody_waits_for_a_lock() or recording.done()))
        recording.result()
    assert engine.status(acme, ids[0]) == "created"
    engine.drain()

    assert [engine.status(acme, activity_id) for activity_id in ids] == ["done"] * len(ids)
    assert [wakes[-1]["reason"] for wakes in wakes_per_call(engine, ids[0])] == [
        "new_task",
        "review_approved",
    ]


def test_a_decision_and_a_simultaneous_withdrawal_wake_once(engine: Engine, acme: Tenant) -> None:
    answer = engine.agent.behaviour
    engine.agent.behaviour = lambda request: (
        Accepted() if request.wake_reason == "new_task" else answer(request)
    )
    for _ in range(6):
        activity_id, approval = accept_and_create(engine, acme, "create_approval", DIRECTION)

        outcomes = simultaneously(
            partial(decisions.approve, acme.pk, approval, actor="Ann"),
            partial(decisions.withdraw, acme.pk, approval, by=voter("Bob")),
        )
        engine.drain()

        assert kinds_of(outcomes) == {"Activity": 1, "AlreadyDecided": 1}
        assert len(wakes_per_call(engine, activity_id)) == 2


def test_a_decision_during_the_cancellation_of_its_activities_leaves_nothing_waiting(
    engine: Engine, acme: Tenant
) -> None:
    for _ in range(6):
        ids = engine.submit(acme, count=4)
        approval = open_approval(acme, ids)

        outcomes = simultaneously(
            partial(decisions.approve, acme.pk, approval, actor="Ann"),
            *[partial(cancellation.cancel, acme.pk, activity_id, actor="Bob") for activity_id in ids[:2]],
        )

        assert all(isinstance(outcome, Activity) for outcome in outcomes), outcomes
        assert {state for state, _ in links_of(acme, approval).values()} <= {"woken", "skipped"}
        assert engine.status(acme, approval) == "approved"
        engine.drain()
        assert [engine.status(acme, activity_id) for activity_id in ids] == ["cancelled"] * 2 + ["done"] * 2


def test_an_approval_is_closed_when_its_last_two_activities_leave_at_once(
    engine: Engine, acme: Tenant
) -> None:
    for _ in range(8):
        ids = engine.submit(acme, count=2)
        approval = open_approval(acme, ids)

        outcomes = simultaneously(*[partial(cancellation.cancel, acme.pk, one, actor="Ann") for one in ids])

        assert kinds_of(outcomes) == {"Activity": 2}, outcomes
        assert engine.status(acme, approval) == "cancelled"


def test_simultaneous_decisions_about_the_same_activities_never_deadlock(
    engine: Engine, acme: Tenant
) -> None:
    for _ in range(5):
        ids = engine.submit(acme, count=6)
        pair = [open_approval(acme, ids), open_approval(acme, ids[::-1])]

        outcomes = simultaneously(*[partial(decisions.approve, acme.pk, one, actor="Ann") for one in pair])
        engine.drain()

        assert kinds_of(outcomes) == {"Activity": 2}, outcomes
        states = [Counter(state for state, _ in links_of(acme, one).values()) for one in pair]
        assert states == [{"woken": 6}, {"woken": 6}]
        assert {len(calls) for calls in (wakes_per_call(engine, one) for one in ids)} == {1}, "each ran once"
        assert {engine.status(acme, one) for one in ids} == {"done"}


def test_bulk_decisions_with_the_same_items_in_opposite_order_decide_each_once(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    gates = engine.submit(acme, count=10, requires_approval=True)
    engine.drain()
    items = [{"id": str(one), "decision": "approved"} for one in gates]
    clients = [api("reviewer", name=f"r{number}") for number in range(4)]

    answers = simultaneously(
        *[
            partial(client.post, "/api/v1/inbox/decide/", {"items": items if number % 2 else items[::-1]})
            for number, client in enumerate(clients)
        ]
    )

    assert [answer.status_code for answer in answers] == [200] * 4
    results = [result for answer in answers for result in answer.json()["results"]]
    assert Counter(result["ok"] for result in results) == {True: 10, False: 30}
    assert {result["problem"]["code"] for result in results if not result["ok"]} == {"already_decided"}


# Votes


def test_simultaneous_votes_are_all_counted_and_decide_once(engine: Engine, acme: Tenant) -> None:
    for _ in range(4):
        (activity_id,) = engine.submit(acme)
        approval = open_approval(acme, [activity_id], quorum=3, voters=5)

        outcomes = simultaneously(
            *[partial(decisions.approve, acme.pk, approval, actor=voter(f"v{n}")) for n in range(5)]
        )
        engine.drain()

        assert kinds_of(outcomes) == {"Activity": 3, "AlreadyDecided": 2}
        with tenant_scope(acme.pk):
            assert Vote.objects.filter(activity_id=approval).count() == 3
        assert engine.status(acme, approval) == "approved"
        assert len(wakes_per_call(engine, activity_id)) == 1


def test_a_person_who_votes_twice_at_once_has_one_vote(engine: Engine, acme: Tenant) -> None:
    approval = open_approval(acme, quorum=2)

    outcomes = simultaneously(*[partial(decisions.approve, acme.pk, approval, actor=voter("Ann"))] * 6)

    assert kinds_of(outcomes) == {"Activity": 1, AlreadyVoted.__name__: 5}
    assert engine.status(acme, approval) == "in_progress"


# Dead letters


def replay(acme: Tenant, ids: list[UUID]) -> Any:
    with tenant_scope(acme.pk):
        return dead_letters.replay(acme.pk, DeadLetter.objects.filter(activity_id__in=ids), actor="Ann")


def dismiss(acme: Tenant, ids: list[UUID]) -> Any:
    with tenant_scope(acme.pk):
        chosen = DeadLetter.objects.filter(activity_id__in=ids)
        return dead_letters.dismiss(acme.pk, chosen, actor="Ann", reason="not wanted")


def test_simultaneous_handlers_report_each_failure_once(engine: Engine, acme: Tenant) -> None:
    ids = submit_failing(engine, acme, count=6)

    outcomes = simultaneously(*[dead_letters.handle_waiting] * 4)

    assert sum(outcomes) == 6
    for activity_id in ids:
        assert engine.status(acme, activity_id) == "needs_review"
        assert len(children(acme, activity_id, "escalation")) == 1
    with tenant_scope(acme.pk):
        assert Counter(Alert.objects.values_list("activity_id", flat=True)) == Counter(ids)


def test_simultaneous_replays_start_each_activity_once(engine: Engine, acme: Tenant) -> None:
    ids = submit_failing(engine, acme, count=12)
    dead_letters.handle_waiting()

    outcomes = simultaneously(
        partial(replay, acme, ids), partial(replay, acme, ids[::-1]), partial(replay, acme, ids[4:]),
        partial(replay, acme, ids[:8]),
    )  # fmt: skip
    engine.drain()

    assert sum(outcome.count for outcome in outcomes) == 12
    assert Counter(call.activity_id for call in engine.agent.calls) == Counter(ids)
    with tenant_scope(acme.pk):
        assert Wake.objects.filter(cause="replay").count() == 12


def test_a_simultaneous_replay_dismissal_retry_and_handler_give_each_dead_letter_one_end(
    engine: Engine, acme: Tenant
) -> None:
    for _ in range(6):
        ids = submit_failing(engine, acme, count=3)

        outcomes = simultaneously(
            partial(replay, acme, ids), partial(dismiss, acme, ids), dead_letters.handle_waiting,
            *[partial(cancellation.retry, acme.pk, one, actor="Bob") for one in ids],
        )  # fmt: skip
        relay.flush()

        unexpected = [
            one for one in outcomes if isinstance(one, Exception) and not isinstance(one, TransitionRefused)
        ]
        assert unexpected == []
        engine.drain()
        with tenant_scope(acme.pk):
            letters = list(DeadLetter.objects.filter(activity_id__in=ids))
        ends = {(letter.state, engine.status(acme, letter.activity_id)) for letter in letters}
        assert ends <= {("replayed", "done"), ("closed", "cancelled")}
        dead_letters.handle_waiting()
        for activity_id in ids:
            assert [one.status for one in children(acme, activity_id, "escalation")] in ([], ["cancelled"])


def test_of_two_gates_that_reject_the_same_work_at_once_one_wins(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    gate = {"human_role": "editor", "is_approval_gate": True}
    for _ in range(5):
        flow = Flow(
            engine, tenant, step("brief"), step("legal", "brief", **gate), step("brand", "brief", **gate)
        ).drain()
        gates = [flow.activity(step=name).pk for name in ("brand", "legal")]

        outcomes = simultaneously(
            *[partial(decisions.reject, tenant.pk, pk, actor="ann", notes="shorter") for pk in gates]
        )

        assert kinds_of(outcomes) == {"Activity": 1, "TransitionRefused": 1}
        flow.drain()
        assert flow.states == {"brief": "done", "legal": "active", "brand": "active"}
        assert len(flow.activities(step="brief")) == 2
