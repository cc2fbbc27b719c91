"""The values of expressions, told apart as strictly as JSON does, and what can be computed from them: operators and functions.

Everything is computed within a budget of steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Any, TypeGuard

from pipelines.definition.errors import Errors, quote_value
from pipelines.definition.reading import number

MOST_STEPS = 12_000  # of one evaluation: enough to look through a list of 10,000, and done within 20 ms
LETTERS_PER_STEP = 100  # long text costs steps as well
DEEPEST = 64  # levels to which values are compared

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
    """What is wrong with a value. `evaluation` adds the place."""


class Budget:
    """The steps that one evaluation may still take."""

    def __init__(self, steps: int = MOST_STEPS) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Raises `Mistake` when nothing is left."""
        self.left -= steps
        if self.left < 0:
            raise Mistake("this takes too many steps")

    def spend_on(self, text: str) -> None:
        self.spend(len(text) // LETTERS_PER_STEP)


def kind_of(value: Any) -> str:
    """What a message calls a value. Raises `Mistake` for what JSON does not have."""
    kind = KINDS.get(type(value))
    if kind is None:
        raise Mistake(f"the data holds a {type(value).__name__}, which expressions do not know")
    return kind


def is_number(value: Any) -> TypeGuard[float]:
    """Whether this is a number that can be computed with: finite, and no larger than JSON and the database can hold."""
    return number(value) is not None


def member(of: Any, key: Any) -> Any:
    """The member of an object or a list; null if there is none, and of null. Raises `Mistake`."""
    kind = kind_of(of)
    if of is None:
        return None
    if isinstance(of, dict) and isinstance(key, str):
        return of.get(key)
    if isinstance(of, list) and isinstance(key, int) and not isinstance(key, bool):
        return of[key] if -len(of) <= key < len(of) else None
    raise Mistake(f"{kind} has no member that is named by {kind_of(key)}")


def equal(left: Any, right: Any, budget: Budget, depth: int = 0) -> bool:
    """Whether two values are the same, member by member. True is not 1, while 1 is 1.0. Raises `Mistake`."""
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


LONGEST_TEXT = 100_000  # characters that may be made
LONGEST_LIST = 10_000  # members of a list that may be made
LONGEST_NUMBER = 40  # characters of a number that is written as text
MOST_ARGUMENTS = 20


@dataclass(frozen=True, slots=True)
class Function:
    """A function with the numbers of arguments that it takes. `makes` is the kind of its value where that is sure."""

    call: Callable[..., Any]
    arguments: range
    makes: str | None = None

    def misuse(self, name: str) -> str:
        low, high = self.arguments[0], self.arguments[-1]
        takes = f"{low}" if low == high else f"{low} to {high}"
        return f"{name} takes {takes} argument{'s' if high > 1 else ''}"


def explain_unknown(name: str) -> str:
    """What to say about a function that does not exist."""
    errors = Errors()
    errors.add_unknown("", "function", name, FUNCTIONS.keys())
    return errors.found[0].message


def calculate(budget: Budget, operator: str, left: Any, right: Any) -> Any:
    """One operator applied to two values. Raises `Mistake`."""
    if is_number(left) and is_number(right):
        return _number(operator, left, right)
    if operator == "+" and isinstance(left, str) and isinstance(right, str):
        _afford_text(budget, len(left) + len(right))
        return left + right
    if operator == "+" and isinstance(left, list) and isinstance(right, list):
        if len(left) + len(right) > LONGEST_LIST:
            raise Mistake(f"a list that is made here may have at most {LONGEST_LIST:,} members")
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
    """To be called before a text is made, so that none is made which is too long."""
    if length > LONGEST_TEXT:
        raise Mistake(f"a text that is made here may have at most {LONGEST_TEXT:,} characters")
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
    """The smallest or the largest of one list's members, or of several arguments; null of an empty list."""

    def call(budget: Budget, *values: Any) -> Any:
        members = values if len(values) > 1 else _expect(values[0], list, "a list")
        best = members[0] if members else None
        for member in members:  # the first one too, as it has to be of a kind that has an order
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
    """The whole number that text stands for, or a number without its fraction."""
    found = _read(value, int) if isinstance(value, str) else value
    if not is_number(found):
        raise Mistake(f"{_describe_value(value)} is no whole number")
    return int(found)


def _as_number(_: Budget, value: Any) -> float:
    found = _read(value, float) if isinstance(value, str) else value
    if not is_number(found):
        raise Mistake(f"{_describe_value(value)} is no number")
    return found


def _read(text: str, kind: Callable[[str], float]) -> float | None:
    """The number that text stands for as people write it, without the _ and other digits that Python allows."""
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
