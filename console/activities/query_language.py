"""Parses the query language of activities: `status:failed role:seo age:<2h name:"home page"`.

All conditions must match. A word without a field is searched in names, descriptions, params, metadata and errors. A minus negates a
condition, and commas separate several values of one field. Pure: returns conditions, or raises an error with its position.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Any
from uuid import UUID

from activities import states
from activities.states import BANDS, LinkKind, Status, WakeReason

LONGEST = 500  # characters of a query
MOST = 20  # conditions of a query
MOST_DAYS = 3650  # the largest age
PRIORITIES = range(1, 21)

#: Words that stand for several statuses.
GROUPS: dict[str, frozenset[str]] = {
    "open": frozenset(map(str, Status)) - states.SETTLED,
    "ended": states.SETTLED,
    "running": states.RUNNING,
    "waiting": states.WAITING,
}
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_TOKEN = re.compile(
    r"""(?P<minus>-)?(?:(?P<field>[A-Za-z_]+):(?P<operator>[<>])?)?(?P<value>"[^"]*"|"[^"]*$|[^\s"]+|)"""
)


class QueryError(ValueError):
    """An error in a query. `position` counts characters from 1."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.message, self.position = message, position


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. `value` is of the field's own type; a field with several values has a tuple of them."""

    field: str
    value: Any
    operator: str = ""  # "<" or ">" where the field is compared
    negated: bool = False


def parse(text: str) -> list[Condition]:
    """Return the conditions in order. Raises `QueryError`."""
    if len(text) > LONGEST:
        raise QueryError(f"A query can have at most {LONGEST} characters.", LONGEST + 1)
    if "\x00" in text:
        raise QueryError("This character is not allowed.", text.index("\x00") + 1)
    conditions = list(_conditions(text))
    if len(conditions) > MOST:
        raise QueryError(f"A query can have at most {MOST} conditions.", len(text))
    return conditions


def _conditions(text: str) -> Iterator[Condition]:
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        token = _TOKEN.match(text, at)
        if token is None or token.end() == at:
            raise QueryError(f"Unexpected {text[at]!r}.", at + 1)
        if token.end() < len(text) and not text[token.end()].isspace():
            raise QueryError("A space is missing.", token.end() + 1)
        yield _condition(token)
        at = token.end()


def _condition(token: re.Match[str]) -> Condition:
    field, operator = (token["field"] or "").lower(), token["operator"] or ""
    value = _unquote(token)
    negated = token["minus"] is not None
    if not field:
        if not value:
            raise QueryError("A word is missing.", token.start("value") + 1)
        return Condition("words", value, negated=negated)
    reader = FIELDS.get(field)
    if reader is None:
        near = get_close_matches(field, FIELDS, n=1)
        meant = f" Did you mean {near[0]}?" if near else f" Known fields: {', '.join(FIELDS)}."
        raise QueryError(f"Unknown field {field}.{meant}", token.start("field") + 1)
    if not value:
        raise QueryError(f"{field}: a value is missing.", token.start("value") + 1)
    if operator and field not in COMPARED:
        raise QueryError(f"{field} cannot be compared with {operator}.", token.start("operator") + 1)
    try:
        read = reader(value)
    except ValueError as error:
        raise QueryError(f"{field}: {error}", token.start("value") + 1) from error
    if field == "age" and not operator:
        raise QueryError("age: use < for younger or > for older.", token.start("value") + 1)
    return Condition(field, read, operator, negated)


def _unquote(token: re.Match[str]) -> str:
    value = token["value"]
    if not value.startswith('"'):
        return value
    if len(value) < 2 or not value.endswith('"'):
        raise QueryError("The closing quotation mark is missing.", token.start("value") + 1)
    return value[1:-1]


def _several(known: Callable[[str], frozenset[str]]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        return tuple(sorted({each for part in text.split(",") for each in known(part.strip().lower())}))

    return read


def _status(name: str) -> frozenset[str]:
    if name in GROUPS:
        return GROUPS[name]
    return _among(name, tuple(map(str, Status)), (*GROUPS, *map(str, Status)))


def _wake(name: str) -> frozenset[str]:
    return _among(name, tuple(map(str, WakeReason)))


def _among(name: str, known: tuple[str, ...], offered: tuple[str, ...] | None = None) -> frozenset[str]:
    if name in known:
        return frozenset((name,))
    near = get_close_matches(name, offered or known, n=1)
    meant = f"did you mean {near[0]}?" if near else f"use one of {', '.join(offered or known)}."
    raise ValueError(f"unknown value {name[:50] or 'nothing'}; {meant}")


def _roles(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _age(text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,6})([smhdw])", text.lower())
    if match is None:
        raise ValueError("use a number with s, m, h, d or w, such as 2h.")
    seconds = int(match[1]) * _UNITS[match[2]]
    if seconds > MOST_DAYS * 86_400:
        raise ValueError(f"use at most {MOST_DAYS}d.")
    return timedelta(seconds=seconds)


def _priority(text: str) -> int:
    if text.lower() in BANDS:
        return BANDS[text.lower()]
    if text.isascii() and text.isdecimal() and len(text) <= 2 and int(text) in PRIORITIES:
        return int(text)
    raise ValueError(f"use 1 to 20, or one of {', '.join(BANDS)}.")


def _number(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 4:
        return int(text)
    raise ValueError("use a whole number.")


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ValueError("use an id, as in the address of a page.") from None


#: The parser of each field's value.
FIELDS: dict[str, Callable[[str], Any]] = {
    "status": _several(_status), "role": _roles, "wake": _several(_wake), "age": _age, "name": str, "for": _several(lambda name: _among(
        {"agents": "agent", "people": "human", "person": "human"}.get(name, name), ("agent", "human")
    )),
    "kind": _several(lambda name: _among(name, tuple(map(str, LinkKind)))),
    "priority": _priority, "attempts": _number, "step": _roles, "run": _id, "parent": _id, "schedule": _id, "deliverable": _id,
    "key": str, "params": str, "metadata": str, "error": str,
}  # fmt: skip
COMPARED = frozenset({"age", "priority", "attempts"})
