"""The inbox is used by keyboard alone, in a real browser, at every width."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from activities import outputs
from console.inbox import undo
from tests import pages
from tests.console_user import INBOX, Person
from tests.engine import eventually
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
    press(screen, "a")
    assert focused(screen) == "button Approve"
    assert questions.get(first.pk).status == "created", "no single key decides"
    press(screen, "Enter")
    screen.wait_for_url(f"**{second.pk}/**")

    assert questions.get(first.pk).status == "approved"
    assert "Approved: Approve: One" in focused(screen), "a screen reader hears what was done"
    press(screen, "a", "a")
    screen.wait_for_url(f"**{INBOX}?tenant=acme#content")
    assert questions.get(second.pk).status == "approved"


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


def test_changes_are_requested_with_notes_by_keyboard(questions: Questions, screen: Any) -> None:
    gate = questions.gate()
    screen.goto(f"{INBOX}{gate.pk}/")

    press(screen, "r")
    assert focused(screen) == "notes"
    press(screen, "Control+Enter")
    assert screen.evaluate("document.querySelector('#notes').validationMessage").startswith(
        "Describe the changes"
    )
    screen.keyboard.type("j k a: shorter, please.")
    press(screen, "Control+Enter")
    screen.wait_for_url(f"**{INBOX}?tenant=acme#content")

    assert questions.get(gate.pk).reviewer_notes == "j k a: shorter, please.", "in a field keys are letters"


def test_an_approval_with_notes_is_sent_by_keyboard(questions: Questions, screen: Any) -> None:
    gate = questions.gate()
    screen.goto(f"{INBOX}{gate.pk}/")

    press(screen, "f")
    assert focused(screen) == "notes"
    screen.keyboard.type("Good. Next time with a picture.")
    press(screen, "Control+Enter")
    screen.wait_for_url(f"**{INBOX}?tenant=acme#content")

    decided = questions.get(gate.pk)
    assert (decided.status, decided.reviewer_notes) == ("approved", "Good. Next time with a picture.")


def test_a_blocker_is_resolved_a_task_completed_and_a_failure_retried(
    questions: Questions, screen: Any
) -> None:
    blocker, task, escalation = questions.blocker(), questions.task(), questions.escalation()

    screen.goto(f"{INBOX}{blocker.pk}/")
    press(screen, "e")
    screen.keyboard.type("Signed in.")
    press(screen, "Control+Enter")
    eventually(lambda: questions.get(blocker.pk).status == "done")

    screen.goto(f"{INBOX}{task.pk}/")
    press(screen, "e")
    assert focused(screen) == "output"
    screen.keyboard.type("They agree.")
    press(screen, "Control+Enter")
    eventually(lambda: questions.get(task.pk).status == "done")

    screen.goto(f"{INBOX}{escalation.pk}/")
    press(screen, "e", "Enter")
    eventually(lambda: questions.get(escalation.parent_id).status == "created")


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


def test_a_key_opens_an_item_before_it_decides(questions: Questions, screen: Any) -> None:
    seen, unseen = questions.gate(name="Seen"), questions.gate(name="Unseen")
    screen.goto(f"{INBOX}{seen.pk}/")

    press(screen, "j", "a")
    screen.wait_for_url(f"**{unseen.pk}/**")

    assert {questions.get(item.pk).status for item in (seen, unseen)} == {"created"}


def test_the_overview_of_keys_keeps_and_returns_the_focus(questions: Questions, screen: Any) -> None:
    questions.gate()
    screen.goto(INBOX)
    press(screen, "j", "?")
    assert screen.is_visible("#keys")

    for _ in range(5):
        press(screen, "Tab")
        assert screen.evaluate(
            "document.activeElement === document.body || !!document.activeElement.closest('#keys')"
        )
    press(screen, "Escape")

    assert not screen.is_visible("#keys")
    assert "Approve: Summary" in focused(screen)


def test_shortcuts_can_be_disabled_permanently(questions: Questions, screen: Any) -> None:
    questions.gate()
    screen.goto(INBOX)
    screen.click("#show-keys")
    screen.uncheck("#keys-on")
    press(screen, "Escape")

    screen.reload()
    press(screen, "j", "/")

    assert screen.evaluate("document.activeElement === document.body"), "nothing has moved"


def test_keys_open_and_leave_the_search(questions: Questions, screen: Any) -> None:
    questions.gate()
    screen.goto(INBOX)

    press(screen, "/")
    assert focused(screen) == "search"
    screen.keyboard.type("jx")
    assert screen.input_value("#search") == "jx", "in a field keys are letters"
    press(screen, "Escape", "j")

    assert "Approve: Summary" in focused(screen)


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


def test_pages_fit_the_screen_and_buttons_have_contrast(questions: Questions, screen: Any) -> None:
    items = [
        questions.gate(f"{'x' * 300}\n\n```\n{'y' * 300}\n```"),
        questions.approval("z" * 200),
        questions.escalation("w" * 300),
    ]

    addresses = (INBOX, *(f"{INBOX}{item.pk}/" for item in items))
    for scheme, address in product(("light", "dark"), addresses):
        screen.emulate_media(color_scheme=scheme)
        screen.goto(address)
        for width in (360, 1200):
            screen.set_viewport_size({"width": width, "height": 740})
            look = (address, width, scheme)
            assert screen.evaluate("document.documentElement.scrollWidth") <= width, look
            buttons = screen.evaluate(_COLOURS)
            assert buttons
            for text, ink, paper in buttons:
                assert _contrast(ink, paper) >= 4.5, (*look, text)


def test_the_page_loads_nothing_from_other_hosts(questions: Questions, screen: Any) -> None:
    gate = questions.gate("![p](https://evil.example/p.png) [a](https://evil.example/)")
    requested: list[str] = []
    screen.on("request", lambda request: requested.append(request.url))

    screen.goto(f"{INBOX}{gate.pk}/")

    assert requested
    assert all(address.startswith("http://127.0.0.1:") for address in requested)


# In one call, because a page that follows replaces its elements at any time.
_COLOURS = """[...document.querySelectorAll("button")].filter(one => one.checkVisibility({visibilityProperty: true})).map(one => {
  let behind = one;
  while (behind && getComputedStyle(behind).backgroundColor.startsWith("rgba(0, 0, 0, 0")) behind = behind.parentElement;
  return [one.innerText, getComputedStyle(one).color, getComputedStyle(behind || document.body).backgroundColor];
})"""


def _contrast(ink: str, paper: str) -> float:
    """As the guidelines for accessible pages define it."""
    light, dark = sorted((_luminance(ink), _luminance(paper)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


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
