"""In which order a list comes: the caller's choice among the view's fields, always ending with a unique
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.request import Request

from tenants.api.faults import InvalidRequest

PARAMETER = "ordering"
NEWEST_FIRST = ("-created_at", "-id")


def ordering_of(request: Request, view: Any) -> tuple[str, ...]:
    """Model fields, each with a leading - when descending. Raises `InvalidRequest` for a field that is not
    offered.

    A view offers `ordering_fields`, a tuple or a mapping from the public name to the model's field;
    `ordering` is its default.
    """
    default = tuple(getattr(view, "ordering", None) or NEWEST_FIRST)
    asked = request.query_params.get(PARAMETER)
    if asked is None:
        return default
    offered = offered_by(view)
    chosen: list[str] = []
    for part in asked.split(","):
        name = part.strip().removeprefix("-")
        if name not in offered:
            raise InvalidRequest([(PARAMETER, f"{name[:40]!r} is not one of {', '.join(sorted(offered))}")])
        chosen.append(("-" if part.strip().startswith("-") else "") + offered[name])
    return with_tie_breaker(chosen, default[-1])


def offered_by(view: Any) -> dict[str, str]:
    """Public names and the model fields behind them."""
    fields = getattr(view, "ordering_fields", None) or ()
    return dict(fields) if isinstance(fields, Mapping) else {name: name for name in fields}


def with_tie_breaker(chosen: list[str], last: str) -> tuple[str, ...]:
    """A page can only continue after a row that no other row equals."""
    unique = last.removeprefix("-")
    if unique in (name.removeprefix("-") for name in chosen):
        return tuple(chosen)
    # The direction of the first field, so that an index on both can be read in one sweep.
    return (*chosen, f"-{unique}" if chosen[0].startswith("-") else unique)
