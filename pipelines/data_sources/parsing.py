"""Parses the text of a data source, in linear time. Nothing in the text is ever executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from json import JSONDecodeError, JSONDecoder
from math import isfinite
from typing import Any
from urllib.parse import unquote_to_bytes

from pipelines.data_sources.catalogue import ABOUT_FIELDS, ABOUT_TABLES, FIELD_NAME, TABLE_NAME, WHOLE
from pipelines.data_sources.shapes import (
    LISTS,
    ORDERED,
    BatchGate,
    Condition,
    DataSource,
    DataSourceError,
    Expand,
    Filter,
    InputError,
    Operator,
    Options,
    Scalar,
    Source,
)
from pipelines.definition.errors import quote_value

LONGEST = 4_000  # characters
MOST_FIELDS = 20
MOST_CONDITIONS = 20
MOST_ERRORS = 20  # parsing stops after these
FORM = "<source>:<table>:<filter>:<field>"
DATA_SOURCE = re.compile(rf"(?:{'|'.join(Source)}):(?![\s/])[^:]*:", re.IGNORECASE)
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
PERCENT = re.compile(r"%[0-9A-Fa-f]{2}")
PLAIN = frozenset("-._~@+,:")  # characters of a value besides letters and digits
#: Options with whole numbers, and their bounds.
NUMBERS = {"batchSize": (1, 10_000), "staggerDelay": (0, 86_400_000), "limit": (1, 1_000_000)}
CHOICES: dict[str, type[Expand | BatchGate]] = {"expand": Expand, "batch_gate": BatchGate}
RESERVED = frozenset({*NUMBERS, *CHOICES, "filter"})


def looks_like(value: object) -> bool:
    """Whether a value is a data source, and so must be valid."""
    return isinstance(value, str) and DATA_SOURCE.match(value) is not None


def unescape(value: str) -> str:
    """Return plain text without the backslash that escapes a data source."""
    return value[1:] if value.startswith("\\") and looks_like(value.lstrip("\\")) else value


def parse(text: str) -> DataSource:
    """Parse a data source. Raises `DataSourceError` with every error."""
    parser = _Parser(text)
    parsed = None if parser.errors else parser.read()
    if parsed is None or parser.errors:
        raise DataSourceError(sorted(parser.errors, key=lambda error: error.position))
    return parsed


class _Parser:
    """Parses one text from left to right and collects its errors."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.errors: list[InputError] = []
        self.conditions: list[Condition] = []
        self.numbers: dict[str, int] = {}
        self.choices: dict[str, Expand | BatchGate] = {}
        control = CONTROL.search(text[:LONGEST])
        if len(text) > LONGEST:
            self.error(LONGEST, f"must have at most {LONGEST:,} characters")
        elif control:
            self.error(control.start(), "a control character cannot be part of a data source")

    def error(self, position: int, message: str) -> None:
        self.errors.append(InputError(position, message))

    def read(self) -> DataSource | None:
        head, question, _ = self.text.partition("?")
        parts = list(_with_positions(head, ":"))
        if len(parts) != FORM.count(":") + 1:
            more = "; a colon within the filter is written %3A" if len(parts) > FORM.count(":") + 1 else ""
            self.error(parts[min(len(parts), 4) - 1][0], f"must have the form {FORM}{more}")
            return None
        (_, source), (table_at, table), (filter_at, filter_), (field_at, fields) = parts
        if source not in list(Source):
            self.error(0, f"unknown source {quote_value(source)}: must be one of {', '.join(Source)}")
        self._name(table_at, table, TABLE_NAME, "table")
        key = self._key(filter_at, filter_)
        names = [(field_at + offset, name) for offset, name in _with_positions(fields, ",")]
        self._fields(names)
        if question:
            self._options(len(head) + 1)
        if self.errors:
            return None
        expand, gate = self.choices.get("expand"), self.choices.get("batch_gate")
        return DataSource(
            source=Source(source),
            table=table,
            filter=Filter(key, tuple(self.conditions)),
            fields=tuple(name for _, name in names),
            options=Options(
                batch_size=self.numbers.get("batchSize"),
                stagger_ms=self.numbers.get("staggerDelay"),
                expand=expand if isinstance(expand, Expand) else None,
                batch_gate=gate if isinstance(gate, BatchGate) else None,
                limit=self.numbers.get("limit"),
            ),
            positions=(table_at, filter_at, *(position for position, _ in names)),
        )

    def _name(self, position: int, name: str, pattern: re.Pattern[str], what: str) -> None:
        if not pattern.fullmatch(name):
            allowed = ABOUT_TABLES if pattern is TABLE_NAME else ABOUT_FIELDS
            self.error(position, f"{quote_value(name)} is not a valid {what} name: {allowed}")

    def _fields(self, names: list[tuple[int, str]]) -> None:
        for position, name in names[: MOST_FIELDS + 1]:
            self._name(position, name, FIELD_NAME, "field")
        if len(names) > MOST_FIELDS:
            self.error(names[MOST_FIELDS][0], f"must have at most {MOST_FIELDS} fields")
        elif len({name for _, name in names}) < len(names):
            self.error(names[0][0], "a field is named twice")

    def _key(self, position: int, text: str) -> str | None:
        if text == "all":
            return None
        if not text:
            self.error(position, "the filter is missing: it is all, or one value of the table's key")
        elif "=" in text or "{" in text:
            self.error(
                position,
                "the filter is all, or one value of the table's key; conditions are options after the ?",
            )
        return self._value(position, text)

    def _value(self, position: int, text: str) -> str:
        """Decode percent-encoded text."""
        for offset, letter in enumerate(text):
            if letter == "%" and not PERCENT.match(text, offset):
                self.error(
                    position + offset,
                    "a percent sign must be followed by two hexadecimal digits, or be written %25",
                )
                return ""
            if letter != "%" and letter not in PLAIN and not letter.isalnum():
                encoded = "".join(f"%{byte:02X}" for byte in letter.encode())
                self.error(position + offset, f"{quote_value(letter)} must be written {encoded}")
                return ""
        return self._decode(position, text)

    def _decode(self, position: int, text: str) -> str:
        try:
            value = unquote_to_bytes(text).decode()
        except UnicodeDecodeError:
            self.error(position, "the percent-encoded bytes are not UTF-8")
            return ""
        if CONTROL.search(value):
            self.error(position, "a control character cannot be part of a data source")
        return value

    def _options(self, position: int) -> None:
        """Read one option after another. A simple split would fail, because a JSON filter may hold the separators."""
        seen: set[str] = set()
        while position <= len(self.text) and len(self.errors) < MOST_ERRORS:
            stop = self._option(position, seen)
            if stop < len(self.text) and self.text[stop] != "&":
                self.error(stop, "expected & or the end after the JSON filter")
                return
            position = stop + 1

    def _option(self, position: int, seen: set[str]) -> int:
        """Read the option that begins here, and return where it ends."""
        stop = self.text.find("&", position)
        stop = len(self.text) if stop < 0 else stop
        name, equals, value = self.text[position:stop].partition("=")
        at = position + len(name) + 1
        if not equals:
            self.error(position, "expected an option of the form name=value")
        elif name in seen:
            self.error(
                position,
                f"{name} is given twice" + ("" if name in RESERVED else "; for several values use $in"),
            )
        elif name == "filter":
            stop = self._json_filter(at, stop)
        elif name in NUMBERS:
            self._number(at, name, value)
        elif name in CHOICES:
            self._choice(at, name, value)
        else:
            self._name(position, name, FIELD_NAME, "field or option")
            self._condition(
                Condition(name, Operator.EQ, self._value(at, value), is_text=True, position=position)
            )
        seen.add(name)
        return stop

    def _number(self, position: int, name: str, text: str) -> None:
        low, high = NUMBERS[name]
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and low <= int(text) <= high):
            self.error(position, f"{name} must be a whole number from {low:,} to {high:,}")
        else:
            self.numbers[name] = int(text)

    def _choice(self, position: int, name: str, text: str) -> None:
        kind = CHOICES[name]
        if text not in list(kind):
            self.error(position, f"{name} must be one of {', '.join(kind)}")
        else:
            self.choices[name] = kind(text)

    def _json_filter(self, position: int, stop: int) -> int:
        """Read a JSON filter: plain up to its closing brace, or percent-encoded up to the next &. Return where it ends."""
        conditions: list[Condition] = []
        try:
            if self.text.startswith("{", position):
                conditions, stop = read_conditions(self.text, position)
            else:
                conditions = self._read_encoded_filter(position, stop)
        except JsonError as error:
            self.error(position if error.position is None else error.position, f"the JSON filter: {error}")
        for condition in conditions:
            self._name(position, condition.field, FIELD_NAME, "field")
            self._condition(replace(condition, position=position))
        return stop

    def _read_encoded_filter(self, position: int, stop: int) -> list[Condition]:
        before = len(self.errors)
        text = self._value(position, self.text[position:stop])
        if len(self.errors) > before:
            return []
        try:
            conditions, end = read_conditions(text, 0)
        except JsonError as error:
            raise JsonError(str(error)) from error  # without its position, which is one in the decoded text
        if end < len(text):
            raise JsonError("nothing may follow its closing brace", position)
        return conditions

    def _condition(self, condition: Condition) -> None:
        if len(self.conditions) == MOST_CONDITIONS:
            self.error(condition.position, f"must have at most {MOST_CONDITIONS} conditions")
        else:
            self.conditions.append(condition)


def _with_positions(text: str, separator: str) -> Iterator[tuple[int, str]]:
    position = 0
    for part in text.split(separator):
        yield position, part
        position += len(part) + len(separator)


# Conditions with types and operators, from the JSON of a `filter` option.
#
# It is an object of fields. Each has a value, which it must equal, or an object of operators, which must all hold. Any
# other shape is an error.


MOST_MEMBERS = 500  # of a list


class JsonError(ValueError):
    """The filter is invalid. `position` is known if it is not valid JSON."""

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class _Pairs(list[tuple[str, Any]]):
    """An object as it was written, which may have duplicate keys."""


def read_conditions(text: str, start: int) -> tuple[list[Condition], int]:
    """Return the conditions of the object that begins at `start`, and where it ends. Raises `JsonError`."""
    if not text.startswith("{", start):
        raise JsonError('must be an object, as in {"status":"active"}')
    try:
        data, end = _DECODER.raw_decode(text, start)
    except JSONDecodeError as error:
        raise JsonError(f"is not valid JSON: {error.msg}", error.pos) from error
    except RecursionError as error:
        raise JsonError("is nested too deep") from error
    if not data:
        raise JsonError("must have at least one condition")
    conditions: list[Condition] = []
    for field, value in _unique(data):
        if isinstance(value, _Pairs):
            if not value:
                raise JsonError(f"{quote_value(field)} must have an operator")
            conditions.extend([_condition(field, name, operand) for name, operand in _unique(value)])
        else:
            conditions.append(Condition(field, Operator.EQ, _scalar(field, value)))
    return conditions, end


def _condition(field: str, name: str, operand: Any) -> Condition:
    if name not in list(Operator):
        raise JsonError(f"unknown operator {quote_value(name)}: must be one of {', '.join(Operator)}")
    operator = Operator(name)
    if operator in LISTS:
        return Condition(field, operator, _members(name, operand))
    if operator is Operator.EXISTS and not isinstance(operand, bool):
        raise JsonError(f"{name} must be true or false, not {quote_value(operand)}")
    if operator in ORDERED and (operand is None or isinstance(operand, bool)):
        raise JsonError(f"{name} needs a value that has an order, not {quote_value(operand)}")
    return Condition(field, operator, _scalar(name, operand))


def _members(name: str, operand: Any) -> tuple[Scalar, ...]:
    if isinstance(operand, _Pairs) or not isinstance(operand, list):
        raise JsonError(f"{name} must be a list")
    if not 0 < len(operand) <= MOST_MEMBERS:
        raise JsonError(f"{name} must have 1 to {MOST_MEMBERS} members")
    return tuple(_scalar(name, member) for member in operand)


def _scalar(name: str, value: Any) -> Scalar:
    if isinstance(value, list):  # objects are lists of pairs here
        kind = "an object" if isinstance(value, _Pairs) else "a list; for several values use $in"
        raise JsonError(f"{quote_value(name)} cannot be compared with {kind}")
    if isinstance(value, str) and any(letter < " " or "\ud800" <= letter <= "\udfff" for letter in value):
        raise JsonError(f"{quote_value(name)} is compared with text that holds a control character")
    scalar: Scalar = value
    return scalar


def _unique(pairs: _Pairs) -> _Pairs:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise JsonError(f"{quote_value(key)} is given twice")
        seen.add(key)
    return pairs


def _parse_whole(text: str) -> int:
    value = int(text)  # cheap, because the length of the whole text is limited
    if not -WHOLE <= value < WHOLE:
        raise JsonError(f"the number {text[:20]} is beyond 64 bits")
    return value


def _real(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise JsonError(f"the number {text[:20]} is too large")
    return value


def _refuse(text: str) -> None:
    raise JsonError(f"{text} is not JSON")


_DECODER = JSONDecoder(
    object_pairs_hook=_Pairs, parse_int=_parse_whole, parse_float=_real, parse_constant=_refuse
)
