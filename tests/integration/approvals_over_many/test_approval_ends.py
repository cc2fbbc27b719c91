"""An agent that asked wakes once, however and whenever its question ends."""

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
from activities.human_tasks import approvals, deadlines
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from tenants import clock
from tenants.models import Tenant
from tests.engine import Engine, elsewhere
from tests.integration.agent_runs.accepted_work import Agent
from tests.integration.approvals_over_many.voters import voter
from tests.open_questions import DIRECTION, asked, asking, called, heard, links_of, told

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
def test_an_agent_wakes_with_the_outcome_however_its_question_ends(
    engine: Engine, patient: Tenant, end: str, reason: str, outcome: str, feedback: str
) -> None:
    activity_id, approval = asking(engine, patient, "create_approval", DIRECTION)

    if end == "approve":
        approvals.approve(patient.pk, approval, actor="Ann", notes="Nice")
    elif end == "reject":
        approvals.reject(patient.pk, approval, actor="Ann", notes="Nice")
    elif end == "withdraw":
        approvals.withdraw(patient.pk, approval, by=voter("Ann"), reason="Nice")
    else:
        cancellation.cancel(patient.pk, approval, actor="Ann", reason="Nice")
    engine.drain()

    assert len(heard(engine, activity_id)) == 2
    said = told(engine.agent.calls[-1])
    assert (said["reason"], said["outcome"], said["reviewer_feedback"]) == (reason, outcome, feedback)
    assert (said["approval"], said["approval_type"], said["title"]) == (
        str(approval), "content_direction", "Which direction?"
    )  # fmt: skip
    assert said["review_approved"] is (end == "approve")
    assert links_of(patient, approval) == {activity_id: ("woken", "")}


def test_the_chosen_option_reaches_the_agent_and_is_part_of_the_feedback(
    engine: Engine, patient: Tenant
) -> None:
    _, approval = asking(engine, patient, "create_approval", {**DIRECTION, "options": ["Honey", "Hives"]})

    approvals.approve(patient.pk, approval, actor="Ann", notes="Go on", chosen_option="Hives")
    engine.drain()

    said = told(engine.agent.calls[-1])
    assert (said["chosen_option"], said["reviewer_feedback"]) == ("Hives", "Go on\n\nChosen option: Hives")


@pytest.mark.parametrize("option", ["c", None])
def test_an_approval_without_one_of_the_options_is_refused_and_decides_nothing(
    engine: Engine, patient: Tenant, option: str | None
) -> None:
    activity_id, approval = asking(engine, patient, "create_approval", {**DIRECTION, "options": ["a", "b"]})

    with pytest.raises(SubmissionInvalid, match="must be one of the options: 'a', 'b'"):
        approvals.approve(patient.pk, approval, actor="Ann", chosen_option=option)

    assert engine.status(patient, approval) == "created"
    assert engine.status(patient, activity_id) == "awaiting_review"


def test_a_rejection_and_a_default_outcome_choose_no_option(engine: Engine, acme: Tenant) -> None:
    rejected = asked(acme, options=("a", "b"))
    expired = asked(acme, options=("a", "b"), due_seconds=60, on_timeout="approve")

    approvals.reject(acme.pk, rejected, actor="Ann", notes="Neither.")
    deadlines.pass_due(clock.now() + timedelta(seconds=61))

    assert [engine.status(acme, one) for one in (rejected, expired)] == ["rejected", "approved"]
    with pytest.raises(AlreadyDecided, match="Ann rejected this at"):
        approvals.approve(acme.pk, rejected, actor="Bob")


def test_a_decision_during_the_call_that_asked_wakes_once_after_it(engine: Engine, acme: Tenant) -> None:
    def asks_and_is_answered(request: AgentRequest) -> AgentResult:
        if request.wake_reason == "new_task":
            approval = called(Agent(request), "create_approval", DIRECTION)
            elsewhere(lambda: approvals.approve(acme.pk, approval, actor="Ann"))
            relay.flush()
            assert engine.take() is None, "the next run must not begin while this call is going"
        return Completed(Output(content=request.wake_reason))

    engine.agent.behaviour = asks_and_is_answered
    (activity_id,) = engine.submit(acme)

    engine.drain()

    assert [call.wake_reason for call in engine.agent.calls] == ["new_task", "review_approved"]
    assert engine.status(acme, activity_id) == "done"
    assert [run.ended_by_tool for run in engine.runs(acme, activity_id)] == ["create_approval", ""]


def test_a_decision_before_the_agents_own_202_has_come_wakes_once(engine: Engine, acme: Tenant) -> None:
    def asks_before_it_accepts(request: AgentRequest) -> AgentResult:
        if request.wake_reason == "new_task":
            approval = called(Agent(request), "create_approval", DIRECTION)
            elsewhere(lambda: approvals.reject(acme.pk, approval, actor="Ann", notes="no"))
            return Accepted()
        return Completed(Output(content="x"))

    engine.agent.behaviour = asks_before_it_accepts
    (activity_id,) = engine.submit(acme)

    engine.drain()

    assert [call.wake_reason for call in engine.agent.calls] == ["new_task", "review_feedback"]
    assert engine.status(acme, activity_id) == "done"


def test_only_who_asked_and_operators_take_an_approval_back(engine: Engine, acme: Tenant) -> None:
    approval = asked(acme, identity="user:Ann")

    with pytest.raises(DecisionForbidden, match="operator requested this"):
        approvals.withdraw(acme.pk, approval, by=Voter("Bob", identity="user:Bob", decides_all=False))
    approvals.withdraw(acme.pk, approval, by=Voter("Ann", identity="user:Ann", decides_all=False))

    with pytest.raises(AlreadyDecided, match="Ann withdrew this"):
        approvals.approve(acme.pk, approval, actor="Bob")
    with pytest.raises(AlreadyDecided, match="Ann withdrew this"):
        approvals.withdraw(acme.pk, approval, by=voter("Bob"))


def test_what_was_decided_cannot_be_taken_back(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    approval = asked(acme, [activity_id])
    approvals.approve(acme.pk, approval, actor="Ann")

    with pytest.raises(AlreadyDecided, match="Ann approved this"):
        approvals.withdraw(acme.pk, approval, by=voter("Bob"))

    assert engine.status(acme, activity_id) == "created"
