"""Which parts of itself a page fetches again: it names them, so that nothing else has to be read for it."""

from __future__ import annotations

from django.http import HttpRequest

HEADER = "X-Live"


def parts_wanted(request: HttpRequest) -> frozenset[str] | None:
    """The ids of the parts; None when somebody wants the whole page."""
    named = request.headers.get(HEADER)
    return None if named is None else frozenset(named.split())
