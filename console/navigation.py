"""The pages of the console in their order. A page appears as soon as it has an address."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.urls import NoReverseMatch, reverse

from console.icons import STROKES

#: Heading of a group, then name of an address and what it is called. `here` of a page is the name of its address.
PAGES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Work",
        (("home", "Overview"), ("inbox", "Inbox"), ("activities", "Activities"), ("runs", "Runs")),
    ),
    (
        "Machinery",
        (
            ("queues", "Queues"),
            ("dead_letters", "Dead letters"),
            ("schedules", "Schedules"),
            ("agents", "Agents"),
        ),
    ),
    ("Account", (("usage", "Usage"), ("audit", "Audit"), ("settings", "Settings"))),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A page that can be gone to."""

    words: str
    address: str
    is_here: bool
    strokes: str


@dataclass(frozen=True, slots=True)
class Group:
    """Pages that belong together."""

    words: str
    entries: tuple[Entry, ...]


def groups(here: str) -> list[Group]:
    """The pages that there are, without groups that are empty."""
    found = (Group(words, tuple(_entries(pages, here))) for words, pages in PAGES)
    return [group for group in found if group.entries]


def address_of(here: str) -> str:
    """Where a page begins for any tenant: its list, or the overview."""
    known = {name for _, pages in PAGES for name, _ in pages}
    return reverse(f"console:{here if here in known else 'home'}")


def _entries(pages: tuple[tuple[str, str], ...], here: str) -> Iterator[Entry]:
    for name, words in pages:
        try:
            yield Entry(words, reverse(f"console:{name}"), name == here, STROKES.get(name, ""))
        except NoReverseMatch:
            continue
