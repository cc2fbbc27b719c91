"""The inbox updates itself in a real browser, without losing the cursor, the selection or typed text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from activities.human_tasks import decisions, human_work
from tests import pages
from tests.console_user import INBOX, Person
from tests.pages import press
from tests.questions import Questions

pytestmark = pytest.mark.ui

FOLLOWS = "() => document.body.dataset.following === 'open'"


@pytest.fixture
def screen(questions: Questions, ann: Person) -> Iterator[Any]:
    """A page for which `ann` has signed in. Errors in its console fail the test."""
    with pages.page_of(ann.user, pages.REFUSED) as page:
        yield page


def look(screen: Any, address: str = INBOX) -> None:
    screen.goto(address)
    screen.wait_for_function(FOLLOWS)


def in_focus(screen: Any) -> str:
    return str(screen.evaluate("document.activeElement.innerText || document.activeElement.id"))


def test_new_items_and_decisions_of_others_show_without_a_reload(questions: Questions, screen: Any) -> None:
    first = questions.gate(name="One")
    look(screen)
    screen.wait_for_selector("#total:has-text('1')")

    questions.gate(name="Two")
    pages.wait_live(screen, "#rows li:nth-child(2)")
    decisions.approve(questions.tenant.pk, first.pk, actor="user:bob")
    pages.wait_live(screen, "#rows li:only-child:has-text('Two')")

    pages.wait_live(screen, "#gone:has-text('Approved by bob: Approve: One')")
    # Totals are parts of the page of their own, so they may follow a moment later.
    screen.wait_for_function("document.querySelector('#total').innerText === 'Inbox 1'")
    screen.wait_for_function("document.querySelectorAll('#kinds a')[1].innerText === 'Gates 1'")


def test_the_first_item_appears_and_the_last_disappears_without_a_reload(
    questions: Questions, screen: Any
) -> None:
    look(screen)
    screen.wait_for_selector("text=The inbox is empty.")

    task = questions.task()
    pages.wait_live(screen, "#rows li")
    assert not screen.is_visible("text=The inbox is empty.")
    human_work.complete(questions.tenant.pk, task.pk, actor="user:bob")

    pages.wait_live(screen, "text=The inbox is empty.")


def test_cursor_selection_and_keys_survive_an_update(questions: Questions, screen: Any) -> None:
    gates = [questions.gate(name=name) for name in ("One", "Two", "Three")]
    look(screen)
    press(screen, "j", "x", "j", "x")

    questions.task("Urgent", priority=1)
    pages.wait_live(screen, "#rows li:first-child:has-text('Urgent')")
    assert "Approve: Two" in in_focus(screen), "what comes in above moves nobody's cursor"
    assert screen.inner_text("#together") == "Approve selected (2)"

    decisions.approve(questions.tenant.pk, gates[1].pk, actor="user:bob")
    pages.wait_live(screen, "#rows:not(:has-text('Two'))")
    assert "Approve: Three" in in_focus(screen), "the next one has the cursor"
    assert screen.inner_text("#together") == "Approve selected (1)"

    press(screen, "k", "a", "Enter")
    screen.wait_for_selector(".results:has-text('Approve: One')")
    questions.gate(name="Four")
    pages.wait_live(screen, "#rows:has-text('Four')")
    assert [questions.get(gate.pk).status for gate in gates] == ["approved", "approved", "created"]
    assert screen.is_visible(".results"), "what came of it stays in sight"


def test_typed_notes_survive_updates(questions: Questions, screen: Any) -> None:
    gate = questions.gate(name="One")
    look(screen, f"{INBOX}{gate.pk}/")
    press(screen, "r")
    screen.keyboard.type("Shorter, ple")

    questions.gate(name="Two")
    pages.wait_live(screen, "#rows li:nth-child(2)")
    screen.keyboard.type("ase.")
    assert screen.input_value("#notes") == "Shorter, please."
    press(screen, "Escape", "j")
    decisions.approve(questions.tenant.pk, gate.pk, actor="user:bob")

    pages.wait_live(screen, "#verdict:has-text('Approved by bob')")
    pages.wait_live(screen, "#rows li:only-child")
    assert screen.input_value("#notes") == "Shorter, please.", "it can still be copied"
    assert screen.inner_text("#hint").startswith("Approved by bob")
    assert screen.is_disabled("button[value=reject]")


def test_an_open_item_decided_by_another_says_so_and_hides_its_form(
    questions: Questions, screen: Any
) -> None:
    gate, other = questions.gate(name="One"), questions.gate(name="Two")
    look(screen, f"{INBOX}{gate.pk}/")
    screen.wait_for_selector("#answer")

    decisions.reject(questions.tenant.pk, gate.pk, actor="user:bob", notes="Too long.")

    pages.wait_live(screen, "#verdict:has-text('Changes requested by bob')")
    pages.wait_live(screen, "#answer", state="detached")
    assert screen.is_visible("text=Too long.")
    press(screen, "a")
    assert screen.inner_text("#said") == "This action is not available here."
    press(screen, "j", "o")
    screen.wait_for_url(f"**{other.pk}/**")


def test_unchanged_elements_are_not_replaced(questions: Questions, screen: Any) -> None:
    gate = questions.gate(name="One")
    with screen.expect_response(lambda answer: "x-live" in answer.request.headers):
        screen.goto(f"{INBOX}{gate.pk}/")
        screen.evaluate(
            "document.querySelectorAll('#answer, #rows li').forEach((one) => { one.isOld = true; })"
        )

    questions.gate(name="Two")
    pages.wait_live(screen, "#rows li:nth-child(2)")

    old = "[...document.querySelectorAll('#answer, #rows li')].filter((one) => one.isOld).length"
    assert screen.evaluate(old) == 2, "a click on them is not lost"
