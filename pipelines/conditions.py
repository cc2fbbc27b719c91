"""Checks a step's `when` and `for_each` when a pipeline is saved, and decides them when the steps before it have settled.

Pure. `when` is evaluated first. If it mentions `item`, it is evaluated for each item of the `for_each`, and the items for which it is
false are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, Self

from pipelines import expressions
from pipelines.definition import StepDefinition
from pipelines.expressions import ExpressionError, Kind

#: Parameters that each branch of a fan-out gets in addition to those of its step.
ITEM, INDEX = "item", "item_index"
RESERVED = (ITEM, INDEX)

PATIENCE_SECONDS = 2.0  # for the conditions of all items together, because the run's row is locked meanwhile


@dataclass(frozen=True, slots=True)
class Item:
    """A member of the list that a step is fanned out over, and its index, from 0."""

    index: int
    value: Any


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a step `starts`, and the `items` of its `for_each` (None without one). With an `error`, neither is known."""

    starts: bool = True
    items: Sequence[Item] | None = None
    error: str | None = None


def warm_up() -> None:
    """Build the parser ahead of the first decision. A worker calls this when it starts; others build it with their first expression."""
    expressions.check("true")


def is_conditional(step: StepDefinition) -> bool:
    return step.when is not None or step.for_each is not None


def parts_read(step: StepDefinition) -> frozenset[tuple[str, str]]:
    """Return the parts of steps that its expressions read, as (id, part)."""
    texts = (text for text in (step.when, step.for_each) if text is not None)
    return frozenset().union(*(expressions.reads(text).parts for text in texts))


def decide(step: StepDefinition, names: Mapping[str, Any], *, most: int) -> Decision:
    """Decide whether a step starts, from `params` and `steps`. `most` is the largest number of items for its fan-out. Never raises."""
    try:
        per_item = step.when is not None and step.for_each is not None and expressions.reads(step.when).item
        if (
            step.when is not None
            and not per_item
            and not _evaluate_text(expressions.condition, step.when, "when", names)
        ):
            return Decision(starts=False)
        if step.for_each is None:
            return Decision()
        values = _evaluate_text(expressions.items, step.for_each, "for_each", names, most=most)
        items = [Item(index, value) for index, value in enumerate(values)]
        return Decision(items=list(_select(step.when, items, names)) if per_item and step.when else items)
    except _Undecidable as error:
        return Decision(starts=False, error=str(error))


class _Undecidable(Exception):
    """An expression has no value with this data."""


def _evaluate_text(
    evaluate: Any, text: str, key: str, names: Mapping[str, Any], about: str = "", **more: Any
) -> Any:
    try:
        return evaluate(text, names, **more)
    except ExpressionError as error:
        raise _Undecidable(f"{key}: {text}: {about}{error}") from error


def _select(when: str, items: Sequence[Item], names: Mapping[str, Any]) -> Iterator[Item]:
    until = time.monotonic() + PATIENCE_SECONDS
    for item in items:
        if time.monotonic() > until:
            raise _Undecidable(f"when: {when}: this takes too long for {len(items):,} items")
        about = f"item {item.index}: "
        if _evaluate_text(expressions.condition, when, "when", {**names, ITEM: item.value}, about):
            yield item


def weight_error(texts: Iterable[Any]) -> str | None:
    """Return an error if the expressions are too long together, or None. Equal texts count once; values that are not text do not count."""
    tokens = sum(expressions.tokens_of(text) for text in {text for text in texts if isinstance(text, str)})
    if tokens <= expressions.MOST_TOKENS:
        return None
    return (
        f"the conditions and fan-outs have {tokens:,} tokens together, but at most {expressions.MOST_TOKENS:,} are allowed: "
        "reuse conditions, because equal ones count once, or split the pipeline"
    )


def errors_of(params: Mapping[str, Any], steps: Sequence[StepDefinition]) -> Iterator[tuple[int, str, str]]:
    """Yield the errors of the steps' expressions, in the form that `definition.parse` expects.

    Expressions that would take too long to parse are not checked; `weight_error` reports those for the whole pipeline.
    """
    if weight_error(text for step in steps for text in (step.when, step.for_each)):
        return
    # In order, because a suggestion takes the first of equally near names.
    ids = {step.id: None for step in steps}
    order = _Order.of(steps)
    for index, step in enumerate(steps):
        expressions_of: tuple[tuple[str, str | None, Kind, bool], ...] = (
            ("when", step.when, "condition", step.for_each is not None),
            ("for_each", step.for_each, "list", False),
        )
        for key, text, kind, item in expressions_of:
            if text is None:
                continue
            upstream = _find_known_steps(order, step.id, text)
            error = expressions.check(text, kind=kind, steps=ids, upstream=upstream, item=item)
            if error:
                yield index, f".{key}", error
        if step.for_each is not None:
            yield from _list_reserved(index, step, params)


def _list_reserved(
    index: int, step: StepDefinition, params: Mapping[str, Any]
) -> Iterator[tuple[int, str, str]]:
    for name in RESERVED:
        if name in step.params:
            yield (
                index,
                f".params.{name}",
                f"for_each gives each branch its own {name}: rename this parameter",
            )
        elif name in params:
            yield (
                index,
                ".for_each",
                f"gives each branch its own {name}: rename the pipeline's parameter {name}",
            )


def _find_known_steps(order: _Order | None, step: str, text: str) -> list[str] | None:
    """Return the steps in the text that come before `step`, or None if that is not known."""
    try:
        names = {name for name, _ in expressions.reads(text).parts}
    except ExpressionError:
        return None
    if order is None or not step:
        return None
    return [name for name in names if order.before[step] & order.bits.get(name, 0)]


@dataclass(frozen=True, slots=True)
class _Order:
    """A bit for each step, and the bits of all steps before it. Sets could have millions of members."""

    bits: Mapping[str, int]
    before: Mapping[str, int]

    @classmethod
    def of(cls, steps: Sequence[StepDefinition]) -> Self | None:
        """None if no step is conditional, or if the steps form a cycle."""
        if not any(map(is_conditional, steps)):
            return None
        dependencies = {step.id: step.depends_on for step in steps}
        try:
            order = list(TopologicalSorter(dependencies).static_order())
        except CycleError:
            return None
        bits = {step: 1 << place for place, step in enumerate(order)}
        before: dict[str, int] = {}
        for step in order:
            before[step] = 0
            for dependency in dependencies[step]:
                before[step] |= before[dependency] | bits[dependency]
        return cls(bits, before)
