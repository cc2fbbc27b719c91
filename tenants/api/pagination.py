"""Pages of a list: `{next, previous, results}`. Each continues after a row, not after an offset.

Rows that are added or removed meanwhile do not shift the pages: no remaining row is repeated or
omitted. Every page costs the same, because the database begins at the row where the previous page ended.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.core import signing
from django.core.exceptions import FieldDoesNotExist
from django.db.models import Q, QuerySet
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from tenants.api.problems import FieldError, InvalidRequest

LIMIT, CURSOR = "limit", "cursor"


class CursorPagination(BasePagination):
    """Newest first unless the view or the caller sets another order; see `ordering_of`."""

    default_limit = 50
    max_limit = 200  # larger limits count as this one; `next` says that there is more

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        ordering = self._choose_ordering(request, view)
        self._address = request.build_absolute_uri()
        cursor = self._cursor(request, ordering)
        limit = self._limit(request)
        rows = list(_from(queryset, ordering, cursor)[: limit + 1])
        page = rows[:limit]
        is_more = len(rows) > limit
        backwards = cursor is not None and cursor.backwards
        if backwards:
            page.reverse()
        # Where the cursor came from there are certainly more rows; in the other direction only if a further row was read.
        self._next = bool(page) and (backwards or is_more)
        self._previous = bool(page) and (is_more if backwards else cursor is not None)
        self._page, self._ordering = page, ordering
        return page

    def errors_of(self, request: Request, view: Any = None) -> list[FieldError]:
        """Return the errors of all parameters of paging, so that a list reports them together with those of its filters."""
        errors: list[FieldError] = []
        # A cursor belongs to an ordering, so an unknown ordering is its only error.
        for check in (
            lambda: self._limit(request),
            lambda: self._cursor(request, self._choose_ordering(request, view)),
        ):
            try:
                check()
            except InvalidRequest as refusal:
                errors += refusal.errors
        return errors

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"next": self.next_link(), "previous": self.previous_link(), "results": data})

    def next_link(self) -> str | None:
        return self._link(Cursor.at(self._page[-1], self._ordering)) if self._next else None

    def previous_link(self) -> str | None:
        return (
            self._link(Cursor.at(self._page[0], self._ordering, backwards=True)) if self._previous else None
        )

    def _link(self, cursor: Cursor) -> str:
        return str(replace_query_param(self._address, CURSOR, cursor.text(_path_of(self._address))))

    def _choose_ordering(self, request: Request, view: Any) -> tuple[str, ...]:
        return ordering_of(request, view)

    def _cursor(self, request: Request, ordering: Sequence[str]) -> Cursor | None:
        text = request.query_params.get(CURSOR)
        if text is None:
            return None
        try:
            return Cursor.read(text, ordering, _path_of(request.build_absolute_uri()))
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
        about = f"Rows per page, at most {self.max_limit}; larger values are reduced."
        return [
            {"name": LIMIT, "in": "query", "required": False, "description": about, "schema": limit},
            {
                "name": CURSOR,
                "in": "query",
                "required": False,
                "description": "The position to continue from, as contained in `next` and `previous`.",
                "schema": {"type": "string"},
            },
        ]


def _path_of(address: str) -> str:
    return urlsplit(address).path


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
    """Whether a field can be NULL. Anything except a plain field of the model is assumed to be nullable."""
    try:
        return bool(getattr(queryset.model._meta.get_field(name), "null", True))
    except FieldDoesNotExist:
        return True


# Cursors: positions in an ordered list, as opaque text that callers can store but not change.
#
# A cursor contains the values of the ordering fields in one row. It is signed for the path of its list, so its values always have the types
# and the ordering with which it was created, and another list with the same ordering refuses it.


SALT = "tenants.api.cursors"


class CursorRefused(ValueError):
    """The cursor was not made by us, was changed, or belongs to another list or ordering."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Continue after the row with these values, or before it when `backwards`."""

    ordering: tuple[str, ...]
    values: tuple[Any, ...]
    backwards: bool = False

    @classmethod
    def at(cls, row: Any, ordering: Sequence[str], *, backwards: bool = False) -> Cursor:
        return cls(
            tuple(ordering), tuple(_value(row, name.removeprefix("-")) for name in ordering), backwards
        )

    @classmethod
    def read(cls, text: str, ordering: Sequence[str], path: str) -> Cursor:
        """Raises `CursorRefused`."""
        try:
            names, packed, backwards = signing.Signer(salt=SALT + path).unsign_object(text)
        except (signing.BadSignature, ValueError, TypeError) as error:
            raise CursorRefused("is not a cursor of this list") from error
        if tuple(names) != tuple(ordering):
            raise CursorRefused("belongs to another ordering of this list")
        return cls(tuple(names), tuple(_unpack(value) for value in packed), bool(backwards))

    def text(self, path: str) -> str:
        packed = [_pack(value) for value in self.values]
        return signing.Signer(salt=SALT + path).sign_object(
            [list(self.ordering), packed, int(self.backwards)]
        )

    def condition(self, *, nullable: Collection[str] = ()) -> Q:
        """Return the condition for rows after this position, or before it when backwards. `nullable`: fields that may be NULL."""
        # `beyond` does not start with a condition that no row meets, because its key would split the rows of a grouped list.
        beyond, equal = Q(), Q()
        for name, value in zip(self.ordering, self.values, strict=True):
            field, down = name.removeprefix("-"), name.startswith("-") != self.backwards
            beyond |= equal & _beyond(field, value, down=down, nullable=field in nullable)
            equal &= Q(**{f"{field}__isnull": True}) if value is None else Q(**{field: value})
        field, down = self.ordering[0].removeprefix("-"), self.ordering[0].startswith("-") != self.backwards
        if field in nullable:
            return beyond
        # Implied by the rest, but an index on the first field can use this range.
        return Q(**{f"{field}__{'lte' if down else 'gte'}": self.values[0]}) & beyond


def _beyond(field: str, value: Any, *, down: bool, nullable: bool) -> Q:
    """Return the condition for rows that PostgreSQL sorts after the value: NULL is last in ascending order, and first in descending."""
    if value is None:
        return Q(**{f"{field}__isnull": False}) if down else Q(pk__in=[])
    if down:
        return Q(**{f"{field}__lt": value})
    higher = Q(**{f"{field}__gt": value})
    return higher | Q(**{f"{field}__isnull": True}) if nullable else higher


def _value(row: Any, field: str) -> Any:
    for name in field.split("__"):
        row = row[name] if isinstance(row, Mapping) else getattr(row, name)
    return row


def _pack(value: Any) -> Any:
    match value:
        case datetime.datetime():
            return ["t", value.isoformat()]
        case datetime.date():
            return ["d", value.isoformat()]
        case UUID():
            return ["u", value.hex]
        case Decimal():
            return ["n", str(value)]
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"A list cannot be ordered by a {type(value).__name__}")


_READERS: dict[str, Callable[[str], Any]] = {
    "t": datetime.datetime.fromisoformat,
    "d": datetime.date.fromisoformat,
    "u": UUID,
    "n": Decimal,
}


def _unpack(packed: Any) -> Any:
    return _READERS[packed[0]](packed[1]) if isinstance(packed, list) else packed


# The order of a list: the caller's choice among the view's fields, always ending with a unique one.


PARAMETER = "ordering"
NEWEST_FIRST = ("-created_at", "-id")


def ordering_of(request: Request, view: Any) -> tuple[str, ...]:
    """Return model fields, with a leading - when descending. Raises `InvalidRequest` for an unknown field.

    A view offers `ordering_fields`, a tuple or a mapping from the public name to the model's field;
    `ordering` is its default.
    """
    default = tuple(getattr(view, "ordering", None) or NEWEST_FIRST)
    parameter = request.query_params.get(PARAMETER)
    if parameter is None:
        return default
    offered = orderings_of(view)
    chosen: list[str] = []
    for part in parameter.split(","):
        name = part.strip().removeprefix("-")
        if name not in offered:
            raise InvalidRequest([(PARAMETER, f"{name[:40]!r} is not one of {', '.join(sorted(offered))}")])
        chosen.append(("-" if part.strip().startswith("-") else "") + offered[name])
    return with_tie_breaker(chosen, default[-1])


def orderings_of(view: Any) -> dict[str, str]:
    """Return the public names and their model fields."""
    fields = getattr(view, "ordering_fields", None) or ()
    return dict(fields) if isinstance(fields, Mapping) else {name: name for name in fields}


def with_tie_breaker(chosen: list[str], last: str) -> tuple[str, ...]:
    """Return the ordering with a unique last field, because a page can only continue after a unique row."""
    unique = last.removeprefix("-")
    if unique in (name.removeprefix("-") for name in chosen):
        return tuple(chosen)
    # In the direction of the first field, so that an index on both can be scanned.
    return (*chosen, f"-{unique}" if chosen[0].startswith("-") else unique)
