"""What may be read: the tables of a source with their fields' types, and how values are brought to those types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from math import isfinite

from pipelines.data_sources.shapes import Scalar, Source

FIELD_NAME = re.compile(r"(?!.*__)[A-Za-z][A-Za-z0-9_]{0,62}")  # two _ are how Django follows relations
TABLE_NAME = re.compile(r"(?!.*__)[A-Za-z][A-Za-z0-9_-]{0,62}")
ABOUT_FIELDS = "use letters, digits and single _, beginning with a letter"
ABOUT_TABLES = "use letters, digits and single _ and -, beginning with a letter"
WHOLE = 2**63
LONGEST_NUMBER = 40  # characters
FLAGS = {"true": True, "1": True, "false": False, "0": False}

#: A value as rows hold it and conditions compare it.
Typed = str | int | float | bool | datetime | None


class FieldType(StrEnum):
    """The type of a field's values; every field may also have none."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DATETIME = "datetime"


@dataclass(frozen=True, slots=True)
class Table:
    """A table that may be read. `key` tells its rows apart; a table without that field has no key."""

    fields: Mapping[str, FieldType]
    key: str = "id"

    @property
    def has_key(self) -> bool:
        return self.key in self.fields


Catalogue = Mapping[Source, Mapping[str, Table]]


class ValueFault(ValueError):
    """The value is none of the field's type. The message completes "the field ..."."""


def from_text(kind: FieldType, text: str) -> Typed:
    """The value that text stands for: 5, 2.5, true or 1, 2024-01-01. Raises `ValueFault`."""
    if kind is FieldType.STRING:
        return text
    if kind is FieldType.BOOLEAN:
        if text.lower() not in FLAGS:  # a spreadsheet writes TRUE
            raise ValueFault("must be true or false")
        return FLAGS[text.lower()]
    if kind is FieldType.DATETIME:
        return moment_of(text)
    return _number_of(kind, text)


def from_json(kind: FieldType, value: Scalar) -> Typed:
    """The value of a field that came as JSON: true is no number, "5" neither. Raises `ValueFault`."""
    if value is None:
        return None
    if kind is FieldType.DATETIME and isinstance(value, str):
        return moment_of(value)
    if kind is FieldType.STRING and isinstance(value, str):
        return value
    if kind is FieldType.BOOLEAN and isinstance(value, bool):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        if kind is FieldType.INTEGER and _is_whole(value):
            return _within_bounds(int(value))
        if kind is FieldType.NUMBER:
            return _within_bounds(value)
    raise ValueFault(f"must be {_ARTICLES[kind]}")


def moment_of(text: str) -> datetime:
    """A time in UTC: a day means its beginning, and a time without an offset is one of UTC. Raises `ValueFault`."""
    try:
        moment = datetime.fromisoformat(text) if len(text) <= LONGEST_NUMBER else None
        if moment is not None:
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueFault(f"must be {_ARTICLES[FieldType.DATETIME]}")


def _number_of(kind: FieldType, text: str) -> int | float:
    try:
        if text.isascii() and len(text) <= LONGEST_NUMBER and "_" not in text and text == text.strip():
            value = int(text) if kind is FieldType.INTEGER else float(text)
            return _within_bounds(value)
    except ValueError:
        pass
    raise ValueFault(f"must be {_ARTICLES[kind]}")


def _is_whole(value: float) -> bool:
    return isinstance(value, int) or value.is_integer()


def _within_bounds(value: float) -> int | float:
    if isinstance(value, int) and not -WHOLE <= value < WHOLE:
        raise ValueFault("must be a number of 64 bits")  # also too large for isfinite, perhaps
    if not isfinite(value):
        raise ValueFault("must be a finite number")
    return value


_ARTICLES = {
    FieldType.STRING: "text",
    FieldType.INTEGER: "a whole number",
    FieldType.NUMBER: "a number",
    FieldType.BOOLEAN: "true or false",
    FieldType.DATETIME: "a time such as 2024-01-01 or 2024-01-01T08:00:00Z",
}
