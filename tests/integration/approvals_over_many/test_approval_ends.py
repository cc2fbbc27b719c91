"""An agent that requested an approval wakes once, however and whenever the approval ends."""

from __future__ import annotations

from datetime import timedelta

import pytest

from activities import cancellation, relay
from activities.decision_rules import Voter
from activities.exceptions import (
    AlreadyDecided,
    DecisionForbidden,
    SubmissionInvalid,
)
from activities.human_tasks import approvals, deadlines, decisions
from activities.human_tasks.approvals import NewApproval
from activities.models import Activity
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from tenants import clock
from tenants.context import tenant_scope
from tenants.identifiers import uuid7
from tenants.models import Tenant
from tests.accepted_work import AgentClient, accept_and_create, wakes_per_call
from tests.cases import in_one_test
from tests.engine import Engine, in_another_thread
from tests.integration.approvals_over_many.voters import voter
from tests.open_questions import DIRECTION, links_of, open_approval

pytestmark = pytest.mark.usefixtures("one_at_a_time")


@pytest.mark.parametrize(
    ("end", "reason", "outcome", "feedback"),
    [
        ("approve", "review_approved", "approved", "Nice"),
        ("reject", "review_feedback", "rejected", "Nice"),
        ("withdraw", "review_feedback", "withdrawn", "Nice"),
        ("cancel", "review_feedback", "withdrawn", "Nice"),
    ],
)
def test_an_agent_wakes_with_the_outcome_of_its_approval(
    engine: Engine, accepting: Tenant, end: str, reason: str, outcome: str, feedback: str
) -> None:
    activity_id, approval = accept_and_create(engine, accepting, "create_approval", DIRECTION)

    if end == "approve":
        decisions.approve(accepting.pk, approval, actor="Ann", notes="Nice")
    elif end == "reject":
        decisions.reject(accepting.pk, approval, actor="Ann", notes="Nice")
    elif end == "withdraw":
        decisions.withdraw(accepting.pk, approval, by=voter("Ann"), reason="Nice")
    else:
        cancellation.cancel(accepting.pk, approval, actor="Ann", reason="Nice")
    engine.drain()

    assert len(wakes_per_call(engine, activity_id)) == 2
    wake = engine.agent.calls[-1].wakes[-1]
    assert (wake["reason"], wake["outcome"], wake["reviewer_feedback"]) == (reason, outcome, feedback)
    assert (wake["approval"], wake["approval_type"], wake["title"]) == (
        str(approval), "content_direction", "Which direction?"
    )  # fmt: skip
    assert wake["review_approved"] is (end == "approve")
    assert links_of(accepting, approval) == {activity_id: ("woken", "")}


def test_the_question_of_an_agent_belongs_to_the_pipeline_and_the_schedule_of_its_work(
    engine: Engine, acme: Tenant
) -> None:
    pipeline, schedule = uuid7(), uuid7()
    (activity_id,) = engine.submit(acme, pipeline_id=pipeline, schedule_id=schedule)
    with tenant_scope(acme.pk):
        asking = Activity.objects.get(pk=activity_id)
        new = NewApproval(**DIRECTION)
        approval = approvals.open_approval(acme.pk, new, actor="agent", identity="run:1", about=asking)
        question = Activity.objects.get(pk=approval)

    assert (question.pipeline_id, question.schedule_id) == (pipeline, schedule)


def test_the_chosen_option_is_part_of_the_wake_and_the_feedback(engine: Engine, accepting: Tenant) -> None:
    _, approval = accept_and_create(
        engine, accepting, "create_approval", {**DIRECTION, "options": ["Honey", "Hives"]}
    )

    decisions.approve(accepting.pk, approval, actor="Ann", notes="Go on", chosen_option="Hives")
    engine.drain()

    wake = engine.agent.calls[-1].wakes[-1]
    assert (wake["chosen_option"], wake["reviewer_feedback"]) == ("Hives", "Go on\n\nChosen option: Hives")


@in_one_test("option", ["c", None])
def test_an_approval_without_a_valid_option_is_refused_and_decides_nothing(
    engine: Engine, accepting: Tenant, option: str | None
) -> None:
    activity_id, approval = accept_and_create(
        engine, accepting, "create_approval", {**DIRECTION, "options": ["a", "b"]}
    )

    with pytest.raises(SubmissionInvalid, match="must be one of the options: 'a', 'b'"):
        decisions.approve(accepting.pk, approval, actor="Ann", chosen_option=option)

    assert engine.status(accepting, approval) == "created"
    assert engine.status(accepting, activity_id) == "awaiting_review"


def test_a_rejection_and_a_default_outcome_choose_no_option(engine: Engine, acme: Tenant) -> None:
    rejected = open_approval(acme, options=("a", "b"))
    expired = open_approval(acme, options=("a", "b"), due_seconds=60, on_timeout="reject")

    decisions.reject(acme.pk, rejected, actor="Ann", notes="Neither.")
    deadlines.pass_due(clock.now() + timedelta(seconds=61))

    assert [engine.status(acme, approval) for approval in (rejected, expired)] == ["rejected", "rejected"]
    with pytest.raises(AlreadyDecided, match="Ann rejected this at"):
        decisions.approve(acme.pk, rejected, actor="Bob")


def test_a_decision_during_the_requesting_call_wakes_once_after_it(engine: Engine, acme: Tenant) -> None:
    def request_and_answer_at_once(request: AgentRequest) -> AgentResult:
        if request.wake_reason == "new_task":
            approval = AgentClient(request).create_with("create_approval", **DIRECTION)
            in_another_thread(lambda: decisions.approve(acme.pk, approval, actor="Ann"))
            relay.flush()
            assert engine.take() is None, "the next run must not start during this call"
        return Completed(Output(content=request.wake_reason))

    engine.agent.behaviour = request_and_answer_at_once
    (activity_id,) = engine.submit(acme)

    engine.drain()

    assert [call.wake_reason for call in engine.agent.calls] == ["new_task", "review_approved"]
    assert engine.status(acme, activity_id) == "done"
    assert [run.ended_by_tool for run in engine.runs(acme, activity_id)] == ["create_approval", ""]


def test_a_decision_before_the_agents_202_wakes_once(engine: Engine, acme: Tenant) -> None:
    def answer_before_accepting(request: AgentRequest) -> AgentResult:
        if request.wake_reason == "new_task":
            approval = AgentClient(request).create_with("create_approval", **DIRECTION)
            in_another_thread(lambda: decisions.reject(acme.pk, approval, actor="Ann", notes="no"))
            return Accepted()
        return Completed(Output(content="x"))

    engine.agent.behaviour = answer_before_accepting
    (activity_id,) = engine.submit(acme)

    engine.drain()

    assert [call.wake_reason for call in engine.agent.calls] == ["new_task", "review_feedback"]
    assert engine.status(acme, activity_id) == "done"


def test_only_the_requester_and_operators_withdraw_an_approval(engine: Engine, acme: Tenant) -> None:
    approval = open_approval(acme, identity="user:Ann")

    with pytest.raises(DecisionForbidden, match="operator requested this"):
        decisions.withdraw(acme.pk, approval, by=Voter("Bob", identity="user:Bob", decides_all=False))
    decisions.withdraw(acme.pk, approval, by=Voter("Ann", identity="user:Ann", decides_all=False))

    with pytest.raises(AlreadyDecided, match="Ann withdrew this"):
        decisions.approve(acme.pk, approval, actor="Bob")
    with pytest.raises(AlreadyDecided, match="Ann withdrew this"):
        decisions.withdraw(acme.pk, approval, by=voter("Bob"))


def test_a_decided_approval_cannot_be_withdrawn(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    approval = open_approval(acme, [activity_id])
    decisions.approve(acme.pk, approval, actor="Ann")

    with pytest.raises(AlreadyDecided, match="Ann approved this"):
        decisions.withdraw(acme.pk, approval, by=voter("Bob"))

    assert engine.status(acme, activity_id) == "created"
