"""Elements of console pages: labels of states, bars and the menu."""

from __future__ import annotations

from activities.states import RunStatus, Status
from console import navigation
from console.labels import tone_of, words_of
from console.templatetags.console import bars
from pipelines.diagram import TONES
from pipelines.models.run import RunState


def test_every_state_has_a_tone_that_the_style_sheet_knows() -> None:
    states = {*map(str, Status), *map(str, RunStatus), *map(str, RunState)}

    assert {tone_of(state) for state in states} <= set(TONES)
    assert [tone_of(state) for state in ("done", "needs_review", "blocked", "running", "created", "unheard of")] == [
        "good", "bad", "ask", "live", "idle", "off",
    ]  # fmt: skip
    assert words_of("awaiting_approval") == "awaiting approval"


def test_bars_are_as_high_as_their_figures_and_their_labels_are_escaped() -> None:
    drawn = bars([0, 5, 10], 'Work "per" hour')

    assert drawn.count("<rect") == 2
    assert 'height="40.0"' in drawn
    assert 'height="20.0"' in drawn
    assert "&quot;per&quot;" in drawn
    assert "<rect" not in bars([], "nothing")
    assert "<rect" not in bars([0, 0], "nothing")


def test_the_menu_names_pages_that_exist() -> None:
    addresses = {page.words: page.address for pages in navigation.PAGES.values() for page in pages}

    assert {"Overview", "Inbox", "Activities", "Runs"} <= addresses.keys()
    assert addresses["Runs"] == navigation.address_of("runs") == "/runs/"
    assert navigation.address_of("nowhere") == "/"
