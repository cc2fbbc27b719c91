"""Tables that data sources may read, with the types of their fields, and the conversion of values, rows and declarations to these types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from math import isfinite
from typing import Any

from pipelines.data_sources.shapes import Scalar, Source
from pipelines.definition.errors import DefinitionError, Errors, at, quote_value
from pipelines.definition.reading import text_error

# No double _, because Django follows relations by it.
FIELD_NAME = re.compile(r"(?!.*__)[A-Za-z][A-Za-z0-9_]{0,62}")
TABLE_NAME = re.compile(r"(?!.*__)[A-Za-z][A-Za-z0-9_-]{0,62}")
ABOUT_FIELDS = "use letters, digits and single _, beginning with a letter"
ABOUT_TABLES = "use letters, digits and single _ and -, beginning with a letter"
WHOLE = 2**63
LONGEST_NUMBER = 40  # characters
FLAGS = {"true": True, "1": True, "false": False, "0": False}

#: A value in rows and conditions.
Typed = str | int | float | bool | datetime | None


class FieldType(StrEnum):
    """The type of a field's values. Every field may also be null."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DATETIME = "datetime"


@dataclass(frozen=True, slots=True)
class Table:
    """A table that may be read. The field `key` identifies its rows; a table without that field has no key."""

    fields: Mapping[str, FieldType]
    key: str = "id"

    @property
    def has_key(self) -> bool:
        return self.key in self.fields


Catalogue = Mapping[Source, Mapping[str, Table]]


class InvalidValue(ValueError):
    """The value is not of the field's type. The message completes "the field ..."."""


def from_text(kind: FieldType, text: str) -> Typed:
    """Convert text to a value: 5, 2.5, true or 1, 2024-01-01. Raises `InvalidValue`."""
    if kind is FieldType.STRING:
        return text
    if kind is FieldType.BOOLEAN:
        if text.lower() not in FLAGS:  # spreadsheets write TRUE
            raise InvalidValue("must be true or false")
        return FLAGS[text.lower()]
    if kind is FieldType.DATETIME:
        return moment_of(text)
    return _number_of(kind, text)


def from_json(kind: FieldType, value: Scalar) -> Typed:
    """Convert a JSON value to the field's type: neither true nor "5" is a number. Raises `InvalidValue`."""
    if value is None:
        return None
    if kind is FieldType.DATETIME and isinstance(value, str):
        return moment_of(value)
    if kind is FieldType.STRING and isinstance(value, str):
        return value
    if kind is FieldType.BOOLEAN and isinstance(value, bool):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        if kind is FieldType.INTEGER and (isinstance(value, int) or value.is_integer()):
            return _within_bounds(int(value))
        if kind is FieldType.NUMBER:
            return _within_bounds(value)
    raise InvalidValue(f"must be {_ARTICLES[kind]}")


def moment_of(text: str) -> datetime:
    """Return a time in UTC. A day means its beginning, and a time without an offset is in UTC. Raises `InvalidValue`."""
    try:
        moment = datetime.fromisoformat(text) if len(text) <= LONGEST_NUMBER else None
        if moment is not None:
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise InvalidValue(f"must be {_ARTICLES[FieldType.DATETIME]}")


def _number_of(kind: FieldType, text: str) -> int | float:
    try:
        if text.isascii() and len(text) <= LONGEST_NUMBER and "_" not in text and text == text.strip():
            value = int(text) if kind is FieldType.INTEGER else float(text)
            return _within_bounds(value)
    except ValueError:
        pass
    raise InvalidValue(f"must be {_ARTICLES[kind]}")


def _within_bounds(value: float) -> int | float:
    if isinstance(value, int) and not -WHOLE <= value < WHOLE:
        # Checked first, because it may be too large for isfinite.
        raise InvalidValue("must be a number of 64 bits")
    if not isfinite(value):
        raise InvalidValue("must be a finite number")
    return value


_ARTICLES = {
    FieldType.STRING: "text",
    FieldType.INTEGER: "a whole number",
    FieldType.NUMBER: "a number",
    FieldType.BOOLEAN: "true or false",
    FieldType.DATETIME: "a time such as 2024-01-01 or 2024-01-01T08:00:00Z",
}


# Tables that tenants declare: a name and the types of fields, checked before anything is stored in them.


MOST_FIELDS = 100


class TableError(DefinitionError):
    """The declaration is invalid. `errors` lists everything that is wrong with it, with paths."""

    code = "invalid_dataset"


def read_table(name: Any, fields: Any, *, path: str = "") -> Table:
    """Read the declaration of a table, `{name, fields: {field: type}}`. Raises `TableError`.

    Data sources can name every valid table and field. A field may have the name of an option; the JSON filter reaches it.
    """
    errors = Errors()
    if not isinstance(name, str) or not TABLE_NAME.fullmatch(name):
        errors.add(at(path, "name"), f"{quote_value(name)} is not a valid table name: {ABOUT_TABLES}")
    place = at(path, "fields")
    if not isinstance(fields, Mapping):
        errors.add(place, f"must be an object, not {quote_value(fields)}")
        raise TableError(errors.found)
    if not 0 < len(fields) <= MOST_FIELDS:
        errors.add(place, f"must have 1 to {MOST_FIELDS} fields")
    for field, kind in fields.items():
        if not isinstance(field, str) or not FIELD_NAME.fullmatch(field):
            errors.add(place, f"{quote_value(field)} is not a valid field name: {ABOUT_FIELDS}")
        elif kind not in list(FieldType):
            errors.add(at(place, field), f"must be one of {', '.join(FieldType)}, not {quote_value(kind)}")
    if errors.found:
        raise TableError(errors.found)
    return Table({field: FieldType(kind) for field, kind in fields.items()})


# Rows from outside, converted to the types of their fields.


class RowError(ValueError):
    """The row does not fit its table. `errors` has a message for each field that is wrong."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        self.errors = dict(errors)
        super().__init__("; ".join(f"{field} {message}" for field, message in self.errors.items()))


def read_row(row: Mapping[str, Any], table: Table, *, as_text: bool = False) -> dict[str, Typed]:
    """Return the row with typed values, and null for every missing field. Raises `RowError`.

    Values from CSV come `as_text`; there, an empty value is null, except in a text field. A row must have the
    table's key.
    """
    errors: dict[str, str] = {
        quote_value(name): "is not a field of this table" for name in row if name not in table.fields
    }
    typed: dict[str, Typed] = {}
    for name, kind in table.fields.items():
        value = row.get(name)
        try:
            if as_text and isinstance(value, str):
                typed[name] = from_text(kind, value) if value or kind is FieldType.STRING else None
            else:
                typed[name] = from_json(kind, value)
            problem = text_error(value) if isinstance(value, str) else None
            if problem:
                raise InvalidValue(problem)
        except InvalidValue as error:
            errors[name] = str(error)
    if table.has_key and table.key not in errors and typed[table.key] in (None, ""):
        errors[table.key] = "is missing: it identifies the row"
    if errors:
        raise RowError(errors)
    return typed
