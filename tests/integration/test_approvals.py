"""Approvals over many activities: who waits for them, who is woken by the answer, and who must agree."""

from __future__ import annotations

from uuid import UUID

import pytest

from activities import approvals, cancellation, deadlines, reassignment, relay, tasks
from activities.decision_rules import Voter
from activities.exceptions import (
    AlreadyDecided,
    AlreadyVoted,
    DecisionForbidden,
    SubmissionInvalid,
    TransitionRefused,
)
from activities.models import Activity, Deadline
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from pipelines import versions
from pipelines.models import PipelineRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.asking import DIRECTION, asked, asking, called, heard, links_of, told, wakes_of
from tests.engine import Engine, elsewhere
from tests.integration.agent_runs.accepted_work import Agent, accepted
from tests.integration.test_alerts import statements

pytestmark = pytest.mark.usefixtures("one_at_a_time")


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    return tenant


@pytest.fixture
def patient(engine: Engine, acme: Tenant) -> Tenant:
    """Agents accept their work, and report later."""
    engine.agent.behaviour = lambda request: Accepted()
    return acme


def voter(name: str) -> Voter:
    return Voter(name, identity=f"token:{name}")


# Every end wakes


@pytest.mark.parametrize(
    ("end", "reason", "outcome", "feedback"),
    [
        ("approve", "review_approved", "approved", "Nice"),
        ("reject", "review_feedback", "rejected", "Nice"),
        ("withdraw", "review_feedback", "withdrawn", "Nice"),
        ("cancel", "review_feedback", "withdrawn", "Nice"),
        ("expire", "review_feedback", "expired", deadlines.NOBODY),
    ],
)
def test_an_agent_wakes_with_the_outcome_however_its_question_ends(
    engine: Engine, patient: Tenant, end: str, reason: str, outcome: str, feedback: str
) -> None:
    rules = {"due_seconds": 60, "on_timeout": "reject"} if end == "expire" else {}
    activity_id, approval = asking(engine, patient, "create_approval", {**DIRECTION, **rules})

    if end == "approve":
        approvals.approve(patient.pk, approval, actor="Ann", notes="Nice")
    elif end == "reject":
        approvals.reject(patient.pk, approval, actor="Ann", notes="Nice")
    elif end == "withdraw":
        approvals.withdraw(patient.pk, approval, by=voter("Ann"), reason="Nice")
    elif end == "cancel":
        cancellation.cancel(patient.pk, approval, actor="Ann", reason="Nice")
    else:
        with tenant_scope(patient.pk):
            (due,) = Deadline.objects.filter(activity_id=approval)
        deadlines.pass_due(due.at)
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


def test_an_option_that_was_not_offered_is_refused_and_decides_nothing(
    engine: Engine, patient: Tenant
) -> None:
    activity_id, approval = asking(engine, patient, "create_approval", {**DIRECTION, "options": ["a", "b"]})

    with pytest.raises(SubmissionInvalid, match="none of the options: 'a', 'b'"):
        approvals.approve(patient.pk, approval, actor="Ann", chosen_option="c")

    assert engine.status(patient, approval) == "created"
    assert engine.status(patient, activity_id) == "awaiting_review"


# A decision while the asking run is still going


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


# Many activities


def test_one_decision_wakes_fifty_activities_of_five_pipelines_each_with_the_option(
    engine: Engine, acme: Tenant
) -> None:
    steps = [{"id": f"s{number}", "agent_role": "qa", "depends_on": []} for number in range(10)]
    versions.save(acme.pk, {"key": "wide", "name": "Wide", "steps": steps}, actor="test")
    runs = [start_run(acme.pk, "wide", NewRun(), actor="test") for _ in range(5)]
    with tenant_scope(acme.pk):
        waiting = list(Activity.objects.filter(step__isnull=False).values_list("pk", flat=True))
    (ended,) = engine.submit(acme, "dev")
    approval = asked(acme, [*waiting, ended], options=("Honey", "Hives"))
    engine.drain()
    cancellation.cancel(acme.pk, ended, actor="Ann")
    assert engine.agent.calls == [], "nothing that is held may start"

    approvals.approve(acme.pk, approval, actor="Ann", chosen_option="Honey")
    engine.drain()

    assert len(waiting) == 50
    assert {call.activity_id for call in engine.agent.calls} == set(waiting)
    assert len(engine.agent.calls) == 50
    assert {told(call)["chosen_option"] for call in engine.agent.calls} == {"Honey"}
    found = links_of(acme, approval)
    assert [found.pop(ended)] == [("skipped", "It was cancelled or handed on.")]
    assert set(found.values()) == {("woken", "")}
    with tenant_scope(acme.pk):
        assert {PipelineRun.objects.get(pk=run.pk).status for run in runs} == {"completed"}


def test_what_has_been_granted_already_and_is_then_held_does_not_start(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    message = engine.take()
    approval = asked(acme, [activity_id])

    tasks.run(**message)

    assert engine.agent.calls == []
    assert engine.status(acme, activity_id) == "awaiting_review"
    approvals.approve(acme.pk, approval, actor="Ann")
    engine.drain()
    assert [wake["reason"] for wake in heard(engine, activity_id)[0]] == ["new_task", "review_approved"]


def test_what_runs_goes_on_and_is_listed_as_skipped(engine: Engine, patient: Tenant) -> None:
    running, agent = accepted(engine, patient)
    approval = asked(patient, [running])

    assert agent.post("heartbeat").json()["stop"] is False
    approvals.approve(patient.pk, approval, actor="Ann")

    assert engine.status(patient, running) == "in_progress"
    assert links_of(patient, approval)[running] == (
        "skipped",
        "It was in_progress and did not wait for this.",
    )
    assert len(wakes_of(patient, running)) == 1


def test_what_waits_for_another_approval_is_not_woken_by_this_one(engine: Engine, patient: Tenant) -> None:
    activity_id, agent = accepted(engine, patient)
    approval = asked(patient, [activity_id])
    own = called(agent, "create_approval", DIRECTION)

    approvals.approve(patient.pk, approval, actor="Ann")

    assert links_of(patient, approval)[activity_id] == (
        "skipped", "It waits for another approval that its agent asked for."
    )  # fmt: skip
    assert engine.status(patient, activity_id) == "awaiting_review"
    approvals.approve(patient.pk, own, actor="Ann")
    assert engine.status(patient, activity_id) == "created"


def test_the_decision_also_answers_what_a_linked_activity_asked_in_a_review(
    engine: Engine, patient: Tenant
) -> None:
    activity_id, agent = accepted(engine, patient)
    approval = asked(patient, [activity_id])
    review = called(agent, "request_human_review", {"question": "Which direction?"})

    approvals.approve(patient.pk, approval, actor="Ann", chosen_option="Honey")

    assert links_of(patient, approval)[activity_id] == ("woken", "")
    assert engine.status(patient, activity_id) == "created"
    assert engine.status(patient, review) == "cancelled"
    with pytest.raises(TransitionRefused, match="Answered by the approval"):
        approvals.approve(patient.pk, review, actor="Bob")


def test_of_two_approvals_about_one_activity_the_first_decision_wakes_it_and_the_second_skips_it(
    engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)
    first, second = asked(acme, [activity_id]), asked(acme, [activity_id])

    approvals.approve(acme.pk, second, actor="Ann")
    approvals.reject(acme.pk, first, actor="Ann", notes="no")

    assert links_of(acme, second)[activity_id][0] == "woken"
    assert links_of(acme, first)[activity_id] == ("skipped", "It was created and did not wait for this.")
    assert [wake.reason for wake in wakes_of(acme, activity_id)] == ["new_task", "review_approved"]


def test_an_approval_that_nothing_waits_for_any_more_is_closed(engine: Engine, acme: Tenant) -> None:
    ids = engine.submit(acme, count=2)
    approval = asked(acme, ids)

    cancellation.cancel(acme.pk, ids[0], actor="Ann")
    still = engine.status(acme, approval)
    cancellation.cancel(acme.pk, ids[1], actor="Ann")

    assert (still, engine.status(acme, approval)) == ("created", "cancelled")
    with pytest.raises(TransitionRefused, match="obsolete; it waits for no answer"):
        approvals.approve(acme.pk, approval, actor="Ann")


def test_an_heir_waits_for_what_others_asked_about_the_work(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    approval = asked(acme, [activity_id])

    heir = reassignment.reassign(acme.pk, activity_id, actor="Ann", reason="better", agent_role="dev")
    engine.drain()
    assert (engine.status(acme, heir.pk), engine.agent.calls) == ("awaiting_review", [])
    approvals.approve(acme.pk, approval, actor="Ann")
    engine.drain()

    assert engine.status(acme, heir.pk) == "done"
    assert links_of(acme, approval) == {
        activity_id: ("skipped", "It was cancelled or handed on."),
        heir.pk: ("woken", ""),
    }


# Several must agree


def test_two_of_three_must_agree_and_nobody_votes_twice(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    approval = asked(acme, [activity_id], quorum=2, voters=3, self_approval=False, identity="token:Asker")

    approvals.approve(acme.pk, approval, actor=voter("Ann"), notes="yes")
    with pytest.raises(AlreadyVoted, match=r"Ann has voted about this at .*: approve"):
        approvals.approve(acme.pk, approval, actor=voter("Ann"))
    with pytest.raises(AlreadyVoted):
        approvals.reject(acme.pk, approval, actor=voter("Ann"), notes="changed my mind")
    with pytest.raises(DecisionForbidden, match="You asked for this"):
        approvals.approve(acme.pk, approval, actor=voter("Asker"))
    approvals.reject(acme.pk, approval, actor=voter("Bob"), notes="no")
    assert engine.status(acme, approval) == "in_progress"

    approvals.approve(acme.pk, approval, actor=voter("Cleo"), notes="fine")

    decided = engine.get(acme, approval)
    assert (decided.status, decided.reviewer_notes) == ("approved", "Ann: yes\n\nCleo: fine")
    with pytest.raises(AlreadyDecided, match="Cleo approved this"):
        approvals.approve(acme.pk, approval, actor=voter("Dan"))


def test_it_is_rejected_as_soon_as_those_who_are_left_cannot_make_up_the_quorum(
    engine: Engine, acme: Tenant
) -> None:
    approval = asked(acme, quorum=2, voters=3)

    approvals.reject(acme.pk, approval, actor=voter("Ann"), notes="no")
    approvals.reject(acme.pk, approval, actor=voter("Bob"), notes="no")

    assert engine.status(acme, approval) == "rejected"


def test_one_yes_of_three_is_enough_where_the_quorum_is_one_and_one_no_is_not(
    engine: Engine, acme: Tenant
) -> None:
    approval = asked(acme, quorum=1, voters=3)

    approvals.reject(acme.pk, approval, actor=voter("Ann"), notes="no")
    still = engine.status(acme, approval)
    approvals.approve(acme.pk, approval, actor=voter("Bob"))

    assert (still, engine.status(acme, approval)) == ("in_progress", "approved")


def test_the_option_with_the_most_votes_is_chosen_and_of_equal_ones_the_first(
    engine: Engine, acme: Tenant
) -> None:
    most = asked(acme, quorum=3, options=("a", "b"))
    equal = asked(acme, quorum=2, options=("a", "b"))

    for name, option in (("Ann", "a"), ("Bob", "b"), ("Cleo", "b")):
        approvals.approve(acme.pk, most, actor=voter(name), chosen_option=option)
    for name, option in (("Ann", "b"), ("Bob", "a")):
        approvals.approve(acme.pk, equal, actor=voter(name), chosen_option=option)

    assert (engine.get(acme, most).chosen_option, engine.get(acme, equal).chosen_option) == ("b", "b")


def test_a_default_outcome_needs_no_votes(engine: Engine, acme: Tenant) -> None:
    approval = asked(acme, quorum=2, voters=3, due_seconds=60, on_timeout="approve")
    approvals.reject(acme.pk, approval, actor=voter("Ann"), notes="no")
    with tenant_scope(acme.pk):
        (due,) = Deadline.objects.filter(activity_id=approval)

    deadlines.pass_due(due.at)

    decided = engine.get(acme, approval)
    assert (decided.status, decided.decided_by) == ("approved", "deadline")


@pytest.mark.parametrize("quorum", [1, 2])
def test_who_asks_may_answer_only_where_it_is_allowed(engine: Engine, acme: Tenant, quorum: int) -> None:
    allowed = asked(acme, quorum=quorum, identity="token:Ann")
    refused = asked(acme, quorum=quorum, identity="token:Ann", self_approval=False)

    approvals.approve(acme.pk, allowed, actor=voter("Ann"))
    with pytest.raises(DecisionForbidden):
        approvals.reject(acme.pk, refused, actor=voter("Ann"), notes="x")

    assert engine.status(acme, allowed) == ("approved" if quorum == 1 else "in_progress")
    assert engine.status(acme, refused) == "created"


# Taking it back


def test_only_who_asked_and_operators_take_an_approval_back(engine: Engine, acme: Tenant) -> None:
    approval = asked(acme, identity="token:Ann")

    with pytest.raises(DecisionForbidden, match="operator has asked this"):
        approvals.withdraw(acme.pk, approval, by=Voter("Bob", identity="token:Bob", decides_all=False))
    approvals.withdraw(acme.pk, approval, by=Voter("Ann", identity="token:Ann", decides_all=False))

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


def test_asking_and_deciding_cost_as_many_statements_for_fifty_activities_as_for_five(
    engine: Engine, acme: Tenant
) -> None:
    def costs(count: int) -> tuple[int, int]:
        made: list[UUID] = []
        ids = engine.submit(acme, count=count)
        return (
            statements(lambda: made.append(asked(acme, ids))),
            statements(lambda: approvals.approve(acme.pk, made[0], actor="Ann")),
        )

    assert costs(5) == costs(50)
