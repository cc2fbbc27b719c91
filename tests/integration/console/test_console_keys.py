"""Keyboard shortcuts of every page, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import pages
from tests.console_user import Person
from tests.pages import press
from tests.questions import Questions

pytestmark = pytest.mark.ui


@pytest.fixture
def screen(ann: Person) -> Iterator[Any]:
    """A page for which `ann` has signed in. Errors in its console fail the test."""
    with pages.page_of(ann.user) as page:
        yield page


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.innerText.trim()"))


def test_shortcuts_open_pages_rows_search_and_the_palette_until_they_are_disabled(
    questions: Questions, screen: Any
) -> None:
    gate = questions.gate(name="Bees")
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
    assert questions.get(gate.pk).status == "created", "the letter after g decides nothing"

    screen.evaluate("localStorage.setItem('inbox-keys', 'off')")
    screen.goto("/queues/")
    press(screen, "?")
    assert screen.query_selector("dialog[open]") is None
    press(screen, "Control+k")
    assert screen.query_selector("dialog[open]") is not None


def test_a_page_knows_nothing_of_the_page_of_an_earlier_test(person: Callable[..., Person]) -> None:
    ann, ben = person("ann"), person("ben")
    with pages.page_of(ann.user) as page:
        page.goto("/inbox/")
        page.evaluate(
            "localStorage.setItem('inbox-keys', 'off'); sessionStorage.setItem('a', 'b'); document.cookie = 'a=b; path=/'"
        )
        page.context.new_page().goto("/queues/")
        earlier = page.context
        earlier.set_offline(True)

    with pages.page_of(ben.user) as page:
        assert page.context is earlier
        assert [each.url for each in earlier.pages] == ["about:blank"]
        page.goto("/inbox/")
        stored = "[document.cookie.includes('a=b'), localStorage['inbox-keys'], sessionStorage['a'], history.length]"
        assert page.evaluate(stored) == [False, None, None, 2]
        assert "ann" not in page.inner_text("body")

    with pytest.raises(RuntimeError, match="fails"), pages.page_of(ann.user) as page:
        raise RuntimeError("A test fails.")
    with pages.page_of(ann.user) as page:
        assert page.context is not earlier
