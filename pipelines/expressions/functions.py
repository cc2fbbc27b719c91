"""The operators and functions of expressions, over values with the strict types of JSON.

Every computation stays within a budget of steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Any, TypeGuard

from pipelines.definition.errors import quote_value
from pipelines.definition.reading import number

MOST_STEPS = 12_000  # of one evaluation: enough to search a list of 10,000, and takes at most 20 ms
LETTERS_PER_STEP = 100  # long text costs steps as well
DEEPEST = 64  # levels of values that are compared

ORDERS: dict[str, Callable[[Any, Any], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
KINDS: dict[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


class Mistake(Exception):
    """An error about a value. `evaluation` adds the position."""


class Budget:
    """The remaining steps of one evaluation."""

    def __init__(self, steps: int = MOST_STEPS) -> None:
        self.remaining = steps

    def spend(self, steps: int) -> None:
        """Raise `Mistake` if the budget is exhausted."""
        self.remaining -= steps
        if self.remaining < 0:
            raise Mistake("this takes too many steps")

    def spend_on(self, text: str) -> None:
        self.spend(len(text) // LETTERS_PER_STEP)


def kind_of(value: Any) -> str:
    """Return the kind of a value for messages. Raises `Mistake` for a type that JSON does not have."""
    kind = KINDS.get(type(value))
    if kind is None:
        raise Mistake(f"the data holds a {type(value).__name__}, which expressions do not support")
    return kind


def is_number(value: Any) -> TypeGuard[float]:
    """Whether this is a finite number that JSON and the database can hold."""
    return number(value) is not None


def member(container: Any, key: Any) -> Any:
    """Return a member of an object or a list; None if it is missing, or if the container is null. Raises `Mistake`."""
    kind = kind_of(container)
    if container is None:
        return None
    if isinstance(container, dict) and isinstance(key, str):
        return container.get(key)
    if isinstance(container, list) and isinstance(key, int) and not isinstance(key, bool):
        return container[key] if -len(container) <= key < len(container) else None
    raise Mistake(f"{kind} has no member that is named by {kind_of(key)}")


def equal(left: Any, right: Any, budget: Budget, depth: int = 0) -> bool:
    """Whether two values are equal, member by member. True is not 1, but 1 is 1.0. Raises `Mistake`."""
    budget.spend(1)
    if kind_of(left) != kind_of(right):
        return False
    if depth > DEEPEST:
        raise Mistake(f"these values are nested deeper than {DEEPEST} levels")
    if isinstance(left, list):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(equal(one, other, budget, depth + 1) for one, other in pairs)
    if isinstance(left, dict):
        budget.spend(len(left) // 10)
        if left.keys() != right.keys():
            return False
        return all(equal(value, right[key], budget, depth + 1) for key, value in left.items())
    if isinstance(left, str):
        budget.spend_on(left)
    return bool(left == right)


def are_ordered(operator: str, left: Any, right: Any, budget: Budget) -> bool:
    """Whether two numbers, or two texts by their code points, have this order. Raises `Mistake`."""
    if isinstance(left, str) and isinstance(right, str):
        budget.spend_on(left)
    elif not (is_number(left) and is_number(right)):
        raise Mistake(f"{operator} needs two numbers or two texts, not {kind_of(left)} and {kind_of(right)}")
    return ORDERS[operator](left, right)


LONGEST_TEXT = 100_000  # characters of a computed text
LONGEST_LIST = 10_000  # members of a computed list
LONGEST_NUMBER = 40  # characters of a number in text
MOST_ARGUMENTS = 20


@dataclass(frozen=True, slots=True)
class Function:
    """A function and its allowed numbers of arguments. `makes` is the kind of its value if that is certain."""

    call: Callable[..., Any]
    arguments: range
    makes: str | None = None

    def misuse(self, name: str) -> str:
        low, high = self.arguments[0], self.arguments[-1]
        takes = f"{low}" if low == high else f"{low} to {high}"
        return f"{name} takes {takes} argument{'s' if high > 1 else ''}"


def calculate(budget: Budget, operator: str, left: Any, right: Any) -> Any:
    """Apply one operator to two values. Raises `Mistake`."""
    if is_number(left) and is_number(right):
        return _number(operator, left, right)
    if operator == "+" and isinstance(left, str) and isinstance(right, str):
        _afford_text(budget, len(left) + len(right))
        return left + right
    if operator == "+" and isinstance(left, list) and isinstance(right, list):
        if len(left) + len(right) > LONGEST_LIST:
            raise Mistake(f"a computed list may have at most {LONGEST_LIST:,} members")
        budget.spend((len(left) + len(right)) // 10)
        return left + right
    operands = "two numbers, two texts or two lists" if operator == "+" else "two numbers"
    raise Mistake(f"{operator} needs {operands}, not {kind_of(left)} and {kind_of(right)}")


def _number(operator: str, left: float, right: float) -> float:
    try:
        value = number(_ARITHMETIC[operator](left, right))
    except ZeroDivisionError:
        raise Mistake("a number cannot be divided by zero") from None
    except OverflowError:
        value = None
    if value is None:
        raise Mistake("the result is too large a number")
    return value


def contains(budget: Budget, container: Any, part: Any) -> bool:
    """Whether a list has this member, an object this key, or a text this part. Raises `Mistake`."""
    if isinstance(container, list):
        return any(equal(member, part, budget) for member in container)
    if isinstance(container, dict | str) and isinstance(part, str):
        budget.spend_on(container if isinstance(container, str) else "")
        return part in container
    raise Mistake(f"{kind_of(container)} cannot be searched for {kind_of(part)}")


def _afford_text(budget: Budget, length: int) -> None:
    """Refuse a text that would be too long. Call this before computing it."""
    if length > LONGEST_TEXT:
        raise Mistake(f"a computed text may have at most {LONGEST_TEXT:,} characters")
    budget.spend(length // LETTERS_PER_STEP)


def _expect(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:
        raise Mistake(f"{what} is needed, not {kind_of(value)}")
    return value


def _change_text(change: Callable[[str], str]) -> Callable[[Budget, Any], str]:
    def call(budget: Budget, value: Any) -> str:
        text: str = _expect(value, str, "text")
        _afford_text(budget, len(text))
        return change(text)

    return call


def _compare_texts(compare: Callable[[str, str], bool]) -> Callable[[Budget, Any, Any], bool]:
    def call(_: Budget, value: Any, part: Any) -> bool:
        return compare(_expect(value, str, "text"), _expect(part, str, "text"))

    return call


def _len(_: Budget, value: Any) -> int:
    if not isinstance(value, str | list | dict):
        raise Mistake(f"text, a list or an object is needed, not {kind_of(value)}")
    return len(value)


def _outermost(operator: str) -> Callable[..., Any]:
    """Return a function for the smallest or largest member of a list or of several arguments; null for an empty list."""

    def call(budget: Budget, *values: Any) -> Any:
        members = values if len(values) > 1 else _expect(values[0], list, "a list")
        best = members[0] if members else None
        for member in members:  # the first one too, because its kind must have an order
            budget.spend(1)
            if are_ordered(operator, member, best, budget):
                best = member
        return best

    return call


def _sum(budget: Budget, values: Any) -> float:
    total: float = 0
    for value in _expect(values, list, "a list"):
        budget.spend(1)
        if not is_number(value):
            raise Mistake(f"the list must hold numbers, not {kind_of(value)}")
        total = _number("+", total, value)
    return total


def _flags(budget: Budget, values: Any) -> list[bool]:
    members: list[Any] = _expect(values, list, "a list")
    budget.spend(len(members))
    for value in members:
        _expect(value, bool, "a list of true and false")
    return members


def _int(_: Budget, value: Any) -> int:
    """Return the whole number in a text, or a number without its fraction."""
    result = _read(value, int) if isinstance(value, str) else value
    if not is_number(result):
        raise Mistake(f"{_describe_value(value)} is not a whole number")
    return int(result)


def _as_number(_: Budget, value: Any) -> float:
    result = _read(value, float) if isinstance(value, str) else value
    if not is_number(result):
        raise Mistake(f"{_describe_value(value)} is not a number")
    return result


def _read(text: str, kind: Callable[[str], float]) -> float | None:
    """Return the number in a text, or None. Unlike Python, it accepts no _ and only ASCII digits."""
    try:
        return (
            number(kind(text)) if len(text) <= LONGEST_NUMBER and text.isascii() and "_" not in text else None
        )
    except ValueError:
        return None


def _describe_value(value: Any) -> str:
    return quote_value(value) if isinstance(value, str) else kind_of(value)


def _string(_: Budget, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if not is_number(value):
        raise Mistake(f"text, a number, true or false is needed, not {kind_of(value)}")
    return repr(value)


def _default(_: Budget, value: Any, other: Any) -> Any:
    return other if value is None else value


_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
    "%": lambda left, right: left % right,
}
FLAG, NUMBER, TEXT = kind_of(True), kind_of(0), kind_of("")
FUNCTIONS = {
    "len": Function(_len, range(1, 2), NUMBER),
    "lower": Function(_change_text(str.lower), range(1, 2), TEXT),
    "upper": Function(_change_text(str.upper), range(1, 2), TEXT),
    "contains": Function(contains, range(2, 3), FLAG),
    "startswith": Function(_compare_texts(str.startswith), range(2, 3), FLAG),
    "endswith": Function(_compare_texts(str.endswith), range(2, 3), FLAG),
    "min": Function(_outermost("<"), range(1, MOST_ARGUMENTS + 1)),
    "max": Function(_outermost(">"), range(1, MOST_ARGUMENTS + 1)),
    "sum": Function(_sum, range(1, 2), NUMBER),
    "any": Function(lambda budget, values: any(_flags(budget, values)), range(1, 2), FLAG),
    "all": Function(lambda budget, values: all(_flags(budget, values)), range(1, 2), FLAG),
    "default": Function(_default, range(2, 3)),
    "int": Function(_int, range(1, 2), NUMBER),
    "number": Function(_as_number, range(1, 2), NUMBER),
    "string": Function(_string, range(1, 2), TEXT),
}
