"""Reviews that agents request while they work: each answer or withdrawal wakes the agent once and says the outcome."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from activities import wait_reasons
from activities.states import LinkKind
from activities.submission import NewActivity, submit
from agents.contracts import Accepted, AgentRequest, AgentResult
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import (
    RESULT,
    AgentClient,
    accept_work,
    action_url,
    agent_of,
    calls_of,
    child,
    count_activities,
    is_called_again,
    next_call,
    wakes_of,
)
from tests.answers import problem
from tests.engine import Engine, in_another_thread, simultaneously

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")

INBOX = "/api/v1/inbox/"


def request_review(engine: Engine, acme: Tenant, **more: Any) -> tuple[UUID, UUID]:
    """Let an agent request a review; return the waiting activity and the review."""
    activity_id, agent = accept_work(engine, acme)
    return activity_id, agent.create_with("request_human_review", question="Is this the tone?", **more)


def test_a_review_is_listed_in_the_inbox_with_its_question_and_subject(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, review = request_review(engine, acme, content="Dear bees", human_role="editor")

    (item,) = api("operator").get(INBOX, {"gate": "true"}).json()["results"]

    assert api("operator").get(INBOX, {"gate": "false"}).json()["results"] == []
    assert (item["id"], item["kind"], item["human_role"]) == (str(review), "review", "editor")
    assert (item["description"], item["subject"]["status"]) == ("Is this the tone?", "awaiting_review")
    assert item["allowed_actions"] == ["review", "start", "approve", "reject", "cancel"]
    review_activity = engine.get(acme, review)
    assert review_activity.input == {"content": "Dear bees", "data": None}
    assert review_activity.metadata == {"reviewed_activity_id": str(activity_id)}
    assert engine.status(acme, activity_id) == "awaiting_review"


def test_a_review_without_a_role_is_for_any_reviewer(engine: Engine, acme: Tenant) -> None:
    activity_id, _ = request_review(engine, acme)

    assert child(acme, activity_id).human_role == "reviewer"


def test_an_activity_that_waits_for_a_review_holds_no_slot(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    request_review(engine, acme)
    (next_activity,) = engine.submit(acme)
    engine.drain()

    assert engine.status(acme, next_activity) == "in_progress"


# Answers


@pytest.mark.parametrize("addressed", ["review", "reviewed"])
@pytest.mark.parametrize(
    ("approved", "feedback", "reason", "status"),
    [(True, "Lovely.", "review_approved", "approved"), (True, None, "review_approved", "approved"),
     (False, "Warmer.", "review_feedback", "rejected")],
)  # fmt: skip
def test_the_agent_continues_with_the_answer(
    api: Any, engine: Engine, acme: Tenant, addressed: str, approved: bool, feedback: str | None, reason: str, status: str
) -> None:  # fmt: skip
    activity_id, review = request_review(engine, acme)

    answer = api("reviewer", name="Ann").post(
        action_url(review if addressed == "review" else activity_id, "review"),
        {"approved": approved, "feedback": feedback},
    )

    assert answer.status_code == 200, answer.content
    assert engine.status(acme, review) == status
    request = next_call(engine, activity_id)
    assert (request.wake_reason, request.attempt) == (reason, 1)
    (wake,) = request.wakes
    assert (wake["review_approved"], wake["reviewer_feedback"], wake["outcome"], wake["reviewed_by"]) == (
        approved, feedback or "", status, "token:Ann",
    )  # fmt: skip
    assert wake["question"] == "Is this the tone?"
    job = agent_of(engine, activity_id).get_job().json()
    assert (job["wake_reason"], job["review_approved"], job["reviewer_feedback"]) == (
        reason,
        approved,
        feedback or "",
    )
    assert agent_of(engine, activity_id).post("complete", RESULT).json()["accepted"] is True


@pytest.mark.parametrize(("verb", "reason"), [("approve", "review_approved"), ("reject", "review_feedback")])
def test_a_review_can_be_approved_and_rejected_like_a_gate(
    api: Any, engine: Engine, acme: Tenant, verb: str, reason: str
) -> None:
    activity_id, review = request_review(engine, acme)

    api("reviewer").post(action_url(review, verb), {"notes": "See there."})

    request = next_call(engine, activity_id)
    assert (request.wake_reason, request.wakes[0]["reviewer_feedback"]) == (reason, "See there.")


def test_a_review_waits_for_a_decision(engine: Engine, acme: Tenant) -> None:
    _, review = request_review(engine, acme)

    assert wait_reasons.why(acme.pk, review).detail == "It waits for a decision."


@pytest.mark.parametrize("feedback", [{}, {"feedback": None}, {"feedback": ""}, {"feedback": " \n "}])
def test_a_rejection_without_feedback_is_refused(
    api: Any, engine: Engine, acme: Tenant, feedback: dict[str, str | None]
) -> None:
    _, review = request_review(engine, acme)

    refused = problem(
        api("reviewer").post(action_url(review, "review"), {"approved": False, **feedback}),
        400,
        "validation_failed",
    )

    assert [fault["path"] for fault in refused["errors"]] == ["feedback"]


def test_a_cancelled_review_wakes_the_activity_with_the_reason(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, review = request_review(engine, acme)

    api("operator").post(action_url(review, "cancel"), {"reason": "Decide yourself."})

    request = next_call(engine, activity_id)
    assert (request.wake_reason, request.wakes[0]["outcome"]) == ("review_feedback", "withdrawn")
    assert (request.wakes[0]["review_approved"], request.wakes[0]["reviewer_feedback"]) == (
        False,
        "Decide yourself.",
    )


def test_of_twenty_answers_at_once_one_counts_and_the_others_name_who_decided(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, review = request_review(engine, acme)
    people = [api("reviewer", name=f"person {number}") for number in range(20)]
    bodies = [{"approved": number % 2 == 0, "feedback": f"said {number}"} for number in range(20)]

    answers = simultaneously(
        *[
            lambda client=client, body=body: client.post(action_url(review, "review"), body)
            for client, body in zip(people, bodies, strict=True)
        ]
    )

    winners = [index for index, answer in enumerate(answers) if answer.status_code == 200]
    assert len(winners) == 1
    for answer in (answers[index] for index in range(20) if index not in winners):
        request = problem(answer, 409, "already_decided")
        assert request["decided_by"] == f"token:person {winners[0]}"
        assert request["decision"] == ("approved" if winners[0] % 2 == 0 else "rejected")
    (wake,) = next_call(engine, activity_id).wakes
    assert wake["reviewer_feedback"] == f"said {winners[0]}"
    assert len(wakes_of(acme, activity_id)) == 2


def test_a_review_cannot_be_completed_without_a_decision(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, review = request_review(engine, acme)

    refused = problem(
        api("reviewer").post(action_url(review, "complete"), {"note": "done"}), 409, "transition_refused"
    )

    assert "approve or reject" in refused["detail"]
    assert engine.status(acme, activity_id) == "awaiting_review"


def test_an_activity_without_a_requested_review_cannot_be_reviewed(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, _ = accept_work(engine, acme)

    refused = problem(
        api("reviewer").post(action_url(activity_id, "review"), {"approved": True}), 409, "transition_refused"
    )

    assert "no review was requested" in refused["detail"]


def test_cancelling_the_activity_makes_its_review_obsolete(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, review = request_review(engine, acme)

    api("operator").post(action_url(activity_id, "cancel"))

    late = problem(
        api("reviewer").post(action_url(review, "review"), {"approved": True}), 409, "transition_refused"
    )
    assert "does not need it any more" in late["detail"]
    assert not is_called_again(engine, activity_id)


def test_an_answer_to_the_activity_applies_to_its_newest_review(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, first = request_review(engine, acme)
    client = api("reviewer")
    client.post(action_url(first, "review"), {"approved": False, "feedback": "Warmer."})
    next_call(engine, activity_id)
    second = agent_of(engine, activity_id).create_with("request_human_review", question="And now?")

    problem(client.post(action_url(first, "review"), {"approved": True}), 409, "already_decided")
    assert not is_called_again(engine, activity_id)
    client.post(action_url(activity_id, "review"), {"approved": True})

    assert engine.status(acme, second) == "approved"
    assert next_call(engine, activity_id).wakes[0]["question"] == "And now?"


def test_an_answer_during_the_call_wakes_the_activity_once_after_it(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    messages_during_call: list[int] = []

    def behaviour(request: AgentRequest) -> AgentResult:
        if request.wake_reason == "new_task":
            review = in_another_thread(
                lambda: AgentClient(request).create_with("request_human_review", question="Good?")
            )
            in_another_thread(lambda: api("reviewer").post(action_url(review, "review"), {"approved": True}))
            messages_during_call.append(engine.messages())
        return Accepted()

    engine.agent.behaviour = behaviour
    (activity_id,) = engine.submit(acme)
    engine.deliver()

    assert (messages_during_call, len(calls_of(engine, activity_id))) == ([0], 1)
    assert next_call(engine, activity_id).wake_reason == "review_approved"


def test_a_fourth_open_review_is_refused(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    review = {"human_role": "editor", "parent_id": activity_id, "link_kind": LinkKind.REVIEW}
    with tenant_scope(acme.pk):
        submit([NewActivity(name=f"open {number}", **review) for number in range(3)], actor="test")

    refused = problem(agent.use("request_human_review", question="A fourth?"), 429, "quota_exceeded")

    assert refused["quota"] == "reviews"
    assert (engine.status(acme, activity_id), count_activities(acme)) == ("in_progress", 4)
