"""The values of expressions: JSON's, told apart strictly, compared within a budget of steps."""

from __future__ import annotations

from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Any, ClassVar, TypeGuard

from pipelines.definition.values import number


class ExpressionError(ValueError):
    """The expression cannot be read, or has no value with this data. `position` is the index of a character."""

    code: ClassVar[str] = "invalid_expression"

    def __init__(self, position: int, message: str) -> None:
        super().__init__(position, message)
        self.position = position
        self.message = message

    def __str__(self) -> str:
        return f"character {self.position + 1}: {self.message}"


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


def ordered(operator: str, left: Any, right: Any, budget: Budget) -> bool:
    """Whether two numbers, or two texts by their code points, have this order. Raises `Mistake`."""
    if isinstance(left, str) and isinstance(right, str):
        budget.spend_on(left)
    elif not (is_number(left) and is_number(right)):
        raise Mistake(f"{operator} needs two numbers or two texts, not {kind_of(left)} and {kind_of(right)}")
    return ORDERS[operator](left, right)
