"""The inbox is used by keyboard alone, in a real browser, at every width."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities import outputs
from console.inbox import undo
from tests import pages
from tests.console_user import INBOX, Person
from tests.pages import press
from tests.questions import Questions

pytestmark = pytest.mark.ui


@pytest.fixture
def screen(ann: Person) -> Iterator[Any]:
    """A page for which `ann` has signed in. Errors in its console fail the test."""
    with pages.page_of(ann.user, pages.REFUSED) as page:
        yield page


def focused(page: Any) -> str:
    """Return the text or the name of the focused element."""
    script = """(one => one.name === "action" ? `button ${one.innerText}` : one.matches("input, select, textarea") ? one.id
      : (one.innerText || one.tagName).trim())(document.activeElement)"""
    return str(page.evaluate(script))


def test_items_are_reached_opened_and_approved_without_a_mouse(questions: Questions, screen: Any) -> None:
    first, second = questions.gate(name="One"), questions.gate(name="Two")
    screen.goto(INBOX)

    press(screen, "j")
    assert "Approve: One" in focused(screen)
    press(screen, "j", "j")
    assert "Approve: Two" in focused(screen), "the list ends there"
    press(screen, "k", "o")
    screen.wait_for_url(f"**{first.pk}/**")
    press(screen, "j", "a")
    screen.wait_for_url(f"**{second.pk}/**")
    assert {questions.get(item.pk).status for item in (first, second)} == {"created"}, "it is seen first"
    press(screen, "a")
    assert focused(screen) == "button Approve"
    assert questions.get(second.pk).status == "created", "no single key decides"
    press(screen, "Enter")
    screen.wait_for_url(f"**{first.pk}/**")

    assert questions.get(second.pk).status == "approved"
    assert "Approved: Approve: Two" in focused(screen), "a screen reader hears what was done"
    press(screen, "a", "a")
    screen.wait_for_url(f"**{INBOX}?tenant=acme#content")
    assert questions.get(first.pk).status == "approved"


def test_an_answer_is_undone_by_a_key_and_leaves_the_page_when_applied(
    questions: Questions, screen: Any, settings: Any
) -> None:
    settings.ORCHESTRATOR_UNDO_SECONDS = 10.0
    gate = questions.gate(name="One")
    screen.goto(f"{INBOX}{gate.pk}/")

    press(screen, "a", "Enter")
    screen.wait_for_url(f"**{INBOX}?**")
    assert "Approved: Approve: One takes effect in" in focused(screen).replace("\n", " ")
    press(screen, "u")
    screen.wait_for_url(f"**{gate.pk}/**")
    assert "Answer undone. Nothing was changed." in focused(screen)
    press(screen, "a", "Enter")
    screen.wait_for_url(f"**{INBOX}?**")
    undo.apply_due(datetime.now(UTC) + timedelta(seconds=10))

    screen.wait_for_selector("#held form", state="detached")
    assert questions.get(gate.pk).status == "approved"


def test_changes_are_requested_and_an_approval_is_given_with_notes_by_keyboard(
    questions: Questions, screen: Any
) -> None:
    first, second = questions.gate(name="One"), questions.gate(name="Two")
    screen.goto(f"{INBOX}{first.pk}/")

    press(screen, "r")
    assert focused(screen) == "notes"
    press(screen, "Control+Enter")
    assert screen.evaluate("document.querySelector('#notes').validationMessage").startswith(
        "Describe the changes"
    )
    screen.keyboard.type("j k a: shorter, please.")
    press(screen, "Control+Enter")
    screen.wait_for_url(f"**{second.pk}/**")
    press(screen, "f")
    assert focused(screen) == "notes"
    screen.keyboard.type("Good. Next time with a picture.")
    press(screen, "Control+Enter")
    screen.wait_for_url(f"**{INBOX}?tenant=acme#content")

    refused, approved = questions.get(first.pk), questions.get(second.pk)
    assert (refused.status, refused.reviewer_notes) == ("rejected", "j k a: shorter, please.")
    assert (approved.status, approved.reviewer_notes) == ("approved", "Good. Next time with a picture.")


def test_a_blocker_is_resolved_a_task_completed_and_a_failure_retried(
    questions: Questions, screen: Any
) -> None:
    blocker, task, escalation = questions.blocker(), questions.task(), questions.escalation()

    screen.goto(f"{INBOX}{blocker.pk}/")
    press(screen, "e")
    screen.keyboard.type("Signed in.")
    press(screen, "Control+Enter")
    screen.wait_for_url(f"**{task.pk}/**")
    assert questions.get(blocker.pk).status == "done"

    press(screen, "e")
    assert focused(screen) == "output"
    screen.keyboard.type("They agree.")
    press(screen, "Control+Enter")
    screen.wait_for_url(f"**{escalation.pk}/**")
    assert questions.get(task.pk).status == "done"

    press(screen, "e", "Enter")
    screen.wait_for_url(f"**{INBOX}?tenant=acme#content")
    assert questions.get(escalation.parent_id).status == "created"


def test_an_approval_needs_a_chosen_option(questions: Questions, screen: Any) -> None:
    approval = questions.approval()
    screen.goto(f"{INBOX}{approval.pk}/")

    press(screen, "a", "Enter")
    assert screen.evaluate("document.activeElement.name") == "option", "the browser leads to what is missing"
    press(screen, "Space", "ArrowDown", "Enter")
    assert questions.get(approval.pk).status == "created", "Enter on an option sends nothing"
    press(screen, "a", "Enter")

    screen.wait_for_url(f"**{INBOX}?tenant=acme#content")
    assert questions.get(approval.pk).chosen_option == "Sober"


def test_several_items_are_selected_and_approved_together(questions: Questions, screen: Any) -> None:
    gates = [questions.gate(name=f"Text {number}") for number in range(3)]
    task = questions.task()
    screen.goto(INBOX)
    assert not screen.is_visible("#together")

    press(screen, "j", "x", "j", "x", "j", "j", "x")
    assert screen.inner_text("#together") == "Approve selected (2)"
    assert "Open this item to answer it." in screen.inner_text("#said")
    press(screen, "a", "Enter")
    screen.wait_for_selector(".results")

    assert [questions.get(item.pk).status for item in (*gates, task)] == [
        "approved",
        "approved",
        "created",
        "created",
    ]
    assert "Approved: Approve: Text 0" in focused(screen)


def test_keys_reach_the_search_and_the_overview_until_they_are_disabled(
    questions: Questions, screen: Any
) -> None:
    questions.gate()
    screen.goto(INBOX)

    press(screen, "/")
    assert focused(screen) == "search"
    screen.keyboard.type("jx")
    assert screen.input_value("#search") == "jx", "in a field keys are letters"
    press(screen, "Escape", "j")
    assert "Approve: Summary" in focused(screen)

    press(screen, "?")
    assert screen.is_visible("#keys")
    for _ in range(5):
        press(screen, "Tab")
        assert screen.evaluate(
            "document.activeElement === document.body || !!document.activeElement.closest('#keys')"
        )
    press(screen, "Escape")
    assert not screen.is_visible("#keys")
    assert "Approve: Summary" in focused(screen), "it returns the focus"

    screen.click("#show-keys")
    screen.uncheck("#keys-on")
    press(screen, "Escape")
    screen.reload()
    press(screen, "j", "/")
    assert screen.evaluate("document.activeElement === document.body"), "nothing has moved"


def test_tab_reaches_every_answer_and_nothing_traps_it(questions: Questions, screen: Any) -> None:
    questions.approval()
    gate = questions.gate("Text\n\n" * 200)
    screen.goto(f"{INBOX}{gate.pk}/")

    reached = []
    for _ in range(60):
        press(screen, "Tab")
        reached.append(focused(screen))
        if screen.evaluate("document.activeElement === document.body"):
            break

    assert {"search", "role", "notes", "button Approve", "button Request changes"} <= set(reached)
    assert reached[0] == "Skip to the content"


def test_an_item_is_snoozed_by_keyboard_after_it_was_opened(questions: Questions, screen: Any) -> None:
    first, second = questions.task("One"), questions.task("Two")
    screen.goto(INBOX)

    press(screen, "j", "s")
    screen.wait_for_url(f"**{first.pk}/**#until")
    assert focused(screen) == "1 hour", "the list leads to the item, with the times to choose from"
    press(screen, "Enter")
    screen.wait_for_url(f"**{second.pk}/**")
    assert focused(screen).startswith("Snoozed until")
    press(screen, "s")
    assert focused(screen) == "1 hour"

    screen.goto(f"{INBOX}?aside=yes")
    press(screen, "j", "Tab")
    assert focused(screen) == "Unsnooze"
    press(screen, "Enter")
    screen.wait_for_url(f"**{INBOX}?tenant=acme#content")


def test_a_text_is_edited_and_approved_without_a_mouse(questions: Questions, screen: Any) -> None:
    gate = questions.gate(content="Bees fly far.")
    screen.goto(f"{INBOX}{gate.pk}/")
    assert not screen.locator("#edited").is_visible(), "closed until somebody wants it"

    press(screen, "e")
    assert focused(screen) == "edited"
    press(screen, "Control+End")
    screen.keyboard.type(" And high.")
    press(screen, "Control+Enter")
    screen.wait_for_url(f"**{INBOX}?tenant=acme#content")

    output = outputs.read(questions.tenant.pk, questions.get(gate.pk).output_ref)
    assert output
    assert output.content == "Bees fly far. And high."
