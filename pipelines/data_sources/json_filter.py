"""Conditions with types and operators, from the JSON of a `filter` option.

An object of fields; each has a value, which it must equal, or an object of operators, which must all hold. Nothing is
nested deeper, so every other shape is a fault.
"""

from __future__ import annotations

from json import JSONDecodeError, JSONDecoder
from math import isfinite
from typing import Any

from pipelines.data_sources.shapes import Condition, Operator, Scalar
from pipelines.definition.faults import shown

MOST_MEMBERS = 500  # of a list
WHOLE = 2**63  # what the database can hold
ORDERED = frozenset({Operator.GT, Operator.GTE, Operator.LT, Operator.LTE})
LISTS = frozenset({Operator.IN, Operator.NIN})


class JsonFault(ValueError):
    """The filter cannot be accepted. `position` is known when it is not even JSON."""

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class _Pairs(list[tuple[str, Any]]):
    """An object as it was written: a key may come twice."""


def read_conditions(text: str, start: int) -> tuple[list[Condition], int]:
    """The conditions of the object that begins at `start`, and where it ends. Raises `JsonFault`."""
    if not text.startswith("{", start):
        raise JsonFault('must be an object, as in {"status":"active"}')
    try:
        data, end = _DECODER.raw_decode(text, start)
    except JSONDecodeError as error:
        raise JsonFault(f"is not valid JSON: {error.msg}", error.pos) from error
    except RecursionError as error:
        raise JsonFault("is nested too deep") from error
    return _conditions(data), end


def _conditions(pairs: _Pairs) -> list[Condition]:
    if not pairs:
        raise JsonFault("must have at least one condition")
    found: list[Condition] = []
    for field, value in _unique(pairs):
        if isinstance(value, _Pairs):
            found.extend(_operators(field, value))
        else:
            found.append(Condition(field, Operator.EQ, _scalar(field, value)))
    return found


def _operators(field: str, pairs: _Pairs) -> list[Condition]:
    if not pairs:
        raise JsonFault(f"{shown(field)} must have an operator")
    return [_condition(field, name, operand) for name, operand in _unique(pairs)]


def _condition(field: str, name: str, operand: Any) -> Condition:
    if name not in list(Operator):
        raise JsonFault(f"unknown operator {shown(name)}: must be one of {', '.join(Operator)}")
    operator = Operator(name)
    if operator in LISTS:
        return Condition(field, operator, _members(name, operand))
    if operator is Operator.EXISTS and not isinstance(operand, bool):
        raise JsonFault(f"{name} must be true or false, not {shown(operand)}")
    if operator in ORDERED and (operand is None or isinstance(operand, bool)):
        raise JsonFault(f"{name} needs a value that has an order, not {shown(operand)}")
    return Condition(field, operator, _scalar(name, operand))


def _members(name: str, operand: Any) -> tuple[Scalar, ...]:
    if isinstance(operand, _Pairs) or not isinstance(operand, list):
        raise JsonFault(f"{name} must be a list")
    if not 0 < len(operand) <= MOST_MEMBERS:
        raise JsonFault(f"{name} must have 1 to {MOST_MEMBERS} members")
    return tuple(_scalar(name, member) for member in operand)


def _scalar(name: str, value: Any) -> Scalar:
    if isinstance(value, list):  # objects are lists of pairs here
        kind = "an object" if isinstance(value, _Pairs) else "a list; for several values use $in"
        raise JsonFault(f"{shown(name)} cannot be compared with {kind}")
    if isinstance(value, str) and any(letter < " " or "\ud800" <= letter <= "\udfff" for letter in value):
        raise JsonFault(f"{shown(name)} is compared with text that holds a control character")
    scalar: Scalar = value
    return scalar


def _unique(pairs: _Pairs) -> _Pairs:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise JsonFault(f"{shown(key)} is given twice")
        seen.add(key)
    return pairs


def _whole(text: str) -> int:
    value = int(text)  # cheap: the parser of data sources bounds the length of the whole
    if not -WHOLE <= value < WHOLE:
        raise JsonFault(f"the number {text[:20]} is beyond 64 bits")
    return value


def _real(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise JsonFault(f"the number {text[:20]} is too large")
    return value


def _refuse(text: str) -> None:
    raise JsonFault(f"{text} is not JSON")


_DECODER = JSONDecoder(object_pairs_hook=_Pairs, parse_int=_whole, parse_float=_real, parse_constant=_refuse)
