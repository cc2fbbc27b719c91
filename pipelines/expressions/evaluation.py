"""Evaluates expressions within a budget of steps, and checks them before any data exists.

Knows JSON values only. An object of any other type is an error as soon as it is reached, so none of its methods is
ever called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pipelines.definition.errors import explain_unknown
from pipelines.definition.reading import number
from pipelines.expressions import functions, syntax
from pipelines.expressions.functions import (
    Budget,
    Mistake,
    are_ordered,
    equal,
    is_number,
    kind_of,
    member,
)
from pipelines.expressions.syntax import ExpressionError

MOST_ITEMS = 10_000  # of a fan-out

Names = Mapping[str, Any]


def evaluate(text: str, names: Names) -> Any:
    """Return the value of an expression over `params`, `steps` ({id: {data, content, status}}) and perhaps `item`.

    The names hold plain JSON values: dict, list, str, int, float, bool and None. Raises only `ExpressionError`.
    The result may be a part of `names`: do not change it.
    """
    return _Evaluation(names).value(syntax.parse(text))


def condition(text: str, names: Names) -> bool:
    """Evaluate an expression that must be true or false."""
    value = evaluate(text, names)
    if not isinstance(value, bool):
        raise ExpressionError(0, f"a condition must be true or false, but this is {kind_of(value)}")
    return value


def items(text: str, names: Names, *, most: int = MOST_ITEMS) -> list[Any]:
    """Evaluate an expression that must be a list of at most `most` members."""
    value = evaluate(text, names)
    if not isinstance(value, list):
        raise ExpressionError(0, f"a fan-out needs a list, but this is {kind_of(value)}")
    if len(value) > most:
        raise ExpressionError(
            0, f"a fan-out may have at most {most:,} members, but this list has {len(value):,}"
        )
    return value


class _Evaluation:
    def __init__(self, names: Names) -> None:
        self.names = names
        self.budget = Budget()

    def value(self, node: syntax.Node) -> Any:
        """Return the value of a node. The parser limits the depth, so recursion is safe."""
        try:
            self.budget.spend(1)
            value = _MEANINGS[type(node)](self, node)
            kind_of(value)  # raises for a foreign type before anything uses the value
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
        """Return null when the step has no output, because it was skipped, failed or has not run."""
        return member(member(self.names.get("steps"), node.step), node.part)

    def index(self, node: syntax.Index) -> Any:
        return member(self.value(node.container), self.value(node.key))

    def not_(self, node: syntax.Not) -> bool:
        return not self.flag(node.operand, "not")

    def negative(self, node: syntax.Negative) -> Any:
        value = self.value(node.operand)
        if not is_number(value):
            raise Mistake(f"- needs a number, not {kind_of(value)}")
        return number(-value)

    def logic(self, node: syntax.Logic) -> bool:
        """Stop as soon as the value is known, because a part may guard those after it."""
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
                return are_ordered(operator, left, right, self.budget)

    def arithmetic(self, node: syntax.Arithmetic) -> Any:
        value = self.value(node.first)
        for operator, other in node.others:
            value = functions.calculate(self.budget, operator, value, self.value(other))
        return value

    def call(self, node: syntax.Call) -> Any:
        function = functions.FUNCTIONS.get(node.function)
        if function is None:
            raise Mistake(explain_unknown("function", node.function, functions.FUNCTIONS))
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


# Checks without data: the expression parses, its names exist, and its value has the right kind.


Kind = Literal["condition", "list"]
EXPECTED: dict[Kind, tuple[str, str]] = {
    "condition": (kind_of(True), "a condition must be true or false"),
    "list": (kind_of([]), "a fan-out needs a list"),
}


def check(
    text: str,
    *,
    kind: Kind | None = None,
    steps: Collection[str] | None = None,
    upstream: Collection[str] | None = None,
    item: bool | None = None,
) -> str | None:
    """Return the error of an expression with its position, or None. Never raises.

    An argument that is None is not checked. `kind` is the required kind of the value, as far as it is certain without
    data; `steps` are the ids of the pipeline's steps; `upstream` are those that settle before this step starts; `item`
    says whether the step has a `for_each`.
    """
    try:
        tree = syntax.parse(text)
        for node in _walk(tree):
            _check_node(node, steps, upstream, item)
        _check_kind(tree, kind)
    except ExpressionError as error:
        return str(error)
    return None


class Reads(NamedTuple):
    """What an expression reads besides `params`: parts of steps as (id, part), and whether it reads `item`."""

    parts: frozenset[tuple[str, str]]
    item: bool


def reads(text: str) -> Reads:
    """Return what an expression reads. Raises `ExpressionError` if it cannot be parsed."""
    nodes = list(_walk(syntax.parse(text)))
    return Reads(
        parts=frozenset((node.step, node.part) for node in nodes if isinstance(node, syntax.StepPart)),
        item=any(isinstance(node, syntax.Root) and node.name == "item" for node in nodes),
    )


def _check_node(
    node: syntax.Node, steps: Collection[str] | None, upstream: Collection[str] | None, item: bool | None
) -> None:
    error = None
    if isinstance(node, syntax.StepPart):
        error = _error_of_step(node.step, steps, upstream)
    elif isinstance(node, syntax.Call):
        error = _error_of_call(node)
    elif isinstance(node, syntax.Root) and node.name == "item" and item is False:
        error = "there is no item here: it is for steps with a for_each, and not for the for_each itself"
    if error:
        raise ExpressionError(node.position, error)


def _error_of_step(step: str, steps: Collection[str] | None, upstream: Collection[str] | None) -> str | None:
    if steps is not None and step not in steps:
        return explain_unknown("step", step, steps)
    if upstream is not None and step not in upstream:
        return f"the step {step} does not come before this one: add it to depends_on"
    return None


def _error_of_call(node: syntax.Call) -> str | None:
    function = functions.FUNCTIONS.get(node.function)
    if function is None:
        return explain_unknown("function", node.function, functions.FUNCTIONS)
    return None if len(node.arguments) in function.arguments else function.misuse(node.function)


def _check_kind(tree: syntax.Node, kind: Kind | None) -> None:
    actual = _kind_of(tree)
    if kind is None or actual is None or actual == EXPECTED[kind][0]:
        return
    raise ExpressionError(tree.position, f"{EXPECTED[kind][1]}, but this is {actual}")


def _kind_of(node: syntax.Node) -> str | None:
    """Return the kind of a node's value, or None if it depends on the data."""
    match node:
        case syntax.Literal():
            return kind_of(node.value)
        case syntax.ListOf():
            return kind_of([])
        case syntax.Not() | syntax.Logic() | syntax.Comparison():
            return kind_of(True)
        case syntax.Negative():
            return kind_of(0)
        case syntax.Arithmetic():
            return _kind_of(node.first) if all(operator == "+" for operator, _ in node.others) else kind_of(0)
        case syntax.Call():
            return functions.FUNCTIONS[node.function].makes
        case _:
            return None


def _walk(node: syntax.Node) -> Iterator[syntax.Node]:
    """Yield every node in the order of the text."""
    yield node
    for child in _children(node):
        yield from _walk(child)


def _children(node: syntax.Node) -> tuple[syntax.Node, ...]:
    match node:
        case syntax.ListOf():
            return node.members
        case syntax.Logic():
            return node.parts
        case syntax.Call():
            return node.arguments
        case syntax.Not() | syntax.Negative():
            return (node.operand,)
        case syntax.Index():
            return (node.container, node.key)
        case syntax.Comparison():
            return (node.left, node.right)
        case syntax.Arithmetic():
            return (node.first, *(value for _, value in node.others))
        case _:
            return ()
