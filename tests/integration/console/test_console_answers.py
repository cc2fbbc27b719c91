"""Answers given on the page: each kind, each button, who may, and what is refused.

The browser of these tests has no scripts, and is guarded against forged requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from activities import outputs, reassignment
from tenants.models import Tenant
from tests.browsing import words
from tests.console_user import INBOX, Person, done, notice, refused, sent_by
from tests.forms import Form, forms_of
from tests.questions import Questions

pytestmark = pytest.mark.long

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
        == "Changes requested: Approve: Summary"
    )

    asked.engine.drain()
    revision = asked.newest(link_kind="gate").parent
    assert (revision.round, revision.reviewer_notes) == (2, "Shorter.\nAnd with honey.")


@pytest.mark.parametrize(
    ("kind", "deed"),
    [("gate", "reject"), ("review", "reject"), ("approval", "reject"), ("blocker", "resolve")],
)
def test_a_no_and_a_resolution_need_words(kind: str, deed: str, asked: Questions, ann: Person) -> None:
    item = getattr(asked, kind)()
    form = ann.form(item)

    for notes in ("", "   ", "\r\n"):
        said = refused(form.send(ann.browser, ("deed", deed), notes=notes), 400)
        assert said.startswith("Describe ")
    assert asked.get(item.pk).status == "created"


def test_a_review_is_answered_either_way(asked: Questions, ann: Person) -> None:
    good, bad = asked.review(), asked.review()

    assert done(ann.answer(good, "approve"), ann).startswith("Approved")
    assert done(ann.answer(bad, "reject", notes="Warmer."), ann).startswith("Changes requested")

    asked.engine.drain()
    wakes = {
        wake["reason"]: wake["reviewer_feedback"]
        for call in asked.engine.agent.calls[2:]
        for wake in call.wakes
    }
    assert wakes == {"review_approved": "", "review_feedback": "Warmer."}


def test_a_blocker_is_resolved(asked: Questions, ann: Person) -> None:
    blocker = asked.blocker()

    assert done(ann.answer(blocker, "resolve", notes="I signed in again."), ann).startswith("Resolved")

    asked.engine.drain()
    (wake,) = asked.engine.agent.calls[-1].wakes
    assert (wake["reason"], wake["blocker_resolution"]) == ("unblocked", "I signed in again.")


def test_a_blocker_that_was_reassigned_is_resolved_with_a_note_too(asked: Questions, ann: Person) -> None:
    blocker = asked.blocker()
    heir = reassignment.reassign(
        asked.tenant.pk, blocker.pk, actor="Ops", reason="Yours.", human_role="devops"
    )

    assert refused(ann.answer(heir, "resolve"), 400).startswith("Describe ")
    assert done(ann.answer(heir, "resolve", notes="Up."), ann).startswith("Resolved")

    asked.engine.drain()
    assert asked.engine.agent.calls[-1].wakes[0]["blocker_resolution"] == "Up."


def test_a_task_is_taken_up_and_completed_with_a_result(asked: Questions, ann: Person) -> None:
    task = asked.task()

    assert done(ann.answer(task, "start"), ann).startswith("Claimed")
    assert "Claimed by ann ." in words(ann.look(task))
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

    assert "longer than the limit of 10 bytes" in refused(answer, 400)
    assert forms_of(answer)["answer"].fields["output"] == ["ééééééé"]
    assert forms_of(answer)["answer"].fields["notes"] == ["see above"]


def test_an_approval_takes_one_of_its_options(asked: Questions, ann: Person) -> None:
    approval = asked.approval(linked=2)

    choose = "Choose one of the options: Warm, Sober."
    assert refused(ann.answer(approval, "approve"), 400) == choose
    assert refused(ann.answer(approval, "approve", option="Loud"), 400) == choose
    assert done(ann.answer(approval, "approve", option="Sober", notes="Sober it is."), ann).startswith(
        "Approved"
    )

    assert asked.get(approval.pk).chosen_option == "Sober"
    assert {asked.get(pk).status for pk in asked.get_linked(approval)} == {"created"}
    asked.engine.drain()
    told = [call.wakes[-1]["chosen_option"] for call in asked.engine.agent.calls]
    assert told == ["Sober", "Sober"]


def test_an_approval_is_rejected_or_withdrawn(asked: Questions, ann: Person) -> None:
    rejected, withdrawn = asked.approval(), asked.approval()

    assert done(ann.answer(rejected, "reject", notes="Neither."), ann).startswith("Rejected")
    assert done(ann.answer(withdrawn, "withdraw", notes="Asked twice."), ann).startswith("Request cancelled")

    assert asked.get(rejected.pk).status == "rejected"
    assert (asked.get(withdrawn.pk).status, asked.get(withdrawn.pk).cancel_reason) == (
        "cancelled",
        "Asked twice.",
    )


def test_failed_work_is_retried(asked: Questions, ann: Person) -> None:
    escalation = asked.escalation()

    assert done(ann.answer(escalation, "retry"), ann) == "Retried: Failed: Audit"

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
    assert answer["Location"] == f"{INBOX}?tenant=acme&kind=task#content"


# Who may


@pytest.mark.parametrize(
    ("kind", "deed"),
    [("gate", "approve"), ("review", "reject"), ("approval", "withdraw"), ("blocker", "resolve"), ("task", "complete"),
     ("task", "start"), ("escalation", "complete"), ("escalation", "retry")],
)  # fmt: skip
def test_a_viewer_sees_and_cannot_act(
    kind: str, deed: str, asked: Questions, ann: Person, person: Callable[..., Person]
) -> None:
    item, viewer = getattr(asked, kind)(), person("vic", role="viewer")

    page = viewer.look(item)
    assert "Your role here is viewer, which may not decide." in words(page)
    assert "answer" not in forms_of(page)

    answer = sent_by(viewer, ann.form(item), deed=deed, notes="mine")
    assert "Your role here is viewer" in refused(answer, 403)
    assert asked.get(item.pk).status == "created"


def test_a_reviewer_decides_what_their_human_roles_are_asked_for(
    asked: Questions, person: Callable[..., Person]
) -> None:
    eva = person("eva", role="reviewer", human_roles=["editor"])
    legal, general = asked.review(human_role="legal"), asked.review()

    assert "Only the human role legal may decide this. Your roles: editor." in words(eva.look(legal))
    done(eva.answer(general, "approve"), eva)


def test_trying_again_is_for_operators(asked: Questions, ann: Person, person: Callable[..., Person]) -> None:
    escalation, eva = asked.escalation(), person("eva", role="reviewer")

    assert "Only operators may retry or cancel the work." in words(eva.look(escalation))
    answer = sent_by(eva, ann.form(escalation), deed="retry")
    assert "Only operators" in refused(answer, 403)
    assert asked.get(escalation.parent_id).status == "needs_review"


def test_whoever_asked_has_no_say_where_that_is_so(asked: Questions, ann: Person) -> None:
    approval = asked.approval(self_approval=False, asked_by=f"user:{ann.user.pk}")

    assert "You requested this decision, so somebody else must make it." in words(ann.look(approval))
    assert ann.form(approval).buttons == [("deed", "withdraw")]


def test_votes_are_counted_until_enough_agree(
    asked: Questions, ann: Person, person: Callable[..., Person]
) -> None:
    approval, bob = asked.approval(options=(), quorum=2), person("bob", role="reviewer")
    form_of_bob = bob.form(approval)

    assert done(ann.answer(approval, "approve"), ann).startswith("Vote recorded; more approvals are needed")
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


# What is no answer


def test_a_forged_request_is_refused(asked: Questions, ann: Person) -> None:
    gate = asked.gate()

    sent = {"deed": "approve", "shown": str(gate.version)}
    assert ann.browser.post(f"{INBOX}{gate.pk}/", sent).status_code == 403
    assert ann.browser.post(f"{INBOX}approve/", {"chosen": f"{gate.pk}:{gate.version}"}).status_code == 403
    assert asked.get(gate.pk).status == "created"


def test_what_the_page_does_not_offer_is_refused(asked: Questions, ann: Person) -> None:
    gate = asked.gate()
    form = ann.form(gate)
    for change, status in (
        ({"shown": ""}, 400), ({"shown": "x"}, 400), ({"shown": "-1"}, 400), ({"shown": "99"}, 409), ({"deed": "explode"}, 409),
        ({"deed": ""}, 400), ({"deed": "resolve"}, 409), ({"deed": "retry"}, 409), ({"notes": "x" * 20_001}, 400),
        ({"notes": "a\x00b"}, 400),
    ):  # fmt: skip
        refused(sent_by(ann, form, **{"deed": "approve", **change}), status)
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
        assert sent_by(stranger, form, deed="approve").status_code == 404
    answer = sent_by(stranger, Form("/inbox/approve/", "post"), chosen=f"{gate.pk}:{gate.version}")
    assert "This item does not exist." in notice(answer)
    assert asked.get(gate.pk).status == "created"
