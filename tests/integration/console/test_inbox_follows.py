"""The inbox updates itself in a real browser, without losing the cursor, the selection or typed text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from activities.human_tasks import approvals, human_work
from tests import pages
from tests.console_user import INBOX, Person
from tests.engine import eventually
from tests.pages import press
from tests.questions import Questions

pytestmark = pytest.mark.ui

FOLLOWS = "() => document.body.dataset.following === 'open'"


@pytest.fixture
def screen(questions: Questions, ann: Person) -> Iterator[Any]:
    """A window in which `ann` has signed in. Whatever its console complains of fails the test."""
    errors: list[str] = []
    with pages.browser() as chromium, pages.served() as address:
        window = chromium.new_context(base_url=address, viewport={"width": 1200, "height": 800})
        window.add_cookies([pages.signed_in(ann.user, address)])
        page = window.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        pages.leave(window)
    assert [each for each in errors if "the server responded with a status of 4" not in each] == []


def look(screen: Any, address: str = INBOX) -> None:
    screen.goto(address)
    screen.wait_for_function(FOLLOWS)


def in_focus(screen: Any) -> str:
    return str(screen.evaluate("document.activeElement.innerText || document.activeElement.id"))


def test_new_items_and_decisions_of_others_show_within_a_second(questions: Questions, screen: Any) -> None:
    first = questions.gate(name="One")
    look(screen)
    screen.wait_for_selector("#total:has-text('1')")

    questions.gate(name="Two")
    screen.wait_for_selector("#rows li:nth-child(2)", timeout=pages.LIVE_WITHIN)
    approvals.approve(questions.tenant.pk, first.pk, actor="user:bob")
    screen.wait_for_selector("#rows li:only-child:has-text('Two')", timeout=pages.LIVE_WITHIN)

    screen.wait_for_selector("#gone:has-text('Approved by bob: Approve: One')", timeout=pages.LIVE_WITHIN)
    assert screen.inner_text("#total") == "Inbox 1"
    assert screen.inner_text("#kinds a >> nth=1") == "Gates 1"


def test_the_first_item_appears_and_the_last_disappears_without_a_reload(
    questions: Questions, screen: Any
) -> None:
    look(screen)
    screen.wait_for_selector("text=The inbox is empty.")

    task = questions.task()
    screen.wait_for_selector("#rows li", timeout=pages.LIVE_WITHIN)
    assert not screen.is_visible("text=The inbox is empty.")
    human_work.complete(questions.tenant.pk, task.pk, actor="user:bob")

    screen.wait_for_selector("text=The inbox is empty.", timeout=pages.LIVE_WITHIN)


def test_cursor_selection_and_keys_survive_an_update(questions: Questions, screen: Any) -> None:
    gates = [questions.gate(name=name) for name in ("One", "Two", "Three")]
    look(screen)
    press(screen, "j", "x", "j", "x")

    questions.task("Urgent", priority=1)
    screen.wait_for_selector("#rows li:first-child:has-text('Urgent')", timeout=pages.LIVE_WITHIN)
    assert "Approve: Two" in in_focus(screen), "what comes in above moves nobody's cursor"
    assert screen.inner_text("#together") == "Approve selected (2)"

    approvals.approve(questions.tenant.pk, gates[1].pk, actor="user:bob")
    screen.wait_for_selector("#rows:not(:has-text('Two'))", timeout=pages.LIVE_WITHIN)
    assert "Approve: Three" in in_focus(screen), "the next one has the cursor"
    assert screen.inner_text("#together") == "Approve selected (1)"

    press(screen, "k", "a", "Enter")
    screen.wait_for_selector(".results:has-text('Approve: One')")
    questions.gate(name="Four")
    screen.wait_for_selector("#rows:has-text('Four')", timeout=pages.LIVE_WITHIN)
    assert [questions.get(gate.pk).status for gate in gates] == ["approved", "approved", "created"]
    assert screen.is_visible(".results"), "what came of it stays in sight"


def test_typed_notes_survive_updates(questions: Questions, screen: Any) -> None:
    gate = questions.gate(name="One")
    look(screen, f"{INBOX}{gate.pk}/")
    press(screen, "r")
    screen.keyboard.type("Shorter, ple")

    questions.gate(name="Two")
    screen.wait_for_selector("#rows li:nth-child(2)", timeout=pages.LIVE_WITHIN)
    screen.keyboard.type("ase.")
    assert screen.input_value("#notes") == "Shorter, please."
    press(screen, "Escape", "j")
    approvals.approve(questions.tenant.pk, gate.pk, actor="user:bob")

    screen.wait_for_selector("#verdict:has-text('Approved by bob')", timeout=pages.LIVE_WITHIN)
    screen.wait_for_selector("#rows li:only-child", timeout=pages.LIVE_WITHIN)
    assert screen.input_value("#notes") == "Shorter, please.", "it can still be copied"
    assert screen.inner_text("#hint").startswith("Approved by bob")
    assert screen.is_disabled("button[value=reject]")


def test_an_open_item_decided_by_another_says_so_and_hides_its_form(
    questions: Questions, screen: Any
) -> None:
    gate, other = questions.gate(name="One"), questions.gate(name="Two")
    look(screen, f"{INBOX}{gate.pk}/")
    screen.wait_for_selector("#answer")

    approvals.reject(questions.tenant.pk, gate.pk, actor="user:bob", notes="Too long.")

    screen.wait_for_selector("#verdict:has-text('Changes requested by bob')", timeout=pages.LIVE_WITHIN)
    screen.wait_for_selector("#answer", state="detached", timeout=pages.LIVE_WITHIN)
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
    screen.wait_for_selector("#rows li:nth-child(2)", timeout=pages.LIVE_WITHIN)

    old = "[...document.querySelectorAll('#answer, #rows li')].filter((one) => one.isOld).length"
    assert screen.evaluate(old) == 2, "a click on them is not lost"


def test_a_list_without_a_connection_says_so(questions: Questions, screen: Any) -> None:
    questions.gate(name="One")
    look(screen)
    screen.context.set_offline(True)
    eventually(pages.cut_streams)  # the page may know of its stream before the thread that carries it does

    screen.wait_for_selector("#connection:visible")
    assert screen.evaluate("document.body.classList.contains('stale')")
    screen.context.set_offline(False)
