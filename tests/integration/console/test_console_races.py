"""Concurrent answers: an answer from an outdated page is refused, and one of many concurrent answers counts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import OperationalError

from activities import cancellation, rescheduling
from activities.decision_rules import Voter
from activities.human_tasks import decisions, human_work
from console.inbox import actions
from tests.browsing import visible_text
from tests.console_user import Person, notice, refusal_notice, success_notice
from tests.engine import simultaneously
from tests.forms import forms_of
from tests.questions import Questions


@pytest.mark.parametrize("action", ["approve", "reject"])
def test_a_late_answer_is_told_who_decided_what_and_when(
    action: str, questions: Questions, ann: Person
) -> None:
    gate = questions.gate()
    form = ann.form(gate)
    decisions.approve(questions.tenant.pk, gate.pk, actor="user:bob", notes="Good.")

    answer = form.send(ann.browser, ("action", action), notes="Different.")

    assert re.fullmatch(
        r"Approved by bob on \d+ \w+, \d\d:\d\d:\d\d UTC, after you loaded the page\. Nothing was done\.",
        refusal_notice(answer, 409),
    )
    assert "Approved by bob" in visible_text(answer), "the page shows how it is now"
    assert "answer" not in forms_of(answer)
    assert questions.get(gate.pk).reviewer_notes == "Good."


def test_a_changed_item_is_shown_again_with_the_typed_text(questions: Questions, ann: Person) -> None:
    task = questions.task()
    form = ann.form(task)
    human_work.take_up(questions.tenant.pk, task.pk, actor="user:bob")

    answer = form.send(ann.browser, ("action", "complete"), output="my result")

    assert refusal_notice(answer, 409).startswith("Claimed by bob")
    again = forms_of(answer)["answer"]
    assert again.fields["output"] == ["my result"]
    assert questions.get(task.pk).status == "in_progress"
    success_notice(again.send(ann.browser, ("action", "complete")), ann)


def test_a_new_date_of_a_claimed_item_is_no_claim(questions: Questions, ann: Person) -> None:
    task = questions.task()
    human_work.take_up(questions.tenant.pk, task.pk, actor="user:bob")
    form = ann.form(task)
    rescheduling.reschedule(questions.tenant.pk, task.pk, {"priority": 1}, actor="user:cid")

    answer = form.send(ann.browser, ("action", "complete"))

    assert refusal_notice(answer, 409).startswith("Changed by cid")
    assert "Claimed by bob" in visible_text(answer)


def test_an_obsolete_item_says_why(questions: Questions, ann: Person) -> None:
    review = questions.review()
    form = ann.form(review)
    cancellation.cancel(questions.tenant.pk, review.parent_id, actor="user:bob", reason="No more money.")

    assert "Cancelled by bob" in (
        message := refusal_notice(form.send(ann.browser, ("action", "approve")), 409)
    )
    assert "(obsolete)" in message


def test_an_escalation_cannot_cancel_retried_work(questions: Questions, ann: Person) -> None:
    escalation = questions.escalation()
    form = ann.form(escalation)
    cancellation.retry(questions.tenant.pk, escalation.parent_id, actor="user:bob")

    refusal_notice(form.send(ann.browser, ("action", "cancel")), 409)

    assert questions.get(escalation.parent_id).status == "created"


def test_one_of_ten_concurrent_answers_counts(questions: Questions, person: Callable[..., Person]) -> None:
    gate = questions.gate()
    crowd = [person(f"p{number}") for number in range(10)]
    forms = [(each, each.form(gate)) for each in crowd]

    answers = simultaneously(
        *(
            lambda each=each, form=form, number=number: form.send(
                each.browser, ("action", "reject" if number % 2 else "approve"), notes="mine"
            )
            for number, (each, form) in enumerate(forms)
        )
    )

    codes = sorted(answer.status_code for answer in answers)
    assert codes[0] == 302
    assert set(codes[1:]) <= {409, 503}, "too late, or on a slow machine not even in time to learn so"
    winner = crowd[next(number for number, answer in enumerate(answers) if answer.status_code == 302)]
    assert all(
        f"by {winner.user.username} on" in notice(answer) for answer in answers if answer.status_code == 409
    )


@pytest.mark.parametrize("error", [psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable])
def test_a_lock_conflict_asks_for_another_try(
    error: type[Exception], questions: Questions, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = questions.gate()
    form = ann.form(gate)

    def conflict(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("given up") from error("given up")

    monkeypatch.setattr(actions.api, "decide", conflict)

    answer = form.send(ann.browser, ("action", "approve"), notes="kept")

    assert refusal_notice(answer, 503).startswith("Too many conflicting requests")
    assert forms_of(answer)["answer"].fields["notes"] == ["kept"]


def test_votes_by_api_and_page_count_as_one_person(questions: Questions, ann: Person) -> None:
    approval = questions.approval(options=(), quorum=2)
    ann_by_api = Voter("user:ann", identity=f"user:{ann.user.pk}")
    decisions.decide(questions.tenant.pk, approval.pk, "approve", by=ann_by_api)

    assert "You have voted." in visible_text(ann.look(approval))
