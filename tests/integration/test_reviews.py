"""An agent asks a person in the middle of its work: yes, no, withdrawn or nothing in time, each wakes it once with what was said."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from activities.states import LinkKind
from activities.submission import NewActivity, submit
from agents.contracts import Accepted, AgentRequest, AgentResult
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine, at_once, elsewhere
from tests.toolbox import (
    OUTPUT,
    Caller,
    at_work,
    caller_of,
    calls_of,
    child,
    count_of,
    not_woken,
    of,
    wakes_of,
    woken,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")

INBOX = "/api/v1/inbox/"


def asked(engine: Engine, acme: Tenant, **more: Any) -> tuple[UUID, UUID]:
    """An activity that waits for a review, and the review."""
    activity_id, agent = at_work(engine, acme)
    return activity_id, agent.used("request_human_review", question="Is this the tone?", **more)


def test_a_question_is_put_into_the_inbox_with_what_it_is_about(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, review = asked(engine, acme, content="Dear bees", human_role="editor")

    (item,) = api("viewer").get(INBOX).json()["results"]

    assert (item["id"], item["kind"], item["human_role"]) == (str(review), "review", "editor")
    assert (item["description"], item["subject"]["status"]) == ("Is this the tone?", "awaiting_review")
    assert item["allowed_actions"] == ["start", "approve", "reject", "cancel"]
    made = engine.get(acme, review)
    assert made.input == {"content": "Dear bees", "data": None}
    assert made.metadata == {"reviewed_activity_id": str(activity_id)}
    assert engine.status(acme, activity_id) == "awaiting_review"


def test_who_is_not_named_is_any_reviewer(engine: Engine, acme: Tenant) -> None:
    activity_id, _ = asked(engine, acme)

    assert child(acme, activity_id).human_role == "reviewer"


def test_what_waits_for_a_review_holds_no_slot(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    asked(engine, acme)
    (behind,) = engine.submit(acme)
    engine.drain()

    assert engine.status(acme, behind) == "in_progress"


# Answers


@pytest.mark.parametrize("named", ["review", "reviewed"])
@pytest.mark.parametrize(
    ("approved", "feedback", "reason", "status"),
    [(True, "Lovely.", "review_approved", "approved"), (True, None, "review_approved", "approved"),
     (False, "Warmer.", "review_feedback", "rejected")],
)  # fmt: skip
def test_the_agent_goes_on_with_the_answer(
    api: Any, engine: Engine, acme: Tenant, named: str, approved: bool, feedback: str | None, reason: str, status: str
) -> None:  # fmt: skip
    activity_id, review = asked(engine, acme)

    answer = api("reviewer", name="Ann").post(
        of(review if named == "review" else activity_id, "review"),
        {"approved": approved, "feedback": feedback},
    )

    assert answer.status_code == 200, answer.content
    assert engine.status(acme, review) == status
    told = woken(engine, activity_id)
    assert (told.wake_reason, told.attempt) == (reason, 1)
    (wake,) = told.wakes
    assert (wake["review_approved"], wake["reviewer_feedback"], wake["outcome"], wake["reviewed_by"]) == (
        approved, feedback or "", status, "token:Ann",
    )  # fmt: skip
    assert wake["question"] == "Is this the tone?"
    job = caller_of(engine, activity_id).job().json()
    assert (job["wake_reason"], job["review_approved"], job["reviewer_feedback"]) == (
        reason,
        approved,
        feedback or "",
    )
    assert caller_of(engine, activity_id).post("complete", OUTPUT).json()["accepted"] is True


@pytest.mark.parametrize(("verb", "reason"), [("approve", "review_approved"), ("reject", "review_feedback")])
def test_a_review_may_be_answered_like_any_decision(
    api: Any, engine: Engine, acme: Tenant, verb: str, reason: str
) -> None:
    activity_id, review = asked(engine, acme)

    api("reviewer").post(of(review, verb), {"notes": "See there."})

    told = woken(engine, activity_id)
    assert (told.wake_reason, told.wakes[0]["reviewer_feedback"]) == (reason, "See there.")


def test_a_no_without_feedback_is_refused(api: Any, engine: Engine, acme: Tenant) -> None:
    _, review = asked(engine, acme)

    refused = problem(
        api("reviewer").post(of(review, "review"), {"approved": False}), 400, "validation_failed"
    )

    assert [fault["path"] for fault in refused["errors"]] == ["feedback"]


def test_a_review_that_is_withdrawn_wakes_with_the_reason(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, review = asked(engine, acme)

    api("operator").post(of(review, "cancel"), {"reason": "Decide yourself."})

    told = woken(engine, activity_id)
    assert (told.wake_reason, told.wakes[0]["outcome"]) == ("review_feedback", "withdrawn")
    assert (told.wakes[0]["review_approved"], told.wakes[0]["reviewer_feedback"]) == (
        False,
        "Decide yourself.",
    )


def test_of_twenty_answers_at_once_one_counts_and_the_others_learn_whose(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, review = asked(engine, acme)
    people = [api("reviewer", name=f"person {number}") for number in range(20)]
    bodies = [{"approved": number % 2 == 0, "feedback": f"said {number}"} for number in range(20)]

    answers = at_once(
        *[
            lambda client=client, body=body: client.post(of(review, "review"), body)
            for client, body in zip(people, bodies, strict=True)
        ]
    )

    won = [index for index, answer in enumerate(answers) if answer.status_code == 200]
    assert len(won) == 1
    for answer in (answers[index] for index in range(20) if index not in won):
        told = problem(answer, 409, "already_decided")
        assert told["decided_by"] == f"token:person {won[0]}"
        assert told["decision"] == ("approved" if won[0] % 2 == 0 else "rejected")
    (wake,) = woken(engine, activity_id).wakes
    assert wake["reviewer_feedback"] == f"said {won[0]}"
    assert len(wakes_of(acme, activity_id)) == 2


def test_a_review_is_decided_and_not_completed(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, review = asked(engine, acme)

    refused = problem(
        api("reviewer").post(of(review, "complete"), {"note": "done"}), 409, "transition_refused"
    )

    assert "approve or reject" in refused["detail"]
    assert engine.status(acme, activity_id) == "awaiting_review"


def test_what_was_not_asked_cannot_be_reviewed(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, _ = at_work(engine, acme)

    refused = problem(
        api("reviewer").post(of(activity_id, "review"), {"approved": True}), 409, "transition_refused"
    )

    assert "no review was requested" in refused["detail"]


def test_a_review_falls_away_with_the_work(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, review = asked(engine, acme)

    api("operator").post(of(activity_id, "cancel"))

    late = problem(api("reviewer").post(of(review, "review"), {"approved": True}), 409, "transition_refused")
    assert "obsolete" in late["detail"]
    assert not_woken(engine, activity_id)


def test_the_next_question_is_the_one_that_is_meant(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, first = asked(engine, acme)
    client = api("reviewer")
    client.post(of(first, "review"), {"approved": False, "feedback": "Warmer."})
    woken(engine, activity_id)
    second = caller_of(engine, activity_id).used("request_human_review", question="And now?")

    problem(client.post(of(first, "review"), {"approved": True}), 409, "already_decided")
    assert not_woken(engine, activity_id)
    client.post(of(activity_id, "review"), {"approved": True})

    assert engine.status(acme, second) == "approved"
    assert woken(engine, activity_id).wakes[0]["question"] == "And now?"


def test_an_answer_during_the_call_wakes_once_and_after_it(api: Any, engine: Engine, acme: Tenant) -> None:
    ready: list[int] = []

    def behaviour(request: AgentRequest) -> AgentResult:
        if request.wake_reason == "new_task":
            review = elsewhere(lambda: Caller(request).used("request_human_review", question="Good?"))
            elsewhere(lambda: api("reviewer").post(of(review, "review"), {"approved": True}))
            ready.append(engine.messages())
        return Accepted()

    engine.agent.behaviour = behaviour
    (activity_id,) = engine.submit(acme)
    engine.deliver()

    assert (ready, len(calls_of(engine, activity_id))) == ([0], 1)
    assert woken(engine, activity_id).wake_reason == "review_approved"


def test_three_open_reviews_are_enough(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = at_work(engine, acme)
    review = {"human_role": "editor", "parent_id": activity_id, "link_kind": LinkKind.REVIEW}
    with tenant_scope(acme.pk):
        submit([NewActivity(name=f"open {number}", **review) for number in range(3)], actor="test")

    refused = problem(agent.use("request_human_review", question="A fourth?"), 429, "quota_exceeded")

    assert refused["quota"] == "reviews"
    assert (engine.status(acme, activity_id), count_of(acme)) == ("in_progress", 4)
