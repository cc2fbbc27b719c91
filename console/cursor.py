"""Where a page of a long list begins. Lists are in the order of a time, newest first, and of ids where times are equal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet


@dataclass(frozen=True, slots=True)
class Cursor:
    """Behind the row with this time and id. Written into addresses."""

    at: datetime
    id: UUID

    @classmethod
    def read(cls, text: str) -> Cursor | None:
        """None for what is no place: then the page is the first one."""
        microseconds, _, number = text.partition(".")
        try:
            return cls(datetime.fromtimestamp(int(microseconds) / 1_000_000, UTC), UUID(number))
        except (ValueError, OverflowError, OSError):
            return None

    def __str__(self) -> str:
        return f"{round(self.at.timestamp() * 1_000_000)}.{self.id.hex}"


def page_of(rows: QuerySet[Any], by: str, after: Cursor | None, size: int) -> tuple[list[Any], Cursor | None]:
    """The newest of the rows behind a place, and where the next page begins if there is one. `by` is the name of the time."""
    if after is not None:
        # The first condition is what an index understands; the second leaves out what the last page has shown.
        rows = rows.filter(
            Q(**{f"{by}__lte": after.at}) & (Q(**{f"{by}__lt": after.at}) | Q(pk__lt=after.id))
        )
    found = list(rows.order_by(f"-{by}", "-pk")[: size + 1])
    last = found[size - 1] if len(found) > size else None
    return found[:size], Cursor(getattr(last, by), last.pk) if last else None
