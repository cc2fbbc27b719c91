"""Approvals and dead letters in the admin: their pages and buttons."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.test import Client

from activities import dead_letters
from activities.decision_rules import Later, Voter
from activities.human_tasks import decisions
from activities.models import Activity, Approval, DeadLetter, Deadline, ToolCall
from agents.contracts import Accepted
from tenants.context import system_scope
from tenants.models import Tenant
from tests.accepted_work import accept_and_create
from tests.browsing import list_url, messages_of, page_url, run_action, visible_text
from tests.engine import Engine
from tests.failed_work import letters_of, submit_failing
from tests.open_questions import links_of, open_approval

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def row_of(model: type, key: UUID) -> object:
    with system_scope():
        return model._default_manager.get(pk=key)  # type: ignore[attr-defined]


def test_an_approval_shows_its_question_votes_and_waiting_activities(
    engine: Engine, acme: Tenant, root: Client
) -> None:
    (activity_id,) = engine.submit(acme)
    approval = open_approval(acme, [activity_id], quorum=2, options=("Honey", "Hives"), due_seconds=60)
    decisions.approve(
        acme.pk, approval, actor=Voter("Ann", identity="user:1"), chosen_option="Hives", notes="<b>yes</b>"
    )

    listed, page = visible_text(root.get(list_url(Approval))), root.get(page_url(row_of(Approval, approval)))

    assert "Which direction? acme content_direction pending 1 operator" in listed
    page_text = visible_text(page)
    assert "reviewer, 2 must agree, due " in page_text
    assert "Ann: approve Hives" in page_text
    assert "work 0 (awaiting_review): waiting" in page_text
    assert "<b>yes</b>" not in page.content.decode()


def test_the_buttons_of_an_approval_approve_reject_and_withdraw_it(
    engine: Engine, acme: Tenant, root: Client
) -> None:
    ids = engine.submit(acme, count=3)
    rows = [row_of(Approval, open_approval(acme, [one])) for one in ids]

    for verb, approval in zip(("approve", "reject", "withdraw"), rows, strict=True):
        run_action(root, Approval, f"{verb}_selected", approval, confirmed="1", notes="Because.")

    with system_scope():
        decided = [engine.get(acme, approval.pk) for approval in rows]  # type: ignore[attr-defined]
    assert [(one.status, one.decided_by) for one in decided] == [
        ("approved", "user:root"), ("rejected", "user:root"), ("cancelled", "user:root")
    ]  # fmt: skip
    assert {state for approval in rows for state, _ in links_of(acme, approval.pk).values()} == {"woken"}  # type: ignore[attr-defined]
    again = run_action(root, Approval, "approve_selected", rows[0], confirmed="1")
    assert "user:root approved this at" in messages_of(again)[-1]


def test_the_page_of_the_approve_button_offers_the_options_and_needs_a_choice(
    engine: Engine, acme: Tenant, root: Client
) -> None:
    approval = row_of(Approval, open_approval(acme, options=("Honey", "Hives")))

    page = root.get(f"/admin/activities/approval/{approval.pk}/approve/")  # type: ignore[attr-defined]
    refused = run_action(root, Approval, "approve_selected", approval, confirmed="1", choice="")
    status = engine.status(acme, approval.pk)  # type: ignore[attr-defined]
    run_action(root, Approval, "approve_selected", approval, confirmed="1", choice="Hives")

    assert [value for value, _ in page.context["form"].fields["choice"].choices] == ["", "Honey", "Hives"]
    assert "Chosen option" in visible_text(page)
    assert "This field is required." in visible_text(refused)
    decided = engine.get(acme, approval.pk)  # type: ignore[attr-defined]
    assert (status, decided.status, decided.chosen_option) == ("created", "approved", "Hives")


def test_an_option_is_chosen_for_the_rows_that_offer_it(engine: Engine, acme: Tenant, root: Client) -> None:
    rows = [
        open_approval(acme, options=options)
        for options in (("Honey", "Hives"), ("Wax", "Hives"), ("Wax",), ())
    ]
    items = [row_of(Activity, one) for one in rows]

    answer = run_action(root, Activity, "approve_selected", *items, confirmed="1", choice="Hives")

    decided = [engine.get(acme, one) for one in rows]
    assert [(item.status, item.chosen_option) for item in decided] == [
        ("approved", "Hives"), ("approved", "Hives"), ("created", None), ("approved", None)
    ]  # fmt: skip
    assert any("must be one of the options: 'Wax'" in message for message in messages_of(answer))


def test_rejecting_needs_no_option(engine: Engine, acme: Tenant, root: Client) -> None:
    approval = open_approval(acme, options=("Honey", "Hives"))

    run_action(root, Approval, "reject_selected", row_of(Approval, approval), confirmed="1", notes="Neither.")

    assert engine.status(acme, approval) == "rejected"


def test_opening_the_page_of_a_button_changes_nothing(engine: Engine, acme: Tenant, root: Client) -> None:
    approval = open_approval(acme)

    for verb in ("approve", "reject", "withdraw"):
        assert root.get(f"/admin/activities/approval/{approval}/{verb}/").status_code == 200

    assert engine.status(acme, approval) == "created"


def test_a_dead_letter_shows_its_failure_and_similar_ones(engine: Engine, acme: Tenant, root: Client) -> None:
    submit_failing(engine, acme, count=2)
    (first, second) = submit_failing(engine, acme, "dev", count=2)
    dead_letters.handle_waiting()

    text = visible_text(root.get(list_url(DeadLetter)))
    page = visible_text(root.get(page_url(letters_of(acme, first)[0])))

    assert "dev Permanent It broke. open 2" in text
    assert "Open similar failures" in page
    fingerprint = letters_of(acme, second)[0].fingerprint
    together = root.get(list_url(DeadLetter), {"fingerprint__exact": fingerprint, "tenant": "acme"})
    assert {letter.activity_id for letter in together.context["cl"].result_list} == {first, second}


def test_a_replay_shows_its_count_first_and_happens_once(engine: Engine, acme: Tenant, root: Client) -> None:
    ids = submit_failing(engine, acme, count=3)
    letters = letters_of(acme, *ids)

    question = visible_text(run_action(root, DeadLetter, "replay_selected", *letters))
    statuses = {engine.status(acme, one) for one in ids}
    run_action(root, DeadLetter, "replay_selected", *letters, confirmed="1")
    again = run_action(root, DeadLetter, "replay_selected", letters[0], confirmed="1")

    assert "This affects 3; 0 were handled before." in question
    assert statuses == {"failed"}
    assert {engine.status(acme, one) for one in ids} == {"created"}
    assert "It was handled before" in messages_of(again)[-1]


def test_similar_failures_are_replayed_together(
    engine: Engine, acme: Tenant, other_tenant: Tenant, root: Client
) -> None:
    engine.serve(other_tenant)
    ids, other = submit_failing(engine, acme, count=3), submit_failing(engine, other_tenant)
    (letter,) = letters_of(acme, ids[0])

    question = visible_text(run_action(root, DeadLetter, "replay_alike_selected", letter))
    run_action(root, DeadLetter, "replay_alike_selected", letter, confirmed="1")

    assert "This affects 3; 0 were handled before." in question
    assert {engine.status(acme, one) for one in ids} == {"created"}
    assert engine.status(other_tenant, other[0]) == "failed"


def test_dismissing_needs_a_reason(engine: Engine, acme: Tenant, root: Client) -> None:
    (activity_id,) = submit_failing(engine, acme)
    letters = letters_of(acme, activity_id)

    run_action(root, DeadLetter, "dismiss_selected", *letters, confirmed="1", notes="")
    before = engine.status(acme, activity_id)
    run_action(root, DeadLetter, "dismiss_selected", *letters, confirmed="1", notes="Not wanted.")

    assert before == "failed"
    assert (engine.status(acme, activity_id), engine.get(acme, activity_id).cancel_reason) == (
        "cancelled",
        "Not wanted.",
    )


def test_deadlines_and_tool_calls_are_listed(engine: Engine, acme: Tenant, root: Client) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    accept_and_create(engine, acme, "request_human_review", {"question": "Good?"})
    open_approval(acme, due_seconds=60, reminders=(Later(30),))

    deadlines, calls = visible_text(root.get(list_url(Deadline))), visible_text(root.get(list_url(ToolCall)))

    assert "Reminder" in deadlines
    assert "Which direction?" in deadlines
    assert "request_human_review" in calls
