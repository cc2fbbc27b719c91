"""Places in an ordered list, as opaque text that callers can keep but not change.

A place is the values of the ordering fields in one row. It is signed, so what comes back is what was given
out: values of the types that we wrote, for the ordering that we wrote them for.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.core import signing
from django.db.models import Q

SALT = "tenants.api.cursors"


class CursorRefused(ValueError):
    """The cursor was not made by us, was changed, or belongs to another ordering."""


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
    def read(cls, text: str, ordering: Sequence[str]) -> Cursor:
        """Raises `CursorRefused`."""
        try:
            names, packed, backwards = signing.Signer(salt=SALT).unsign_object(text)
        except (signing.BadSignature, ValueError, TypeError) as error:
            raise CursorRefused("is not a cursor of this list") from error
        if tuple(names) != tuple(ordering):
            raise CursorRefused("belongs to another ordering of this list")
        return cls(tuple(names), tuple(_unpack(value) for value in packed), bool(backwards))

    def text(self) -> str:
        packed = [_pack(value) for value in self.values]
        return signing.Signer(salt=SALT).sign_object([list(self.ordering), packed, int(self.backwards)])

    def condition(self, *, nullable: Collection[str] = ()) -> Q:
        """The rows after this place, or before it when backwards. `nullable`: fields that may be NULL."""
        found, equal = Q(pk__in=[]), Q()
        for name, value in zip(self.ordering, self.values, strict=True):
            field, down = name.removeprefix("-"), name.startswith("-") != self.backwards
            found |= equal & _beyond(field, value, down=down, nullable=field in nullable)
            equal &= Q(**{f"{field}__isnull": True}) if value is None else Q(**{field: value})
        field, down = self.ordering[0].removeprefix("-"), self.ordering[0].startswith("-") != self.backwards
        if field in nullable:
            return found
        # Implied by the rest, but this is the range that an index on the first field can start from.
        return Q(**{f"{field}__{'lte' if down else 'gte'}": self.values[0]}) & found


def _beyond(field: str, value: Any, *, down: bool, nullable: bool) -> Q:
    """Rows that PostgreSQL sorts after the value: NULL comes last going up, and first going down."""
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
