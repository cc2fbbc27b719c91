"""Which pages have views that can be kept, and what of their addresses belongs to a view."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from django.urls import reverse
from django.utils.http import urlencode

#: By the name of a page's address: what it is called, and the names in its query that narrow what it shows.
PAGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "inbox": ("Inbox", ("kind", "role", "search")),
    "activities": ("Activities", ("q",)),
    "runs": ("Runs", ("status", "pipeline")),
    "dead_letters": ("Dead letters", ("role", "state")),
}


def query_of(page: str, address: str) -> str:
    """What of a query string belongs to a view of the page, always in the same order. The tenant and the place in the list do not."""
    given = dict(parse_qsl(address.replace("\x00", "")))
    return urlencode({name: value for name in PAGES[page][1] if (value := given.get(name, "").strip())})


def in_words(query: str) -> str:
    """What a view narrows its page to, as people would write it."""
    return ", ".join(value if name == "q" else f"{name}: {value}" for name, value in parse_qsl(query))


def address_of(page: str, query: str, tenant: str) -> str:
    """Where a kept view leads. It is read anew, so that what was kept before a page changed harms nobody."""
    return f"{reverse(f'console:{page}')}?{'&'.join(filter(None, (urlencode({'tenant': tenant}), query_of(page, query))))}"
