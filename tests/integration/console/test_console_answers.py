"""Answers on the page of an item: every kind and button, permissions, and refusals.

The client of these tests runs no scripts and enforces CSRF checks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from activities import outputs, reassignment
from activities.human_tasks import human_work
from tenants.models import Tenant
from tests.browsing import visible_text
from tests.cases import in_one_test
from tests.console_user import INBOX, Person, notice, refusal_notice, send_form, success_notice, trail_of
from tests.forms import Form, forms_of
from tests.questions import Questions

pytestmark = pytest.mark.long

# Each kind


def test_a_gate_is_approved(questions: Questions, ann: Person) -> None:
    gate = questions.gate_of_step()

    assert success_notice(ann.answer(gate, "approve", notes="Good."), ann) == "Approved: Approve: Write"

    now = questions.get(gate.pk)
    assert (now.status, now.decided_by, now.reviewer_notes) == ("approved", "user:ann", "Good.")
    assert questions.get(gate.parent_id).status == "approved"
    assert questions.engine.drain() == 1, "the next step has started"


def test_changes_are_requested_at_a_gate_with_notes(questions: Questions, ann: Person) -> None:
    gate = questions.gate()

    assert (
        success_notice(ann.answer(gate, "reject", notes="Shorter.\r\nAnd with honey."), ann)
        == "Changes requested: Approve: Summary"
    )

    questions.engine.drain()
    revision = questions.newest(link_kind="gate").parent
    assert (revision.round, revision.reviewer_notes) == (2, "Shorter.\nAnd with honey.")


@in_one_test(
    ("kind", "action"),
    [("gate", "reject"), ("review", "reject"), ("approval", "reject"), ("blocker", "resolve")],
)
def test_rejections_and_resolutions_need_notes(
    kind: str, action: str, questions: Questions, ann: Person
) -> None:
    item = getattr(questions, kind)()
    form = ann.form(item)

    for notes in ("", "   ", "\r\n"):
        message = refusal_notice(form.send(ann.browser, ("action", action), notes=notes), 400)
        assert message.startswith("Describe ")
    assert questions.get(item.pk).status == "created"


def test_a_review_is_approved_or_rejected(questions: Questions, ann: Person) -> None:
    good, bad = questions.review(), questions.review()

    assert success_notice(ann.answer(good, "approve"), ann).startswith("Approved")
    assert success_notice(ann.answer(bad, "reject", notes="Warmer."), ann).startswith("Changes requested")

    questions.engine.drain()
    wakes = {
        wake["reason"]: wake["reviewer_feedback"]
        for call in questions.engine.agent.calls[2:]
        for wake in call.wakes
    }
    assert wakes == {"review_approved": "", "review_feedback": "Warmer."}


def test_a_blocker_is_resolved(questions: Questions, ann: Person) -> None:
    blocker = questions.blocker()

    assert success_notice(ann.answer(blocker, "resolve", notes="I signed in again."), ann).startswith(
        "Resolved"
    )

    questions.engine.drain()
    (wake,) = questions.engine.agent.calls[-1].wakes
    assert (wake["reason"], wake["blocker_resolution"]) == ("unblocked", "I signed in again.")


def test_a_blocker_that_was_reassigned_is_resolved_with_a_note_too(questions: Questions, ann: Person) -> None:
    blocker = questions.blocker()
    heir = reassignment.reassign(
        questions.tenant.pk, blocker.pk, actor="Ops", reason="Yours.", human_role="devops"
    )

    assert refusal_notice(ann.answer(heir, "resolve"), 400).startswith("Describe ")
    assert success_notice(ann.answer(heir, "resolve", notes="Up."), ann).startswith("Resolved")

    questions.engine.drain()
    assert questions.engine.agent.calls[-1].wakes[0]["blocker_resolution"] == "Up."


def test_a_task_is_claimed_and_completed_with_a_result(questions: Questions, ann: Person) -> None:
    task = questions.task()

    assert success_notice(ann.answer(task, "start"), ann).startswith("Claimed")
    claimed = r"Claimed by ann on \d+ \w+ \d{4}, \d\d:\d\d UTC\. Others can still answer it\."
    assert re.search(claimed, visible_text(ann.look(task)))
    assert "claimed by ann" in visible_text(ann.browser.get(INBOX))
    assert success_notice(
        ann.answer(task, "complete", output="# Called\r\nThey agree.", notes="Fine."), ann
    ).startswith("Completed")

    now = questions.get(task.pk)
    assert (now.status, now.decided_by, now.reviewer_notes) == ("done", "user:ann", "Fine.")
    assert now.output_ref
    stored = outputs.read(questions.tenant.pk, now.output_ref)
    assert stored
    assert (stored.content, stored.content_type) == ("# Called\nThey agree.", "text/markdown")


def test_a_task_is_completed_without_result_or_notes(questions: Questions, ann: Person) -> None:
    task = questions.task()

    success_notice(ann.answer(task, "complete"), ann)

    assert (questions.get(task.pk).status, questions.get(task.pk).output_ref) == ("done", None)


def test_a_result_that_is_too_long_is_refused_and_kept_in_the_form(
    questions: Questions, ann: Person, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAX_OUTPUT_BYTES = 10
    task = questions.task()

    answer = ann.answer(task, "complete", output="ééééééé", notes="see above")

    assert "longer than the limit of 10 bytes" in refusal_notice(answer, 400)
    assert forms_of(answer)["answer"].fields["output"] == ["ééééééé"]
    assert forms_of(answer)["answer"].fields["notes"] == ["see above"]


def test_an_approval_needs_one_of_its_options(questions: Questions, ann: Person) -> None:
    approval = questions.approval(linked=2)

    choose = "Choose one of the options: Warm, Sober."
    assert refusal_notice(ann.answer(approval, "approve"), 400) == choose
    assert refusal_notice(ann.answer(approval, "approve", option="Loud"), 400) == choose
    assert success_notice(
        ann.answer(approval, "approve", option="Sober", notes="Sober it is."), ann
    ).startswith("Approved")

    assert questions.get(approval.pk).chosen_option == "Sober"
    assert {questions.get(pk).status for pk in questions.get_linked(approval)} == {"created"}
    questions.engine.drain()
    chosen = [call.wakes[-1]["chosen_option"] for call in questions.engine.agent.calls]
    assert chosen == ["Sober", "Sober"]


def test_an_approval_is_rejected_or_withdrawn(questions: Questions, ann: Person) -> None:
    rejected, withdrawn = questions.approval(), questions.approval()

    assert success_notice(ann.answer(rejected, "reject", notes="Neither."), ann).startswith("Rejected")
    assert success_notice(ann.answer(withdrawn, "withdraw", notes="Asked twice."), ann).startswith(
        "Request cancelled"
    )

    assert questions.get(rejected.pk).status == "rejected"
    assert (questions.get(withdrawn.pk).status, questions.get(withdrawn.pk).cancel_reason) == (
        "cancelled",
        "Asked twice.",
    )


def test_failed_work_is_retried(questions: Questions, ann: Person) -> None:
    escalation = questions.escalation()

    assert success_notice(ann.answer(escalation, "retry"), ann) == "Retried: Failed: Audit"

    assert questions.get(escalation.parent_id).status == "created"
    assert questions.get(escalation.pk).status == "cancelled"


def test_failed_work_is_cancelled(questions: Questions, ann: Person) -> None:
    escalation = questions.escalation()

    success_notice(ann.answer(escalation, "cancel", notes="Not needed any more."), ann)

    work = questions.get(escalation.parent_id)
    assert (work.status, work.cancel_reason) == ("cancelled", "Not needed any more.")


def test_completing_an_escalation_does_not_retry_the_work(questions: Questions, ann: Person) -> None:
    escalation = questions.escalation()

    success_notice(ann.answer(escalation, "complete", notes="Did it by hand."), ann)

    assert questions.get(escalation.pk).status == "done"
    assert questions.get(escalation.parent_id).status == "needs_review"


def test_an_answer_leads_to_the_next_item_and_the_last_to_the_list(questions: Questions, ann: Person) -> None:
    first, second, third, fourth = (questions.task(name) for name in ("first", "second", "third", "fourth"))

    answer = ann.form(first, "?kind=task").send(ann.browser, ("action", "complete"))
    assert answer["Location"] == f"{INBOX}{second.pk}/?tenant=acme&kind=task#item"

    form = ann.form(second, "?kind=task")
    human_work.complete(questions.tenant.pk, third.pk, actor="user:bob")
    answer = form.send(ann.browser, ("action", "complete"))
    assert answer["Location"] == f"{INBOX}?tenant=acme&kind=task#content", "the next one is closed"

    answer = ann.form(fourth, "?kind=task").send(ann.browser, ("action", "complete"))
    assert answer["Location"] == f"{INBOX}?tenant=acme&kind=task#content"


# Who may


@pytest.fixture
def viewer(person: Callable[..., Person]) -> Person:
    return person("vic", role="viewer")


@in_one_test(
    ("kind", "action"),
    [("gate", "approve"), ("review", "reject"), ("approval", "withdraw"), ("blocker", "resolve"), ("task", "complete"),
     ("task", "start"), ("escalation", "complete"), ("escalation", "retry")],
)  # fmt: skip
def test_a_viewer_sees_items_and_cannot_answer(
    kind: str, action: str, questions: Questions, ann: Person, viewer: Person
) -> None:
    item = getattr(questions, kind)()

    page = viewer.look(item)
    assert "Your role here is viewer, which may not decide." in visible_text(page)
    assert "answer" not in forms_of(page)

    answer = send_form(viewer, ann.form(item), action=action, notes="mine")
    assert "Your role here is viewer" in refusal_notice(answer, 403)
    assert questions.get(item.pk).status == "created"


def test_a_reviewer_decides_only_items_of_their_human_roles(
    questions: Questions, person: Callable[..., Person]
) -> None:
    eva = person("eva", role="reviewer", human_roles=["editor"])
    legal, general = questions.review(human_role="legal"), questions.review()

    assert "Only the human role legal may decide this. Your roles: editor." in visible_text(eva.look(legal))
    success_notice(eva.answer(general, "approve"), eva)


def test_only_operators_retry(questions: Questions, ann: Person, person: Callable[..., Person]) -> None:
    escalation, eva = questions.escalation(), person("eva", role="reviewer")

    assert "Only operators may retry or cancel the work." in visible_text(eva.look(escalation))
    answer = send_form(eva, ann.form(escalation), action="retry")
    assert "Only operators" in refusal_notice(answer, 403)
    assert questions.get(escalation.parent_id).status == "needs_review"


def test_a_requester_cannot_decide_without_self_approval(questions: Questions, ann: Person) -> None:
    approval = questions.approval(self_approval=False, asked_by=f"user:{ann.user.pk}")

    assert "You requested this decision, so somebody else must make it." in visible_text(ann.look(approval))
    assert ann.form(approval).buttons == [("action", "withdraw")]


def test_votes_are_counted_until_the_quorum(
    questions: Questions, ann: Person, person: Callable[..., Person]
) -> None:
    approval, bob = questions.approval(options=(), quorum=2), person("bob", role="reviewer")
    form_of_bob = bob.form(approval)

    assert success_notice(ann.answer(approval, "approve"), ann).startswith(
        "Vote recorded; more approvals are needed"
    )
    assert "You have voted." in visible_text(ann.look(approval))
    assert questions.get(approval.pk).status == "in_progress"

    # Another person's vote does not make an open page outdated.
    success_notice(form_of_bob.send(bob.browser, ("action", "approve")), bob)
    assert questions.get(approval.pk).status == "approved"


def test_an_item_leaves_the_list_of_whoever_has_voted(
    questions: Questions, ann: Person, person: Callable[..., Person]
) -> None:
    approval, bob = questions.approval(options=(), quorum=2), person("bob", role="reviewer")
    ann.answer(approval, "approve")

    lists = [who.get().context["inbox"] for who in (ann, bob)]

    assert [[row.id for row in each.rows] for each in lists] == [[], [approval.pk]]
    assert [each.total for each in lists] == [0, 1]


def test_nobody_votes_twice(questions: Questions, ann: Person) -> None:
    approval = questions.approval(options=(), quorum=2)
    form = ann.form(approval)
    success_notice(form.send(ann.browser, ("action", "approve")), ann)

    assert "You have voted." in refusal_notice(form.send(ann.browser, ("action", "approve")), 403)


# The audit trail


def test_an_answer_leaves_one_entry_in_the_audit_trail(questions: Questions, ann: Person) -> None:
    gate, task = questions.gate(), questions.task()

    refusal_notice(ann.answer(gate, "reject"), 400)
    ann.answer(gate, "reject", notes="Shorter.")
    ann.answer(task, "start")
    ann.answer(task, "complete", output="Done.")

    assert [
        (entry.operation, entry.actor_name, entry.object_id, entry.ip) for entry in trail_of(questions.tenant)
    ] == [
        ("inbox.reject", "ann", str(gate.pk), "127.0.0.1"),
        ("inbox.start", "ann", str(task.pk), "127.0.0.1"),
        ("inbox.complete", "ann", str(task.pk), "127.0.0.1"),
    ]


def test_the_trail_names_the_break_glass_session_of_an_answer(questions: Questions, root: Person) -> None:
    gate = questions.gate()

    root.form(gate, "?tenant=acme").send(root.browser, ("action", "approve"))

    (entry,) = trail_of(questions.tenant)
    assert entry.operation == "inbox.approve"
    assert entry.break_glass_id is not None


# What is no answer


def test_a_forged_request_is_refused(questions: Questions, ann: Person) -> None:
    gate = questions.gate()

    sent = {"action": "approve", "version": str(gate.version)}
    assert ann.browser.post(f"{INBOX}{gate.pk}/", sent).status_code == 403
    assert ann.browser.post(f"{INBOX}approve/", {"chosen": f"{gate.pk}:{gate.version}"}).status_code == 403
    assert questions.get(gate.pk).status == "created"


def test_answers_that_the_page_does_not_offer_are_refused(questions: Questions, ann: Person) -> None:
    gate = questions.gate()
    form = ann.form(gate)
    for change, status in (
        ({"version": ""}, 400), ({"version": "x"}, 400), ({"version": "-1"}, 400), ({"version": str(2**31)}, 400),
        ({"version": "99"}, 409), ({"action": "explode"}, 409),
        ({"action": ""}, 400), ({"action": "resolve"}, 409), ({"action": "retry"}, 409), ({"notes": "x" * 20_001}, 400),
        ({"notes": "a\x00b"}, 400),
    ):  # fmt: skip
        refusal_notice(send_form(ann, form, **{"action": "approve", **change}), status)
    assert questions.get(gate.pk).status == "created"


def test_members_of_another_tenant_cannot_answer(
    questions: Questions, other_tenant: Tenant, ann: Person, person: Callable[..., Person]
) -> None:
    gate, stranger = questions.gate(), person("gil", other_tenant, role="admin")
    form = ann.form(gate)

    for address in (
        f"{INBOX}{gate.pk}/",
        f"{INBOX}{gate.pk}/?tenant=acme",
        f"{INBOX}{gate.pk}/?tenant=globex",
    ):
        form.action = address
        assert send_form(stranger, form, action="approve").status_code == 404
    answer = send_form(stranger, Form("/inbox/approve/", "post"), chosen=f"{gate.pk}:{gate.version}")
    assert "This item does not exist." in notice(answer)
    assert questions.get(gate.pk).status == "created"
