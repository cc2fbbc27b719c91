"""What can be said of an expression before there is any data: that it reads, that it names what exists, and what it makes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple

from pipelines.definition.faults import Faults
from pipelines.expressions import functions, syntax
from pipelines.expressions.functions import kind_of
from pipelines.expressions.syntax import ExpressionError

Kind = Literal["condition", "list"]
WANTED: dict[Kind, tuple[str, str]] = {
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
    """What is wrong with an expression, with the character, or None. Never raises.

    What is not given is not checked: `kind` is what the value must be, as far as that is certain without data; `steps`
    are the ids of the pipeline's steps; `upstream` those that settle before the step at hand starts; `item` says
    whether the step has a `for_each`.
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
    """What an expression looks at beside `params`: parts of steps, as (id, part), and whether `item`."""

    parts: frozenset[tuple[str, str]]
    item: bool


def reads(text: str) -> Reads:
    """What an expression looks at. Raises `ExpressionError` when it cannot be read."""
    nodes = list(_walk(syntax.parse(text)))
    return Reads(
        parts=frozenset((node.step, node.part) for node in nodes if isinstance(node, syntax.StepPart)),
        item=any(isinstance(node, syntax.Root) and node.name == "item" for node in nodes),
    )


def _check_node(
    node: syntax.Node, steps: Collection[str] | None, upstream: Collection[str] | None, item: bool | None
) -> None:
    fault = None
    if isinstance(node, syntax.StepPart):
        fault = _fault_of_step(node.step, steps, upstream)
    elif isinstance(node, syntax.Call):
        fault = _fault_of_call(node)
    elif isinstance(node, syntax.Root) and node.name == "item" and item is False:
        fault = "there is no item here: it is for steps with a for_each, and not for the for_each itself"
    if fault:
        raise ExpressionError(node.position, fault)


def _fault_of_step(step: str, steps: Collection[str] | None, upstream: Collection[str] | None) -> str | None:
    if steps is not None and step not in steps:
        faults = Faults()
        faults.unknown("", "step", step, steps)
        return faults.found[0].message
    if upstream is not None and step not in upstream:
        return f"the step {step} does not come before this one: add it to depends_on"
    return None


def _fault_of_call(node: syntax.Call) -> str | None:
    function = functions.FUNCTIONS.get(node.function)
    if function is None:
        return functions.unknown(node.function)
    return None if len(node.arguments) in function.arguments else function.misuse(node.function)


def _check_kind(tree: syntax.Node, kind: Kind | None) -> None:
    made = _made_by(tree)
    if kind is None or made is None or made == WANTED[kind][0]:
        return
    raise ExpressionError(tree.position, f"{WANTED[kind][1]}, but this is {made}")


def _made_by(node: syntax.Node) -> str | None:
    """The kind of a node's value, or None if the data decides."""
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
            return _made_by(node.first) if all(operator == "+" for operator, _ in node.others) else kind_of(0)
        case syntax.Call():
            return functions.FUNCTIONS[node.function].makes
        case _:
            return None


def _walk(node: syntax.Node) -> Iterator[syntax.Node]:
    """Every node, in the order of the text."""
    yield node
    for below in _below(node):
        yield from _walk(below)


def _below(node: syntax.Node) -> tuple[syntax.Node, ...]:
    match node:
        case syntax.ListOf():
            return node.members
        case syntax.Logic():
            return node.parts
        case syntax.Call():
            return node.arguments
        case syntax.Not() | syntax.Negative():
            return (node.of,)
        case syntax.Index():
            return (node.of, node.key)
        case syntax.Comparison():
            return (node.left, node.right)
        case syntax.Arithmetic():
            return (node.first, *(value for _, value in node.others))
        case _:
            return ()
