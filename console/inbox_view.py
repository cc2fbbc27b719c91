"""Which part of the inbox is looked at. A view is an address, so it can be kept and shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.http import Http404, QueryDict

from console.wording import KINDS

LONGEST_SEARCH = 200
MOST_PAGES = 1_000


@dataclass(frozen=True, slots=True)
class View:
    """Which part of the inbox is looked at."""

    tenant: str
    kind: str = ""
    role: str = ""
    search: str = ""
    page: int = 1
    aside: bool = False  # what the person has put aside, instead of all else

    @classmethod
    def read(cls, tenant: str, query: Mapping[str, Any]) -> View:
        """From an address. Raises `Http404` for a kind or a page that cannot be: a view that shows too much would mislead."""
        kind, page = str(query.get("kind", "")), str(query.get("page", "") or 1)
        aside = str(query.get("aside", ""))
        if aside not in ("", "yes"):
            raise Http404
        if (kind and kind not in KINDS) or not page.isdecimal() or not 0 < int(page[:9]) <= MOST_PAGES:
            raise Http404
        words = {name: str(query.get(name, "")).replace("\x00", "").strip() for name in ("role", "search")}
        return cls(
            tenant, kind, words["role"][:63], words["search"][:LONGEST_SEARCH], int(page), aside == "yes"
        )

    @property
    def address(self) -> str:
        """The query string of this view."""
        given = QueryDict(mutable=True)
        for name in ("tenant", "kind", "role", "search"):
            if value := getattr(self, name):
                given[name] = value
        if self.aside:
            given["aside"] = "yes"
        if self.page > 1:
            given["page"] = str(self.page)
        return given.urlencode()

    def of_kind(self, kind: str) -> View:
        return replace(self, kind=kind, page=1, aside=False)

    def of_aside(self) -> View:
        return replace(self, kind="", page=1, aside=True)
