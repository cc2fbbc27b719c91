"""Answers take effect ten seconds later: until then they can be undone; then they count once or say why not."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.http import HttpResponse

from activities import cancellation, outputs
from activities.decision_rules import Later
from activities.human_tasks import deadlines, decisions
from activities.maintenance import recovery
from activities.models import Activity, ActivityEvent, Deadline, HeldAnswer
from console.inbox import undo as inbox_undo
from tenants import sweeps
from tenants.context import OWNER, system_scope, tenant_scope
from tenants.models import Membership, Tenant
from tests.browsing import visible_text
from tests.console_user import INBOX, Person, notice, refusal_notice, success_notice, trail_of
from tests.engine import simultaneously
from tests.forms import forms_of
from tests.questions import Questions
from tests.upkeep import run_due_jobs

UNDO_SECONDS = 10.0


@pytest.fixture(autouse=True)
def held_for_ten_seconds(settings: Any) -> None:
    settings.ORCHESTRATOR_UNDO_SECONDS = UNDO_SECONDS


def later(seconds: float = UNDO_SECONDS) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def held() -> list[HeldAnswer]:
    with system_scope():
        return list(HeldAnswer.objects.order_by("pk"))


def approve(by: Person, item: Any, **fields: str) -> HttpResponse:
    answer = by.answer(item, "approve", **fields)
    assert answer.status_code == 302, visible_text(answer)
    return by.get(answer["Location"])


def approve_edited(by: Person, item: Any, text: str) -> HttpResponse:
    answer = by.answer(item, "approve_edited", edited=text)
    assert answer.status_code == 302, visible_text(answer)
    return by.get(answer["Location"])


def undo_first(by: Person) -> HttpResponse:
    """Press the first Undo of the inbox."""
    form = next(form for name, form in forms_of(by.get()).items() if name.startswith("held-"))
    return form.send(by.browser, ("action", "undo"))


def test_an_answer_takes_effect_at_its_time_and_not_before(questions: Questions, ann: Person) -> None:
    gate = questions.gate(name="Summary")

    page = approve(ann, gate, notes="Good.")
    early = inbox_undo.apply_due(later(UNDO_SECONDS - 1))
    status = questions.get(gate.pk).status

    assert (early, status) == (0, "created")
    # On a busy machine some of the ten seconds have passed when the page is made.
    assert re.search(r"Approved: Approve: Summary takes effect in (10|\d) s Undo", visible_text(page))
    assert inbox_undo.apply_due(later()) == 1
    now = questions.get(gate.pk)
    assert (now.status, now.reviewer_notes) == ("approved", "Good.")
    assert held() == []
    assert "takes effect in" not in visible_text(ann.get())


def test_an_answered_item_leaves_only_the_members_own_list(
    questions: Questions, ann: Person, person: Callable[..., Person]
) -> None:
    gate, bob = questions.gate(name="Summary"), person("bob")
    address = f"{INBOX}{gate.pk}/"

    page = approve(ann, gate)

    assert (address in page.content.decode(), "Inbox 0" in visible_text(page)) == (False, True)
    assert address in bob.get().content.decode()
    assert "answer" not in forms_of(ann.look(gate)), "it has an answer"
    assert "answer" in forms_of(bob.look(gate))
    assert "Undo" not in visible_text(bob.get())


def test_a_claim_takes_effect_at_once_and_leads_to_its_item(questions: Questions, ann: Person) -> None:
    task = questions.task()
    questions.task("another")

    claimed = ann.answer(task, "start")

    assert questions.get(task.pk).status == "in_progress"
    assert held() == []
    page = ann.get(claimed["Location"])
    assert "Claimed by ann" in visible_text(page)
    assert forms_of(page)["answer"].action.startswith(f"{INBOX}{task.pk}/"), "and the task can be completed"


def test_an_undone_answer_leaves_no_trace(questions: Questions, ann: Person) -> None:
    gate = questions.gate()
    before = questions.get(gate.pk).version
    approve(ann, gate)

    answer = undo_first(ann)

    assert success_notice(answer, ann) == "Answer undone. Nothing was changed."
    assert answer["Location"].startswith(f"{INBOX}{gate.pk}/"), "where another answer can be given"
    assert inbox_undo.apply_due(later()) == 0
    assert (questions.get(gate.pk).status, questions.get(gate.pk).version) == ("created", before)
    done_again = ann.answer(gate, "reject", notes="Shorter.")
    assert done_again.status_code == 302


def test_the_trail_names_who_answered_and_from_where_once_it_takes_effect(
    questions: Questions, ann: Person
) -> None:
    undone, gate = questions.gate(name="Undone"), questions.gate(name="Kept")
    approve(ann, undone)
    undo_first(ann)
    request = ann.answer(gate, "reject", notes="A secret remark")["X-Request-Id"]
    before = trail_of(questions.tenant)

    inbox_undo.apply_due(later())

    (entry,) = trail_of(questions.tenant)
    assert before == []
    assert (entry.operation, entry.actor_kind, entry.actor_id, entry.actor_name) == (
        "inbox.reject",
        "user",
        str(ann.user.pk),
        "ann",
    )
    assert (entry.object_kind, entry.object_id) == ("activities", str(gate.pk))
    assert (entry.request_id, entry.ip) == (request, "127.0.0.1")
    assert "A secret remark" not in str(entry.detail)


def test_the_trail_does_not_record_an_answer_that_did_not_take_effect(
    questions: Questions, ann: Person
) -> None:
    gate = questions.gate()
    approve(ann, gate)
    decisions.reject(questions.tenant.pk, gate.pk, actor="user:bob", notes="No.")

    inbox_undo.apply_due(later())

    assert trail_of(questions.tenant) == []


def test_an_edited_text_is_approved_at_its_time(questions: Questions, ann: Person) -> None:
    gate = questions.gate("# Bees")
    page = approve_edited(ann, gate, "# Bees\n\nThey fly.")

    assert "takes effect in" in visible_text(page)
    assert inbox_undo.apply_due(later()) == 1

    output = outputs.read(questions.tenant.pk, questions.get(gate.pk).output_ref)
    assert output is not None
    assert output.content == "# Bees\n\nThey fly."
    assert questions.get(gate.pk).status == "approved"


def test_a_late_undo_is_refused(questions: Questions, ann: Person) -> None:
    gate = questions.gate()
    approve(ann, gate)
    form = next(form for name, form in forms_of(ann.get()).items() if name.startswith("held-"))
    inbox_undo.apply_due(later())

    answer = form.send(ann.browser, ("action", "undo"))

    assert success_notice(answer, ann) == "Too late to undo: the answer has already taken effect."
    assert questions.get(gate.pk).status == "approved"


def test_an_overtaken_answer_says_by_whom_until_it_is_read(questions: Questions, ann: Person) -> None:
    gate = questions.gate(name="Summary")
    approve(ann, gate)
    decisions.reject(questions.tenant.pk, gate.pk, actor="user:bob", notes="No.")

    assert inbox_undo.apply_due(later()) == 1

    page = ann.get()
    assert "did not take effect. Changes requested by bob" in visible_text(page)
    assert inbox_undo.apply_due(later()) == 0, "it is not tried again"
    (form,) = (form for name, form in forms_of(page).items() if name.startswith("held-"))
    assert form.send(ann.browser, ("action", "read")).status_code == 302
    assert "did not take effect" not in visible_text(ann.get())
    assert held() == []


@pytest.mark.parametrize("undone", [False, True])
def test_an_answer_before_the_due_time_counts_and_not_the_default_outcome(
    questions: Questions, ann: Person, undone: bool
) -> None:
    gate = questions.approval(
        options=(), due_seconds=120, escalation=(Later(110, "head"),), on_timeout="reject"
    )
    with tenant_scope(questions.tenant.pk):
        _, due = Deadline.objects.filter(activity_id=gate.pk).order_by("at")
    approve(ann, gate)
    after_all = due.at + timedelta(seconds=1)

    deadlines.pass_due(after_all)

    assert questions.get(gate.pk).status == "created"
    assert questions.get(gate.pk).human_role == gate.human_role
    if undone:
        undo_first(ann)
    else:
        assert inbox_undo.apply_due(after_all) == 1
    deadlines.pass_due(after_all)
    assert questions.get(gate.pk).status == ("rejected" if undone else "approved")
    with tenant_scope(questions.tenant.pk):
        assert not Deadline.objects.filter(activity_id=gate.pk, happened_at=None).exists()


def test_an_answer_after_the_due_time_delays_nothing(questions: Questions, ann: Person) -> None:
    gate = questions.approval(options=(), due_seconds=120, on_timeout="reject")
    approve(ann, gate)
    with tenant_scope(questions.tenant.pk):
        Deadline.objects.filter(activity_id=gate.pk).update(at=later(-1))

    deadlines.pass_due(later())

    assert questions.get(gate.pk).status == "rejected"


@pytest.mark.parametrize("undone", [False, True])
def test_a_task_that_was_completed_before_its_expiry_does_not_expire(
    questions: Questions, ann: Person, undone: bool
) -> None:
    task = questions.task(expires_at=later(60))
    assert ann.answer(task, "complete", output="She is happy.").status_code == 302
    with tenant_scope(questions.tenant.pk):
        answered_at = HeldAnswer.objects.get().created_at
        Activity.objects.filter(pk=task.pk).update(expires_at=answered_at + timedelta(microseconds=1))

    recovery.expire_stale()
    is_expired = cancellation.expire(questions.tenant.pk, task.pk, actor="recovery")

    assert (is_expired, questions.get(task.pk).status) == (False, "created")
    if undone:
        undo_first(ann)
    else:
        assert inbox_undo.apply_due(later()) == 1
    recovery.expire_stale()
    assert questions.get(task.pk).status == ("cancelled" if undone else "done")


def test_an_answer_waits_while_its_tenant_is_suspended_and_so_does_the_due_time(
    questions: Questions, ann: Person
) -> None:
    gate = questions.approval(options=(), due_seconds=120, on_timeout="reject")
    approve(ann, gate)

    with system_scope():
        Tenant.objects.filter(pk=questions.tenant.pk).update(is_active=False)
    while_suspended = inbox_undo.apply_due(later())
    with system_scope():
        Tenant.objects.filter(pk=questions.tenant.pk).update(is_active=True)
    deadlines.pass_due(later(300))

    assert (while_suspended, questions.get(gate.pk).status) == (0, "created")
    assert inbox_undo.apply_due(later()) == 1
    assert questions.get(gate.pk).status == "approved"


@pytest.mark.parametrize("gone", ["membership", "role", "account"])
def test_an_answer_counts_only_if_the_member_may_still_answer(
    questions: Questions, ann: Person, gone: str
) -> None:
    gate = questions.gate()
    approve(ann, gate)
    with tenant_scope(questions.tenant.pk):
        member = Membership.objects.filter(user=ann.user)
        if gone == "membership":
            member.delete()
        elif gone == "role":
            member.update(role="viewer")
    if gone == "account":
        ann.user.is_active = False
        ann.user.save()

    assert inbox_undo.apply_due(later()) == 1

    assert questions.get(gate.pk).status == "created"
    (kept,) = held()
    assert kept.refusal


def test_a_second_answer_is_refused_while_one_is_held(questions: Questions, ann: Person) -> None:
    gate = questions.gate()
    form = ann.form(gate)
    assert form.send(ann.browser, ("action", "approve")).status_code == 302

    again = form.send(ann.browser, ("action", "reject"), notes="No.")

    assert "already answered this" in refusal_notice(again, 409)
    assert [one.action for one in held()] == ["approve"]


def test_an_invalid_answer_is_refused_at_once(questions: Questions, ann: Person) -> None:
    gate = questions.gate()
    form = ann.form(gate)

    lacking = form.send(ann.browser, ("action", "reject"))
    decisions.approve(questions.tenant.pk, gate.pk, actor="user:bob")
    late = form.send(ann.browser, ("action", "approve"))

    assert "Describe the changes" in refusal_notice(lacking, 400)
    assert "Approved by bob" in refusal_notice(late, 409)
    assert held() == []


def test_concurrent_leaders_apply_an_answer_once(questions: Questions, ann: Person) -> None:
    gate = questions.gate()
    approve(ann, gate)
    due = later()

    outcomes = simultaneously(*[lambda: inbox_undo.apply_due(due)] * 4)

    assert sum(outcomes) == 1
    with tenant_scope(questions.tenant.pk):
        assert ActivityEvent.objects.filter(activity_id=gate.pk, target="approved").count() == 1


def test_either_the_leader_or_a_concurrent_undo_wins(questions: Questions, ann: Person) -> None:
    gates = [questions.gate(name=f"Summary {number}") for number in range(4)]
    for gate in gates:
        approve(ann, gate)
    undo = [form for name, form in forms_of(ann.get()).items() if name.startswith("held-")]
    due = later()

    simultaneously(
        lambda: inbox_undo.apply_due(due),
        *[lambda form=form: form.send(ann.browser, ("action", "undo")) for form in undo],
    )
    inbox_undo.apply_due(due)

    assert held() == []
    page = visible_text(ann.get())
    for gate in gates:
        assert (questions.get(gate.pk).status == "approved") != (gate.name in page)


def test_answers_given_together_can_be_undone_one_by_one(questions: Questions, ann: Person) -> None:
    kept, back = questions.gate(name="Kept"), questions.gate(name="Back")
    form = forms_of(ann.get())["together"]

    answer = form.send(ann.browser, chosen=form.choices["chosen"])
    assert notice(answer).count("Approved: ") == 2
    mine = {one.activity_id: one for one in held()}
    again = forms_of(ann.get())[f"held-{mine[back.pk].pk}"]
    again.send(ann.browser, ("action", "undo"))
    inbox_undo.apply_due(later())

    assert [questions.get(item.pk).status for item in (kept, back)] == ["approved", "created"]


def test_an_answer_of_another_member_cannot_be_undone(
    questions: Questions, ann: Person, person: Callable[..., Person], other_tenant: Tenant
) -> None:
    gate = questions.gate()
    approve(ann, gate)
    form = next(form for name, form in forms_of(ann.get()).items() if name.startswith("held-"))
    others = [person("bob"), person("eve", other_tenant)]

    for other in others:
        token = other.browser.get(INBOX).context["csrf_token"]
        fields = {**form.fields, "csrfmiddlewaretoken": str(token), "action": "undo"}
        other.browser.post("/inbox/undo/", fields)

    assert len(held()) == 1
    assert inbox_undo.apply_due(later()) == 1
    assert questions.get(gate.pk).status == "approved"


def test_a_deleted_user_leaves_no_held_answer(questions: Questions, ann: Person) -> None:
    gate = questions.gate()
    approve(ann, gate)
    with tenant_scope(questions.tenant.pk):
        Membership.objects.filter(user=ann.user).delete()

    with connections[OWNER].cursor() as cursor:
        cursor.execute("DELETE FROM auth_user WHERE id = %s", [ann.user.pk])

    assert held() == []
    assert inbox_undo.apply_due(later()) == 0
    assert questions.get(gate.pk).status == "created"


def test_the_leader_applies_answers(questions: Questions, ann: Person) -> None:
    gate = questions.gate()
    approve(ann, gate)
    with system_scope():
        HeldAnswer.objects.update(due_at=later(-1))

    run_due_jobs()

    assert questions.get(gate.pk).status == "approved"


@pytest.mark.parametrize("step", ["prepare", "perform"])
def test_an_internal_error_changes_nothing_and_is_reported(
    questions: Questions, ann: Person, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, other = questions.gate(name="Broken"), questions.gate(name="Fine")
    for item in (gate, other):
        approve(ann, item)
    function = getattr(inbox_undo.actions, step)

    def broken(principal: Any, item_id: Any, *arguments: Any) -> Any:
        outcome = function(principal, item_id, *arguments)
        if item_id == gate.pk:
            raise LookupError("a secret detail")
        return outcome

    monkeypatch.setattr(inbox_undo.actions, step, broken)

    assert inbox_undo.apply_due(later()) == 2

    assert [questions.get(item.pk).status for item in (gate, other)] == ["created", "approved"]
    page = visible_text(ann.get())
    assert "An internal error occurred. Nothing was done." in page
    assert "a secret detail" not in page


def test_an_answer_whose_person_cannot_be_read_does_not_stop_the_others(
    questions: Questions, ann: Person, person: Callable[..., Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "PAGE", 1)
    gate, other = questions.gate(name="Broken"), questions.gate(name="Fine")
    approve(ann, gate)
    approve(person("bob"), other)
    principal_of = inbox_undo.members.principal_of

    def broken(user: Any, slug: str) -> Any:
        if user.pk == ann.user.pk:
            raise LookupError("broken")
        return principal_of(user, slug)

    with monkeypatch.context() as patched:
        patched.setattr(inbox_undo.members, "principal_of", broken)
        assert inbox_undo.apply_due(later()) == 1

    assert [questions.get(item.pk).status for item in (gate, other)] == ["created", "approved"]
    assert inbox_undo.apply_due(later()) == 1, "it is tried again"
