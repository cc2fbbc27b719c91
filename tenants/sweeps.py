"""Sweeps: regular work on rows of all tenants, page by page, in which no row keeps those behind it waiting.

A row that cannot be processed now, because it fails or is locked, stays where it is, and a turn reads on behind it. A turn may also end
early: its time is over, a server is unavailable, or the statements of one row take too long. Then the next turn of the process continues
behind that row, and ends where it began.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, takewhile
from typing import Any, Generic, TypeVar

from django.db.models import Q, QuerySet

from tenants.context import SYSTEM, system_scope
from tenants.sql import Statement

PAGE = 500
TURN_SECONDS = 20.0  # Then the process is free for other work.

Row = TypeVar("Row", bound=tuple[Any, ...])
#: Reads the page behind a row, or the first one. The first two columns of the rows are unique together, and the rows are in their order.
Read = Callable[[Row | None], Sequence[Row]]


class Sweep(Generic[Row]):
    """Where the turns of one kind of work in this process are."""

    def __init__(self) -> None:
        self._reached: Row | None = None

    def turn(self, read: Read[Row], *, within: float = TURN_SECONDS) -> Iterator[Row]:
        """Yield each row once, for about so many seconds."""
        until, start = time.monotonic() + within, self._reached
        rest = () if start is None else takewhile(lambda row: row[:2] <= start[:2], _rows(read, None))
        for row in chain(_rows(read, start), rest):
            self._reached = row
            yield row
            if time.monotonic() > until:
                return
        self._reached = None


def _rows(read: Read[Row], after: Row | None) -> Iterator[Row]:
    while page := read(after):
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1]


def pages(rows: QuerySet[Any], *columns: str) -> Read[Any]:
    """Read these columns of the rows of all tenants, in the order of the first two."""
    first, second = columns[:2]

    def read(after: Any) -> list[Any]:
        page = rows
        if after is not None:
            behind = Q(**{f"{first}__gt": after[0]}) | Q(**{f"{second}__gt": after[1]})
            page = rows.filter(behind, **{f"{first}__gte": after[0]})
        with system_scope():
            return list(page.order_by(first, second).values_list(*columns)[:PAGE])

    return read


def prepared_pages(name: str, rows: QuerySet[Any], *columns: str, start: tuple[Any, Any]) -> Read[Any]:
    """The same with a prepared statement and named tuples, for work of every second: call it once. `start` is less than any row."""
    inner = Statement.of_queryset(name, rows.order_by().values(*columns), using=SYSTEM).text
    order = ", ".join(columns[:2])
    page = f"({order}) > (%(first)s, %(second)s) ORDER BY {order} LIMIT %(most)s"
    statement = Statement(name, f"SELECT * FROM ({inner}) r WHERE {page}")  # noqa: S608 - names and SQL of ours

    def read(after: Any) -> list[Any]:
        first, second, *_ = start if after is None else after
        return statement.run({"first": first, "second": second, "most": PAGE}, using=SYSTEM)

    return read
