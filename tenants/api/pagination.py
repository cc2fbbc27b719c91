"""Pages of a list: `{next, previous, results}`, each continuing after a row and not after a number.

What is added or removed while somebody pages through shifts nothing: no row that stays is shown twice or left
out. Any page of any list costs the same, since the database begins at the row where the page before ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import FieldDoesNotExist
from django.db.models import QuerySet
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from tenants.api.cursors import Cursor, CursorRefused
from tenants.api.faults import InvalidRequest
from tenants.api.ordering import ordering_of

LIMIT, CURSOR = "limit", "cursor"


class CursorPagination(BasePagination):
    """Newest first unless the view or the caller says otherwise; see `tenants.api.ordering`."""

    default_limit = 50
    max_limit = 200  # larger wishes get this many; `next` says that there is more

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        ordering = ordering_of(request, view)
        self._address = request.build_absolute_uri()
        cursor = self._cursor(request, ordering)
        limit = self._limit(request)
        rows = list(_from(queryset, ordering, cursor)[: limit + 1])
        page = rows[:limit]
        is_more = len(rows) > limit
        backwards = cursor is not None and cursor.backwards
        if backwards:
            page.reverse()
        # Where the page came from there is more for certain; in its own direction only if a further row was
        # found.
        self._next = bool(page) and (backwards or is_more)
        self._previous = bool(page) and (is_more if backwards else cursor is not None)
        self._page, self._ordering = page, ordering
        return page

    def refuse_bad_paging(self, request: Request) -> None:
        """For lists that have all in one page: what they are asked must make sense all the same."""
        self._limit(request)
        if CURSOR in request.query_params:
            raise InvalidRequest([(CURSOR, "is of no use: this list has one page")])

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"next": self.next_link(), "previous": self.previous_link(), "results": data})

    def next_link(self) -> str | None:
        return self._link(Cursor.at(self._page[-1], self._ordering)) if self._next else None

    def previous_link(self) -> str | None:
        return (
            self._link(Cursor.at(self._page[0], self._ordering, backwards=True)) if self._previous else None
        )

    def _link(self, cursor: Cursor) -> str:
        return str(replace_query_param(self._address, CURSOR, cursor.text()))

    def _cursor(self, request: Request, ordering: Sequence[str]) -> Cursor | None:
        text = request.query_params.get(CURSOR)
        if text is None:
            return None
        try:
            return Cursor.read(text, ordering)
        except CursorRefused as refusal:
            raise InvalidRequest([(CURSOR, str(refusal))]) from refusal

    def _limit(self, request: Request) -> int:
        text = request.query_params.get(LIMIT)
        if text is None:
            return self.default_limit
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
            raise InvalidRequest([(LIMIT, f"must be a whole number from 1 to {self.max_limit}")])
        return min(int(text), self.max_limit)

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        link = {"type": ["string", "null"], "format": "uri"}
        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {"next": link, "previous": link, "results": schema},
        }

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        limit = {"type": "integer", "minimum": 1, "default": self.default_limit}
        about = f"Rows per page. More than {self.max_limit} count as {self.max_limit}."
        return [
            {"name": LIMIT, "in": "query", "required": False, "description": about, "schema": limit},
            {
                "name": CURSOR,
                "in": "query",
                "required": False,
                "description": "Where to continue, as given in `next` or `previous`.",
                "schema": {"type": "string"},
            },
        ]


def _from(queryset: QuerySet[Any], ordering: Sequence[str], cursor: Cursor | None) -> QuerySet[Any]:
    if cursor is None:
        return queryset.order_by(*ordering)
    if cursor.backwards:
        ordering = [name.removeprefix("-") if name.startswith("-") else f"-{name}" for name in ordering]
    nullable = {
        name for name in (part.removeprefix("-") for part in ordering) if _may_be_null(queryset, name)
    }
    return queryset.filter(cursor.condition(nullable=nullable)).order_by(*ordering)


def _may_be_null(queryset: QuerySet[Any], name: str) -> bool:
    """Whether a field can be NULL; anything but a plain field of the model is assumed to."""
    try:
        return bool(getattr(queryset.model._meta.get_field(name), "null", True))
    except FieldDoesNotExist:
        return True
