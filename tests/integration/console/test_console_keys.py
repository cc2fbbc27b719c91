"""Every page by keyboard, in a real browser: to pages, to the search, along rows, and to anything by its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import pages
from tests.console_user import Person
from tests.pages import press
from tests.questions import Questions

pytestmark = pytest.mark.ui


@pytest.fixture
def screen(ann: Person) -> Iterator[Any]:
    """A window in which `ann` has signed in. Whatever its console complains of fails the test."""
    complaints: list[str] = []
    with pages.browser() as chromium, pages.served() as address:
        window = chromium.new_context(base_url=address, viewport={"width": 1200, "height": 800})
        window.add_cookies([pages.signed_in(ann.user, address)])
        page = window.new_page()
        page.on(
            "console", lambda message: complaints.append(message.text) if message.type == "error" else None
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        pages.leave(window)
    assert complaints == []


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.innerText.trim()"))


def test_keys_lead_to_pages_rows_searches_and_names(asked: Questions, screen: Any) -> None:
    gate = asked.gate(name="Bees")
    screen.goto("/")

    press(screen, "g", "a")
    screen.wait_for_url("**/activities/**")
    press(screen, "j")
    first = focused(screen)
    press(screen, "j")
    assert focused(screen) != first, "the next row"
    press(screen, "k")
    assert focused(screen) == first, "and back"
    press(screen, "/")
    assert focused(screen) == "query"
    press(screen, "g", "i")
    assert screen.input_value("#query") == "gi", "in a field keys are letters"
    screen.keyboard.press("Tab")

    press(screen, "?")
    assert "Inbox" in screen.inner_text("dialog.keys")
    press(screen, "Escape")

    press(screen, "Control+k")
    screen.fill("#palette-field", "queu")
    press(screen, "Enter")
    screen.wait_for_url("**/queues/**")
    press(screen, "Control+k")
    screen.fill("#palette-field", "honey")
    press(screen, "ArrowDown", "Enter")
    screen.wait_for_url("**/activities/**q=honey**")

    press(screen, "g", "i")
    screen.wait_for_url("**/inbox/**")
    press(screen, "j", "o")
    screen.wait_for_url(f"**{gate.pk}/**")
    press(screen, "g", "a")
    screen.wait_for_url("**/activities/**")
    assert asked.get(gate.pk).status == "created", "the letter after g decides nothing"


def test_single_keys_can_be_switched_off_everywhere(asked: Questions, screen: Any) -> None:
    screen.goto("/queues/")
    screen.evaluate("localStorage.setItem('inbox-keys', 'off')")

    press(screen, "?")

    assert screen.query_selector("dialog[open]") is None
    press(screen, "Control+k")
    assert screen.query_selector("dialog[open]") is not None
