"""Pages of a timeline. It is joined from several tables, so its pages are cut here and not by the database."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from activities.selectors import Moment
from tenants.api.cursors import Cursor
from tenants.api.pagination import CursorPagination

ORDERING = ("at", "order")


class MomentPagination(CursorPagination):
    """`CursorPagination` over a sorted list in memory: a moment keeps its place, whatever is added later."""

    default_limit = 100

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        self._address = request.build_absolute_uri()
        self._ordering = ORDERING
        cursor, limit = self._cursor(request, ORDERING), self._limit(request)
        first, last = _range(queryset, cursor, limit)
        self._page = list(queryset[first:last])
        self._previous, self._next = bool(self._page) and first > 0, bool(self._page) and last < len(queryset)
        return self._page


def _range(moments: Sequence[Moment], cursor: Cursor | None, limit: int) -> tuple[int, int]:
    if cursor is None:
        return 0, limit
    place = bisect_right(moments, cursor.values, key=lambda moment: (moment.at, moment.order))
    if not cursor.backwards:
        return place, place + limit
    return max(0, place - 1 - limit), max(0, place - 1)


def paged(moments: Sequence[Moment], request: Request) -> Response:
    """The page that the request asks for."""
    pages = MomentPagination()
    page = pages.paginate_queryset(moments, request)
    return pages.get_paginated_response(
        [{"at": moment.at, "kind": moment.kind, **moment.facts} for moment in page]
    )
