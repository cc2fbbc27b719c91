"""The browser tutorial of docs/tutorial-browser.md, step by step, for its test and its pictures."""

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
WORKS_MILLISECONDS = 4_000  # the duration of the agent's work, so that it can be watched

#: Called after each step with its name, to take a picture.
TakePicture = Callable[[str], None]


def walk(page: Any, take_picture: TakePicture) -> None:
    """Do the tutorial as a person who has signed in, in a tenant without pipelines."""
    _create_pipeline(page, take_picture)
    _start_run(page, take_picture)
    _request_changes(page, take_picture)
    _approve(page, take_picture)
    _create_schedule(page, take_picture)


def _create_pipeline(page: Any, take_picture: TakePicture) -> None:
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
    take_picture("pipeline")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("was added successfully").wait_for()


def _start_run(page: Any, take_picture: TakePicture) -> None:
    page.get_by_role("link", name="Console").click()
    _menu(page, "Pipelines")
    page.get_by_role("link", name="Start a run of City bees").click()
    page.get_by_label("Input", exact=True).fill(TEXT)
    page.get_by_label("Labels").fill("client: northern-press")
    take_picture("start")
    page.get_by_role("button", name="Start the run").click()
    page.get_by_role("heading", name="Bees in the city for Northern Press").wait_for()
    take_picture("run")
    page.locator("table").get_by_role("link", name="research").click()
    lines, ended = (
        page.get_by_text(re.compile(r"^I read \d+ words\.$")),
        page.get_by_role("link", name="Transcript"),
    )
    # On a slow machine the agent may have ended before the page is loaded.
    lines.or_(ended).first.wait_for()
    take_picture("agent")


def _request_changes(page: Any, take_picture: TakePicture) -> None:
    _open_question(page, "brief")
    take_picture("inbox")
    page.get_by_label("Notes", exact=False).fill(NOTES)
    page.get_by_role("button", name="Request changes").click()


def _approve(page: Any, take_picture: TakePicture) -> None:
    _open_question(page, "round 2")
    page.get_by_text("Changes since then").wait_for()
    take_picture("revision")
    page.get_by_role("button", name="Approve", exact=True).click()
    _menu(page, "Runs")
    page.get_by_role("link", name="Bees in the city for Northern Press").click()
    page.locator("h1 .good").wait_for()
    take_picture("completed")


def _open_question(page: Any, words: str) -> None:
    _menu(page, "Inbox")
    page.locator("#rows").get_by_text(words, exact=False).first.click()
    page.locator("#answer").wait_for()


def _create_schedule(page: Any, take_picture: TakePicture) -> None:
    _menu(page, "Schedules")
    page.get_by_role("link", name="New schedule").click()
    page.get_by_label("Name").fill("City bees, every Monday")
    page.get_by_label("Starts").select_option(label="City bees")
    page.locator("select[name=when]").select_option(label="Every week")
    page.get_by_role("heading", name=re.compile("Monday")).wait_for()
    take_picture("schedule")
    page.get_by_role("button", name="Create schedule").click()
    page.get_by_role("heading", name="City bees, every Monday").wait_for()
    take_picture("scheduled")


def _menu(page: Any, name: str) -> None:
    page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=False).first.click()
