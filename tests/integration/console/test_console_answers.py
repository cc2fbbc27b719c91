"""Answers given on the page: each kind, each button, what is refused, and what somebody else's answer means for one's own.

The browser of these tests has no scripts, and is guarded against forged requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.db import OperationalError
from django.http import HttpResponse

from activities import approvals, cancellation, outputs, people
from activities.decision_rules import Voter
from activities.models import Activity
from activities.states import Status
from console import decisions
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.browsing import words
from tests.engine import at_once, elsewhere
from tests.forms import Form, forms_of
from tests.integration.console.conftest import INBOX, Person
from tests.questions import Questions


def notice(answer: HttpResponse) -> str:
    """What the page tells the person first."""
    found = re.search(r'<(\w+)[^>]*id="notice"[^>]*>(.*?)</\1>', answer.content.decode(), re.DOTALL)
    assert found, words(answer)
    return " ".join(re.sub(r"<[^>]+>", " ", found[2]).split())


def done(answer: HttpResponse, by: Person) -> str:
    """The answer was accepted; what the next page says."""
    assert answer.status_code == 302, (answer.status_code, words(answer))
    return notice(by.get(answer["Location"]))


def refused(answer: HttpResponse, status: int) -> str:
    assert answer.status_code == status, (answer.status_code, words(answer))
    return notice(answer)


# Each kind


def test_a_gate_is_approved(asked: Questions, ann: Person) -> None:
    gate = asked.gate_of_step()

    assert done(ann.answer(gate, "approve", notes="Good."), ann) == "Approved: Approve: Write"

    now = asked.get(gate.pk)
    assert (now.status, now.decided_by, now.reviewer_notes) == ("approved", "user:ann", "Good.")
    assert asked.get(gate.parent_id).status == "approved"
    assert asked.engine.drain() == 1, "the next step has started"


def test_a_gate_is_sent_back_with_notes(asked: Questions, ann: Person) -> None:
    gate = asked.gate()

    assert (
        done(ann.answer(gate, "reject", notes="Shorter.\r\nAnd with honey."), ann)
        == "Sent back: Approve: Summary"
    )

    asked.engine.drain()
    revision = asked.newest(link_kind="gate").parent
    assert (revision.round, revision.reviewer_notes) == (2, "Shorter.\nAnd with honey.")


@pytest.mark.parametrize("notes", ["", "   ", "\r\n"])
@pytest.mark.parametrize(
    ("kind", "deed"),
    [("gate", "reject"), ("review", "reject"), ("approval", "reject"), ("blocker", "resolve")],
)
def test_a_no_and_a_resolution_need_words(
    kind: str, deed: str, notes: str, asked: Questions, ann: Person
) -> None:
    item = getattr(asked, kind)()

    said = refused(ann.answer(item, deed, notes=notes), 400)

    assert said.startswith("Say ")
    assert asked.get(item.pk).status == "created"


def test_a_review_is_answered_either_way(asked: Questions, ann: Person) -> None:
    good, bad = asked.review(), asked.review()

    assert done(ann.answer(good, "approve"), ann).startswith("Approved")
    assert done(ann.answer(bad, "reject", notes="Warmer."), ann).startswith("Changes asked for")

    asked.engine.drain()
    wakes = {
        wake["reason"]: wake["payload"]["reviewer_feedback"]
        for call in asked.engine.agent.calls[2:]
        for wake in call.wakes
    }
    assert wakes == {"review_approved": "", "review_feedback": "Warmer."}


def test_a_blocker_is_resolved(asked: Questions, ann: Person) -> None:
    blocker = asked.blocker()

    assert done(ann.answer(blocker, "resolve", notes="I signed in again."), ann).startswith("Resolved")

    asked.engine.drain()
    (wake,) = asked.engine.agent.calls[-1].wakes
    assert (wake["reason"], wake["payload"]["blocker_resolution"]) == ("unblocked", "I signed in again.")


def test_a_task_is_taken_up_and_completed_with_a_result(asked: Questions, ann: Person) -> None:
    task = asked.task()

    assert done(ann.answer(task, "start"), ann).startswith("Taken up")
    assert "ann has taken this up." in words(ann.look(task))
    assert done(
        ann.answer(task, "complete", output="# Called\r\nThey agree.", notes="Fine."), ann
    ).startswith("Completed")

    now = asked.get(task.pk)
    assert (now.status, now.decided_by, now.reviewer_notes) == ("done", "user:ann", "Fine.")
    assert now.output_ref
    stored = outputs.read(asked.tenant.pk, now.output_ref)
    assert stored
    assert (stored.content, stored.content_type) == ("# Called\nThey agree.", "text/markdown")


def test_a_task_may_be_completed_without_a_word(asked: Questions, ann: Person) -> None:
    task = asked.task()

    done(ann.answer(task, "complete"), ann)

    assert (asked.get(task.pk).status, asked.get(task.pk).output_ref) == ("done", None)


def test_a_result_that_is_too_long_is_refused_and_kept_in_the_form(
    asked: Questions, ann: Person, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAX_OUTPUT_BYTES = 10
    task = asked.task()

    answer = ann.answer(task, "complete", output="ééééééé", notes="see above")

    assert "longer than the 10 bytes" in refused(answer, 400)
    assert forms_of(answer)["answer"].fields["output"] == ["ééééééé"]
    assert forms_of(answer)["answer"].fields["notes"] == ["see above"]


def test_an_approval_takes_one_of_its_options(asked: Questions, ann: Person) -> None:
    approval = asked.approval(linked=2)

    assert refused(ann.answer(approval, "approve"), 400) == "Choose one of the options."
    assert refused(ann.answer(approval, "approve", option="Loud"), 400) == "Choose one of the options."
    assert done(ann.answer(approval, "approve", option="Sober", notes="Sober it is."), ann).startswith(
        "Approved"
    )

    assert asked.get(approval.pk).chosen_option == "Sober"
    assert {asked.get(pk).status for pk in asked.get_linked(approval)} == {"created"}
    asked.engine.drain()
    told = [call.wakes[-1]["payload"]["chosen_option"] for call in asked.engine.agent.calls]
    assert told == ["Sober", "Sober"]


def test_an_approval_is_rejected_or_withdrawn(asked: Questions, ann: Person) -> None:
    rejected, withdrawn = asked.approval(), asked.approval()

    assert done(ann.answer(rejected, "reject", notes="Neither."), ann).startswith("Rejected")
    assert done(ann.answer(withdrawn, "withdraw", notes="Asked twice."), ann).startswith("Withdrawn")

    assert asked.get(rejected.pk).status == "rejected"
    assert (asked.get(withdrawn.pk).status, asked.get(withdrawn.pk).cancel_reason) == (
        "cancelled",
        "Asked twice.",
    )


def test_failed_work_is_tried_again(asked: Questions, ann: Person) -> None:
    escalation = asked.escalation()

    assert done(ann.answer(escalation, "retry"), ann) == "Started anew: Failed: Audit"

    assert asked.get(escalation.parent_id).status == "created"
    assert asked.get(escalation.pk).status == "cancelled"


def test_failed_work_is_cancelled(asked: Questions, ann: Person) -> None:
    escalation = asked.escalation()

    done(ann.answer(escalation, "cancel", notes="Not needed any more."), ann)

    work = asked.get(escalation.parent_id)
    assert (work.status, work.cancel_reason) == ("cancelled", "Not needed any more.")


def test_a_failure_that_was_dealt_with_elsewhere_is_closed(asked: Questions, ann: Person) -> None:
    escalation = asked.escalation()

    done(ann.answer(escalation, "complete", notes="Did it by hand."), ann)

    assert asked.get(escalation.pk).status == "done"
    assert asked.get(escalation.parent_id).status == "needs_review"


def test_an_answer_leads_to_the_item_that_followed_and_the_last_one_to_the_list(
    asked: Questions, ann: Person
) -> None:
    first, second = asked.task("first"), asked.task("second")

    answer = ann.form(first, "?kind=task").send(ann.browser, ("deed", "complete"))
    assert answer["Location"] == f"{INBOX}{second.pk}/?tenant=acme&kind=task#item"

    answer = ann.form(second, "?kind=task").send(ann.browser, ("deed", "complete"))
    assert answer["Location"] == f"{INBOX}?tenant=acme&kind=task"


# Who may


def test_a_viewer_sees_and_cannot_act(asked: Questions, ann: Person, person: Callable[..., Person]) -> None:
    gate, viewer = asked.gate(), person("vic", role="viewer")

    page = viewer.look(gate)
    assert "You may look, but not decide: your role here is viewer." in words(page)
    assert "answer" not in forms_of(page)

    form = ann.form(gate)
    answer = _sent_by(viewer, form, deed="approve")
    assert "your role here is viewer" in refused(answer, 403)
    assert asked.get(gate.pk).status == "created"


def test_a_reviewer_decides_what_their_human_roles_are_asked_for(
    asked: Questions, person: Callable[..., Person]
) -> None:
    eva = person("eva", role="reviewer", human_roles=["editor"])
    legal, general = asked.review(human_role="legal"), asked.review()

    assert "This is for the human role legal to decide; yours: editor." in words(eva.look(legal))
    done(eva.answer(general, "approve"), eva)


def test_trying_again_is_for_operators(asked: Questions, ann: Person, person: Callable[..., Person]) -> None:
    escalation, eva = asked.escalation(), person("eva", role="reviewer")

    assert "Trying again and cancelling are for operators." in words(eva.look(escalation))
    answer = _sent_by(eva, ann.form(escalation), deed="retry")
    assert "for operators" in refused(answer, 403)
    assert asked.get(escalation.parent_id).status == "needs_review"


def test_whoever_asked_has_no_say_where_that_is_so(asked: Questions, ann: Person) -> None:
    approval = asked.approval(self_approval=False, asked_by=f"user:{ann.user.pk}")

    assert "You asked for this decision, so somebody else must make it." in words(ann.look(approval))
    assert ann.form(approval).buttons == [("deed", "withdraw")]


def test_votes_are_counted_until_enough_agree(
    asked: Questions, ann: Person, person: Callable[..., Person]
) -> None:
    approval, bob = asked.approval(options=(), quorum=2), person("bob", role="reviewer")
    form_of_bob = bob.form(approval)

    assert done(ann.answer(approval, "approve"), ann).startswith("Your vote counts; more must agree")
    assert "You have voted." in words(ann.look(approval))
    assert asked.get(approval.pk).status == "in_progress"

    # Another vote changes nothing about one's own, so a page that was loaded before it is no older for that.
    done(form_of_bob.send(bob.browser, ("deed", "approve")), bob)
    assert asked.get(approval.pk).status == "approved"


def test_nobody_votes_twice(asked: Questions, ann: Person) -> None:
    approval = asked.approval(options=(), quorum=2)
    form = ann.form(approval)
    done(form.send(ann.browser, ("deed", "approve")), ann)

    assert "You have voted." in refused(form.send(ann.browser, ("deed", "approve")), 403)


# What somebody else has done meanwhile


@pytest.mark.parametrize("deed", ["approve", "reject"])
def test_who_comes_too_late_is_told_who_decided_what_and_when(
    deed: str, asked: Questions, ann: Person
) -> None:
    gate = asked.gate()
    form = ann.form(gate)
    approvals.approve(asked.tenant.pk, gate.pk, actor="user:bob", notes="Good.")

    answer = form.send(ann.browser, ("deed", deed), notes="Different.")

    assert re.fullmatch(
        r"Approved by bob on \d+ \w+, \d\d:\d\d:\d\d UTC, after you had loaded this\. Nothing was done\.",
        refused(answer, 409),
    )
    assert "Approved by bob" in words(answer), "the page shows how it is now"
    assert "answer" not in forms_of(answer)
    assert asked.get(gate.pk).reviewer_notes == "Good."


def test_an_item_that_changed_is_shown_anew_with_what_was_written(asked: Questions, ann: Person) -> None:
    task = asked.task()
    form = ann.form(task)
    people.take_up(asked.tenant.pk, task.pk, actor="user:bob")

    answer = form.send(ann.browser, ("deed", "complete"), output="my result")

    assert refused(answer, 409).startswith("Taken up by bob")
    again = forms_of(answer)["answer"]
    assert again.fields["output"] == ["my result"]
    assert asked.get(task.pk).status == "in_progress"
    done(again.send(ann.browser, ("deed", "complete")), ann)


def test_what_fell_away_says_why(asked: Questions, ann: Person) -> None:
    review = asked.review()
    form = ann.form(review)
    cancellation.cancel(asked.tenant.pk, review.parent_id, actor="user:bob", reason="No more money.")

    assert "Withdrawn by bob" in (said := refused(form.send(ann.browser, ("deed", "approve")), 409))
    assert "(obsolete)" in said


def test_an_escalation_whose_work_is_going_again_is_not_cancelled(asked: Questions, ann: Person) -> None:
    escalation = asked.escalation()
    form = ann.form(escalation)
    cancellation.retry(asked.tenant.pk, escalation.parent_id, actor="user:bob")

    refused(form.send(ann.browser, ("deed", "cancel")), 409)

    assert asked.get(escalation.parent_id).status == "created"


def test_of_twenty_answers_at_once_one_counts(asked: Questions, person: Callable[..., Person]) -> None:
    gate = asked.gate()
    crowd = [person(f"p{number}") for number in range(20)]
    forms = [(each, each.form(gate)) for each in crowd]

    answers = at_once(
        *(
            lambda each=each, form=form, number=number: form.send(
                each.browser, ("deed", "reject" if number % 2 else "approve"), notes="mine"
            )
            for number, (each, form) in enumerate(forms)
        )
    )

    assert sorted(answer.status_code for answer in answers) == [302] + [409] * 19
    winner = crowd[next(number for number, answer in enumerate(answers) if answer.status_code == 302)]
    assert all(
        f"by {winner.user.username} on" in notice(answer) for answer in answers if answer.status_code == 409
    )


def test_a_deadlock_that_the_database_ended_asks_for_another_try(
    asked: Questions, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asked.gate()
    form = ann.form(gate)

    def met(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("deadlock detected") from psycopg.errors.DeadlockDetected("deadlock detected")

    monkeypatch.setattr(decisions.api, "decide", met)

    answer = form.send(ann.browser, ("deed", "approve"), notes="kept")

    assert refused(answer, 503).startswith("Two answers met")
    assert forms_of(answer)["answer"].fields["notes"] == ["kept"]


# What is no answer


def test_a_forged_request_is_refused(asked: Questions, ann: Person) -> None:
    gate = asked.gate()

    sent = {"deed": "approve", "shown": str(gate.version)}
    assert ann.browser.post(f"{INBOX}{gate.pk}/", sent).status_code == 403
    assert ann.browser.post(f"{INBOX}approve/", {"chosen": f"{gate.pk}:{gate.version}"}).status_code == 403
    assert asked.get(gate.pk).status == "created"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"shown": ""}, 400), ({"shown": "x"}, 400), ({"shown": "-1"}, 400), ({"shown": "99"}, 409), ({"deed": "explode"}, 409),
        ({"deed": ""}, 400), ({"deed": "resolve"}, 409), ({"deed": "retry"}, 409), ({"notes": "x" * 20_001}, 400), ({"notes": "a\x00b"}, 400),
    ],
)  # fmt: skip
def test_what_the_page_does_not_offer_is_refused(
    change: dict[str, str], status: int, asked: Questions, ann: Person
) -> None:
    gate = asked.gate()

    answer = _sent_by(ann, ann.form(gate), **{"deed": "approve", **change})

    refused(answer, status)
    assert asked.get(gate.pk).status == "created"


def test_nobody_answers_for_another_tenant(
    asked: Questions, other_tenant: Tenant, ann: Person, person: Callable[..., Person]
) -> None:
    gate, stranger = asked.gate(), person("gil", other_tenant, role="admin")
    form = ann.form(gate)

    for address in (
        f"{INBOX}{gate.pk}/",
        f"{INBOX}{gate.pk}/?tenant=acme",
        f"{INBOX}{gate.pk}/?tenant=globex",
    ):
        form.action = address
        assert _sent_by(stranger, form, deed="approve").status_code == 404
    answer = _sent_by(stranger, Form("/inbox/approve/", "post"), chosen=f"{gate.pk}:{gate.version}")
    assert "There is no such item." in notice(answer)
    assert asked.get(gate.pk).status == "created"


# Many at once


def _together(by: Person) -> Form:
    return forms_of(by.get())["together"]


def test_chosen_items_are_approved_together_each_with_its_result(asked: Questions, ann: Person) -> None:
    gates = [asked.gate(name=f"Summary {number}") for number in range(3)]
    review = asked.review()
    form = _together(ann)
    assert len(form.choices["chosen"]) == 4
    approvals.reject(asked.tenant.pk, gates[1].pk, actor="user:bob", notes="No.")

    answer = form.send(ann.browser, chosen=form.choices["chosen"])

    said = notice(answer)
    assert answer.status_code == 200
    assert said.count("Approved : ") == 3
    assert re.search(r"Not done : Approve: Summary 1 Sent back by bob .* Nothing was done\.", said)
    assert [asked.get(item.pk).status for item in (*gates, review)] == [
        "approved",
        "rejected",
        "approved",
        "approved",
    ]


def test_only_what_needs_no_other_word_can_be_approved_together(
    asked: Questions, person: Callable[..., Person]
) -> None:
    eva = person("eva", role="reviewer", human_roles=["editor"])
    asked.approval(), asked.task(), asked.blocker(), asked.escalation(), asked.review(human_role="legal")

    assert "together" not in forms_of(eva.get())
    plain = asked.approval(options=())
    assert _together(eva).choices["chosen"] == [f"{plain.pk}:{plain.version}"]


def test_what_cannot_be_approved_so_says_why_and_hinders_no_other(asked: Questions, ann: Person) -> None:
    gate, optional, task = asked.gate(), asked.approval(), asked.task()
    chosen = [f"{item.pk}:{item.version}" for item in (optional, task, gate)] + [f"{uuid4()}:1"]

    said = notice(_sent_by(ann, _together(ann), chosen=chosen))

    assert f"Not done : {optional.name} Choose one of the options." in said
    assert f"Not done : {task.name} This cannot be done any more." in said
    assert "There is no such item." in said
    assert asked.get(gate.pk).status == "approved"
    assert asked.get(task.pk).status == asked.get(optional.pk).status == "created"


@pytest.mark.parametrize(
    "chosen", [[], ["x"], ["x:1"], [f"{uuid4()}"], [f"{uuid4()}:x"], [f"{uuid4()}:1"] * 101]
)
def test_a_choice_that_is_none_is_refused(chosen: list[str], asked: Questions, ann: Person) -> None:
    asked.gate()

    refused(_sent_by(ann, _together(ann), chosen=chosen), 400)


def test_two_people_approve_the_same_items_in_opposite_order_at_once(
    asked: Questions, person: Callable[..., Person]
) -> None:
    gates = [asked.gate_of_step() for _ in range(5)]
    people_ = [person("bo"), person("cy")]
    forms = [_together(each) for each in people_]
    orders = [forms[0].choices["chosen"], forms[1].choices["chosen"][::-1]]

    answers = at_once(*(lambda i=i: forms[i].send(people_[i].browser, chosen=orders[i]) for i in range(2)))

    assert [answer.status_code for answer in answers] == [200, 200]
    assert sum(notice(answer).count("Approved : ") for answer in answers) == 5
    assert {asked.get(gate.pk).status for gate in gates} == {Status.APPROVED}


def test_an_answer_during_the_agents_run_wakes_it_once_after_it(asked: Questions, ann: Person) -> None:
    """The decision about an approval comes while the activity that it is about is at work for another reason."""
    approval = asked.approval(options=(), linked=1)
    (page,) = asked.get_linked(approval)
    with tenant_scope(asked.tenant.pk):
        assert Activity.objects.get(pk=page).status == "awaiting_review"

    elsewhere(lambda: ann.answer(approval, "approve"))

    assert asked.engine.drain() == 1
    assert len(asked.engine.runs(asked.tenant, page)) == 1


def test_a_voter_of_the_api_and_one_of_the_page_are_the_same_person(asked: Questions, ann: Person) -> None:
    approval = asked.approval(options=(), quorum=2)
    ann_by_api = Voter("user:ann", identity=f"user:{ann.user.pk}")
    approvals.decide(asked.tenant.pk, approval.pk, "approve", by=ann_by_api)

    assert "You have voted." in words(ann.look(approval))


def _sent_by(who: Person, form: Form, **changed: Any) -> HttpResponse:
    """The form of somebody else's page, or one that the page does not have, sent with this person's own token."""
    token = who.browser.get("/inbox/").context["csrf_token"]
    return who.browser.post(
        form.action.partition("#")[0], {**form.fields, "csrfmiddlewaretoken": str(token), **changed}
    )
