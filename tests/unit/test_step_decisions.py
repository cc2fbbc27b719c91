"""How `when` and `for_each` of a step are evaluated together, and which steps they may read."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines import conditions
from pipelines.conditions import Decision, Item
from pipelines.definition import StepDefinition
from pipelines.graph import Graph, UpstreamFailure

NAMES: dict[str, Any] = {"params": {"least": 2}, "steps": {"plan": {"data": [1, 2, 3], "status": "done"}}}


def decide(when: str | None = None, for_each: str | None = None, most: int = 10) -> Decision:
    return conditions.decide(StepDefinition("s", when=when, for_each=for_each), NAMES, most=most)


@pytest.mark.parametrize(
    ("when", "for_each", "expected"),
    [
        (None, None, Decision()),
        ("true", None, Decision()),
        ("false", None, Decision(starts=False)),
        (None, "steps.plan.data", Decision(items=[Item(0, 1), Item(1, 2), Item(2, 3)])),
        ("item >= params.least", "steps.plan.data", Decision(items=[Item(1, 2), Item(2, 3)])),
        ("item > 9", "steps.plan.data", Decision(items=[])),
        ("false", "steps.nothing.data", Decision(starts=False)),
        ("true", "[]", Decision(items=[])),
    ],
)
def test_the_condition_is_evaluated_first_unless_it_uses_items(
    when: str | None, for_each: str | None, expected: Decision
) -> None:
    assert decide(when, for_each) == expected


@pytest.mark.parametrize(
    ("when", "for_each", "error"),
    [
        ("1", None, "when: 1: character 1: a condition must be true or false, but this is a number"),
        (
            None,
            "params.least",
            "for_each: params.least: character 1: a fan-out needs a list, but this is a number",
        ),
        ("item", "[true, 1]", "when: item: item 1: character 1: a condition must be true or false"),
        (None, "[1, 2, 3, 4]", "at most 3 members, but this list has 4"),
    ],
)
def test_an_expression_that_fails_is_reported_with_its_text_and_place(
    when: str | None, for_each: str | None, error: str
) -> None:
    decision = decide(when, for_each, most=3)

    assert not decision.starts
    assert error in (decision.error or "")


def test_conditions_about_many_items_end_within_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "PATIENCE_SECONDS", -1.0)

    assert decide("item > 1", "steps.plan.data").error == "when: item > 1: this takes too long for 3 items"


def test_a_step_reads_the_steps_that_both_expressions_name() -> None:
    step = StepDefinition(
        "s", when="steps.a.status == 'done' and item", for_each="steps.b.data + steps.b.content"
    )

    assert conditions.parts_read(step) == {("a", "status"), ("b", "data"), ("b", "content")}


def test_all_ancestors_and_descendants_of_a_step_are_found() -> None:
    dependencies = {"a": (), "b": ("a",), "c": ("b",), "x": (), "d": ("c", "x")}
    graph = Graph(dependencies, dict.fromkeys(dependencies, UpstreamFailure.FAIL))

    assert graph.ancestors_of("d") == {"a", "b", "c", "x"}
    assert graph.descendants_of("a") == {"b", "c", "d"}
    assert (graph.ancestors_of("a"), graph.descendants_of("d")) == (set(), set())
