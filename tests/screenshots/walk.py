"""The tutorial in the browser, step by step, as docs/tutorial-browser.md has it: done by a test, and shown in its pictures."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

TEXT = (
    "Two hives stand on the roof of a bakery. Their keeper comes up every Saturday with a smoker and a thermos of coffee. Last summer "
    "the bees gave him 46 kilograms of city honey. City bees do well because parks, balconies and lime trees flower from March to "
    "October. Not all neighbours are glad: some fear stings, and a swarm on a balcony stops a street. Who wants bees takes a course "
    "first, asks the landlord, and sets a bowl of water beside the hive."
)
NOTES = "Make it shorter. Add a section about varroa mites with 150 words."
WORKS_MILLISECONDS = 4_000  # that the agent takes, so that it can be watched

#: Called after each step with its name, for a picture.
Seen = Callable[[str], None]


def walk(page: Any, seen: Seen) -> None:
    """Somebody who has signed in, in a tenant that has no pipeline yet."""
    _makes_a_pipeline(page, seen)
    _starts_it(page, seen)
    _sends_it_back(page, seen)
    _approves(page, seen)
    _makes_a_schedule(page, seen)


def _makes_a_pipeline(page: Any, seen: Seen) -> None:
    _menu(page, "Pipelines")
    page.get_by_role("link", name="New pipeline").click()
    page.get_by_text("No errors").wait_for()
    page.get_by_label(re.compile("^Key")).fill("city-bees")
    page.get_by_label(re.compile("^Name")).first.fill("City bees")
    page.get_by_label(re.compile("^What a run is about")).fill("{{ topic }} for {{ client }}")
    page.get_by_label("Parameters for all steps, as JSON").fill(
        f'{{"topic": "Bees in the city", "client": "Northern Press", "mode": "async", "delay_ms": {WORKS_MILLISECONDS}}}'
    )
    page.get_by_text("Check", exact=True).click()
    page.get_by_text("No errors").wait_for()
    seen("pipeline")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("was added successfully").wait_for()


def _starts_it(page: Any, seen: Seen) -> None:
    page.get_by_role("link", name="Console").click()
    _menu(page, "Pipelines")
    page.get_by_role("link", name="Start a run of City bees").click()
    page.get_by_label("Input", exact=True).fill(TEXT)
    page.get_by_label("Labels").fill("client: northern-press")
    seen("start")
    page.get_by_role("button", name="Start the run").click()
    page.get_by_role("heading", name="Bees in the city for Northern Press").wait_for()
    seen("run")
    page.locator("table").get_by_role("link", name="research").click()
    lines, ended = (
        page.get_by_text(re.compile(r"^I read \d+ words\.$")),
        page.get_by_role("link", name="Transcript"),
    )
    lines.or_(
        ended
    ).first.wait_for()  # on a machine that is slow the agent may have ended before the page is there
    seen("agent")


def _sends_it_back(page: Any, seen: Seen) -> None:
    _opens_the_question(page, "brief")
    seen("inbox")
    page.get_by_label("Notes", exact=False).fill(NOTES)
    page.get_by_role("button", name="Request changes").click()


def _approves(page: Any, seen: Seen) -> None:
    _opens_the_question(page, "round 2")
    page.get_by_text("Changes since then").wait_for()
    seen("revision")
    page.get_by_role("button", name="Approve", exact=True).click()
    _menu(page, "Runs")
    page.get_by_role("link", name="Bees in the city for Northern Press").click()
    page.locator("h1 .good").wait_for()
    seen("completed")


def _opens_the_question(page: Any, words: str) -> None:
    _menu(page, "Inbox")
    page.locator("#rows").get_by_text(words, exact=False).first.click()
    page.locator("#answer").wait_for()


def _makes_a_schedule(page: Any, seen: Seen) -> None:
    _menu(page, "Schedules")
    page.get_by_role("link", name="New schedule").click()
    page.get_by_label("Name").fill("City bees, every Monday")
    page.get_by_label("Starts").select_option(label="City bees")
    page.locator("select[name=when]").select_option(label="Every week")
    page.get_by_role("heading", name=re.compile("Monday")).wait_for()
    seen("schedule")
    page.get_by_role("button", name="Create schedule").click()
    page.get_by_role("heading", name="City bees, every Monday").wait_for()
    seen("scheduled")


def _menu(page: Any, name: str) -> None:
    page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=False).first.click()
