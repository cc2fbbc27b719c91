"""The value of an expression: walks the tree once, counting its steps.

Knows JSON values only. An object of any other kind that a caller lets slip in is refused when it is touched, so no
method of it is ever called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipelines.definition.values import number
from pipelines.expressions import functions, syntax
from pipelines.expressions.functions import (
    Budget,
    Mistake,
    equal,
    is_number,
    kind_of,
    member,
    ordered,
)
from pipelines.expressions.syntax import ExpressionError

MOST_ITEMS = 10_000  # that a step may be fanned out over

Names = Mapping[str, Any]


def evaluate(text: str, names: Names) -> Any:
    """The value of an expression, given `params`, `steps` ({id: {data, content, status}}) and perhaps `item`.

    The names hold plain JSON values: dict, list, str, int, float, bool and None. Raises `ExpressionError`, and nothing else.
    What comes out may be a part of what went in: it must not be changed.
    """
    return _Evaluation(names).value(syntax.parse(text))


def condition(text: str, names: Names) -> bool:
    """As `evaluate`, for an expression that must be true or false."""
    value = evaluate(text, names)
    if not isinstance(value, bool):
        raise ExpressionError(0, f"a condition must be true or false, but this is {kind_of(value)}")
    return value


def items(text: str, names: Names, *, most: int = MOST_ITEMS) -> list[Any]:
    """As `evaluate`, for an expression that must be a list of at most `most` members."""
    value = evaluate(text, names)
    if not isinstance(value, list):
        raise ExpressionError(0, f"a fan-out needs a list, but this is {kind_of(value)}")
    if len(value) > most:
        raise ExpressionError(
            0, f"a fan-out may have at most {most:,} members, but this list has {len(value):,}"
        )
    return value


class _Evaluation:
    """One walk through one tree."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.budget = Budget()

    def value(self, node: syntax.Node) -> Any:
        """The value of a node. Depth is bounded by the parser, so recursion is safe."""
        try:
            self.budget.spend(1)
            value = _MEANINGS[type(node)](self, node)
            kind_of(value)  # before anybody asks it anything
            return value
        except Mistake as mistake:
            raise ExpressionError(node.position, str(mistake)) from mistake

    def literal(self, node: syntax.Literal) -> Any:
        return node.value

    def list_of(self, node: syntax.ListOf) -> list[Any]:
        return [self.value(member) for member in node.members]

    def root(self, node: syntax.Root) -> Any:
        if node.name == "item" and "item" not in self.names:
            raise Mistake("there is no item: the step has no for_each")
        return self.names.get(node.name)

    def step_part(self, node: syntax.StepPart) -> Any:
        """Null when the step left nothing, as it was skipped, failed or has not run."""
        return member(member(self.names.get("steps"), node.step), node.part)

    def index(self, node: syntax.Index) -> Any:
        return member(self.value(node.of), self.value(node.key))

    def not_(self, node: syntax.Not) -> bool:
        return not self.flag(node.of, "not")

    def negative(self, node: syntax.Negative) -> Any:
        value = self.value(node.of)
        if not is_number(value):
            raise Mistake(f"- needs a number, not {kind_of(value)}")
        return number(-value)

    def logic(self, node: syntax.Logic) -> bool:
        """Looks no further than needed: a part may guard those behind it."""
        deciding = node.word == "or"
        return (
            deciding if any(self.flag(part, node.word) is deciding for part in node.parts) else not deciding
        )

    def flag(self, node: syntax.Node, word: str) -> bool:
        value = self.value(node)
        if not isinstance(value, bool):
            raise ExpressionError(node.position, f"{word} needs true or false, not {kind_of(value)}")
        return value

    def comparison(self, node: syntax.Comparison) -> bool:
        left, right = self.value(node.left), self.value(node.right)
        match node.operator:
            case "==":
                return equal(left, right, self.budget)
            case "!=":
                return not equal(left, right, self.budget)
            case "in":
                return functions.contains(self.budget, right, left)
            case "not in":
                return not functions.contains(self.budget, right, left)
            case operator:
                return ordered(operator, left, right, self.budget)

    def arithmetic(self, node: syntax.Arithmetic) -> Any:
        value = self.value(node.first)
        for operator, other in node.others:
            value = functions.calculated(self.budget, operator, value, self.value(other))
        return value

    def call(self, node: syntax.Call) -> Any:
        function = functions.FUNCTIONS.get(node.function)
        if function is None:
            raise Mistake(functions.unknown(node.function))
        if len(node.arguments) not in function.arguments:
            raise Mistake(function.misuse(node.function))
        return function.call(self.budget, *(self.value(argument) for argument in node.arguments))


_MEANINGS: dict[type[syntax.Node], Callable[[_Evaluation, Any], Any]] = {
    syntax.Literal: _Evaluation.literal,
    syntax.ListOf: _Evaluation.list_of,
    syntax.Root: _Evaluation.root,
    syntax.StepPart: _Evaluation.step_part,
    syntax.Index: _Evaluation.index,
    syntax.Not: _Evaluation.not_,
    syntax.Negative: _Evaluation.negative,
    syntax.Logic: _Evaluation.logic,
    syntax.Comparison: _Evaluation.comparison,
    syntax.Arithmetic: _Evaluation.arithmetic,
    syntax.Call: _Evaluation.call,
}
