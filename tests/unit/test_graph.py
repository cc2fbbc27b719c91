"""The graph agrees with a plain implementation of its rules, for any graph, any states and any order of events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.graph import Advance, Graph, RunOutcome, StepState, find_cycles

steady = settings(deadline=None, derandomize=True, max_examples=80)
SETTLED = {"done", "failed", "skipped"}


@dataclass(frozen=True)
class Step:
    id: str
    depends_on: tuple[str, ...] = ()
    on_upstream_failure: str = "fail"


@dataclass(frozen=True)
class Definition:
    steps: tuple[Step, ...]


def graph_of(*steps: Step) -> Graph:
    return Graph.of(Definition(steps))


def step(name: str, *depends_on: str, on_failure: str = "fail") -> Step:
    return Step(name, depends_on, on_failure)


@st.composite
def definitions(draw: st.DrawFn, most: int = 7) -> Definition:
    """Draw a graph without a cycle. The order of its definition need not be an order of the work."""
    names = [f"s{number}" for number in range(draw(st.integers(1, most)))]
    policies = st.sampled_from(("fail", "skip", "continue"))
    steps = [
        Step(
            name,
            tuple(draw(st.lists(st.sampled_from(names[:place]), unique=True)) if place else ()),
            draw(policies),
        )
        for place, name in enumerate(names)
    ]
    return Definition(tuple(draw(st.permutations(steps))))


def states_of(definition: Definition) -> st.SearchStrategy[dict[str, str]]:
    ids = [each.id for each in definition.steps]
    return st.dictionaries(st.sampled_from(ids), st.sampled_from([state.value for state in StepState]))


# ---- The rules, implemented plainly on the whole graph without regard for speed


def failure_comes_from(name: str, steps: dict[str, Step], states: dict[str, str]) -> bool:
    if states.get(name) == "skipped" and steps[name].on_upstream_failure == "fail":
        return any(failure_comes_from(each, steps, states) for each in steps[name].depends_on)
    return states.get(name) == "failed"


def expected_of(one: Step, steps: dict[str, Step], states: dict[str, str]) -> str:
    upstream = [states.get(each, "pending") for each in one.depends_on]
    continues = one.on_upstream_failure == "continue"
    if not continues and any(failure_comes_from(each, steps, states) for each in one.depends_on):
        return "skip"
    if not all(state in SETTLED for state in upstream):
        return "wait"
    if not continues and upstream and all(state == "skipped" for state in upstream):
        return "skip"
    return "start"


def expected_advance(definition: Definition, given_states: dict[str, str]) -> Advance:
    steps = {each.id: each for each in definition.steps}
    states = dict(given_states)
    while True:
        waiting = [each for each in definition.steps if states.get(each.id, "pending") == "pending"]
        skip = [each.id for each in waiting if expected_of(each, steps, states) == "skip"]
        if not skip:
            break
        states.update(dict.fromkeys(skip, "skipped"))
    start = [each.id for each in waiting if expected_of(each, steps, states) == "start"]
    skipped = [each.id for each in definition.steps if states.get(each.id) != given_states.get(each.id)]
    return Advance(start=tuple(start), skip=tuple(skipped))


# ---- Order


@steady
@given(definitions())
def test_every_step_comes_after_its_dependencies(definition: Definition) -> None:
    graph = Graph.of(definition)

    order = [name for layer in graph.layers() for name in layer]

    assert sorted(order) == sorted(each.id for each in definition.steps)
    for each in definition.steps:
        assert all(order.index(dependency) < order.index(each.id) for dependency in each.depends_on)


@steady
@given(definitions())
def test_the_layer_of_a_step_follows_the_last_layer_of_its_dependencies(definition: Definition) -> None:
    layers = Graph.of(definition).layers()

    layer_of = {name: place for place, layer in enumerate(layers) for name in layer}
    for each in definition.steps:
        assert layer_of[each.id] == 1 + max((layer_of[name] for name in each.depends_on), default=-1)


@steady
@given(definitions())
def test_dependents_are_the_inverse_of_dependencies(definition: Definition) -> None:
    graph = Graph.of(definition)

    for each in definition.steps:
        assert graph.dependencies_of(each.id) == each.depends_on
        behind = tuple(other.id for other in definition.steps if each.id in other.depends_on)
        assert graph.dependents_of(each.id) == behind
    assert graph.roots() == tuple(each.id for each in definition.steps if not each.depends_on)


def test_a_dependency_that_is_not_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="a depends on b, which is not a step"):
        graph_of(step("a", "b"))


def test_a_graph_with_a_cycle_has_no_order() -> None:
    with pytest.raises(CycleError):
        graph_of(step("a", "b"), step("b", "a")).layers()


def test_steps_are_alike_only_if_their_dependencies_and_dependents_are_alike() -> None:
    items = (step("a", "root"), step("b", "root"), step("leads_elsewhere", "root"), step("comes_later", "a"))
    graph = graph_of(step("root"), *items, step("join", "b", "comes_later"), step("end", "leads_elsewhere"))
    twins = graph_of(step("root"), step("a", "root"), step("b", "root"), step("join", "a", "b"))

    numbers = twins.number_alike(dict.fromkeys(twins.dependencies, "worker"))

    assert numbers["a"] == numbers["b"]
    assert len(set(numbers.values())) == 3
    assert len(set(twins.number_alike({"root": 1, "a": 1, "b": 2, "join": 1}).values())) == 4
    assert len(set(graph.number_alike(dict.fromkeys(graph.dependencies, "worker")).values())) == 7


# ---- Cycles


def test_a_cycle_is_reported_in_the_direction_of_the_work() -> None:
    assert find_cycles({"research": ["brief"], "brief": ["research"]}) == [("research", "brief", "research")]
    assert find_cycles({"a": ["c"], "b": ["a"], "c": ["b"]}) == [("a", "b", "c", "a")]
    assert find_cycles({"a": ["a"]}) == [("a", "a")]
    assert find_cycles({"a": [], "b": ["a", "unknown"]}) == []


def test_a_long_cycle_is_found_without_deep_recursion() -> None:
    dependencies = {str(place): [str((place - 1) % 5000)] for place in range(5000)}

    (cycle,) = find_cycles(dependencies)

    assert cycle == (*dependencies, "0")


@steady
@given(st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.sampled_from("abcdefgh"), unique=True)))
def test_a_cycle_is_reported_exactly_when_there_is_one(
    dependencies: dict[str, list[str]],
) -> None:
    cycles = find_cycles(dependencies)

    try:
        TopologicalSorter(dependencies).prepare()
        assert cycles == []
    except CycleError:
        assert cycles
    for cycle in cycles:
        assert cycle[0] == cycle[-1]
        assert all(before in dependencies[behind] for before, behind in pairwise(cycle))
    members = [name for cycle in cycles for name in cycle[1:]]
    assert len(members) == len(set(members))
    # Removing one edge of each reported cycle until there are no more must leave an order.
    rest = {name: [each for each in named if each in dependencies] for name, named in dependencies.items()}
    while remaining := find_cycles(rest):
        for cycle in remaining:
            rest[cycle[1]].remove(cycle[0])
    TopologicalSorter(rest).prepare()


# ---- What follows


@steady
@given(st.data())
def test_every_combination_of_states_leads_to_what_the_rules_say(data: st.DataObject) -> None:
    definition = data.draw(definitions())
    states = data.draw(states_of(definition))
    graph = Graph.of(definition)

    assert graph.advance(states) == expected_advance(definition, states)


def play(
    graph: Graph, fates: dict[str, str], pick: Callable[[list[str]], str]
) -> tuple[dict[str, str], list[str]]:
    """Run the graph to its end with `after` alone, and compare each answer with `advance` on the whole graph."""
    states: dict[str, str] = {}
    started: list[str] = []

    def apply(advance: Advance) -> None:
        states.update(dict.fromkeys(advance.skip, "skipped"))
        for name in advance.start:
            assert all(states[each] in SETTLED for each in graph.dependencies_of(name))
            states[name] = "active"
            started.append(name)

    apply(graph.advance(states))
    while active := [name for name, state in states.items() if state == "active"]:
        assert graph.outcome(states) == RunOutcome.RUNNING
        name = pick(active)
        states[name] = fates[name]
        whole = graph.advance(states)
        advance = graph.after(name, states)
        assert advance == whole
        apply(advance)
    return states, started


@steady
@given(st.data())
def test_the_end_of_a_run_does_not_depend_on_the_order_in_which_steps_settle(data: st.DataObject) -> None:
    definition = data.draw(definitions())
    graph = Graph.of(definition)
    fates = {each.id: data.draw(st.sampled_from(("done", "failed", "skipped"))) for each in definition.steps}

    states, started = play(graph, fates, lambda active: data.draw(st.sampled_from(active)))
    others, _ = play(graph, fates, min)

    assert states == others
    assert len(started) == len(set(started))
    assert set(states) == set(graph.dependencies)
    assert graph.advance(states) == Advance()
    fatal = []
    for each in definition.steps:
        behind = [other.on_upstream_failure for other in definition.steps if each.id in other.depends_on]
        if states[each.id] == "failed" and (not behind or "fail" in behind):
            fatal.append(each.id)
    assert graph.outcome(states) == ("failed" if fatal else "completed")


@steady
@given(st.data())
def test_nothing_follows_from_a_step_that_has_not_settled(data: st.DataObject) -> None:
    definition = data.draw(definitions())
    name = data.draw(st.sampled_from([each.id for each in definition.steps]))
    states = data.draw(states_of(definition)) | {name: data.draw(st.sampled_from(("pending", "active")))}

    assert Graph.of(definition).after(name, states) == Advance()


DIAMOND = (step("root"), step("left", "root"), step("right", "root"), step("join", "left", "right"))


def test_a_run_starts_with_its_roots_and_a_join_waits_for_all() -> None:
    graph = graph_of(*DIAMOND)

    assert graph.advance({}) == Advance(start=("root",))
    assert graph.after("root", {"root": "done"}) == Advance(start=("left", "right"))
    assert graph.after("left", {"root": "done", "left": "done", "right": "active"}) == Advance()
    assert graph.after("right", {"root": "done", "left": "done", "right": "done"}) == Advance(start=("join",))


def test_a_failure_skips_its_dependents_at_once_while_the_other_branch_continues() -> None:
    graph = graph_of(*DIAMOND, step("end", "join"))
    states = {"root": "done", "left": "failed", "right": "active"}

    assert graph.after("left", states) == Advance(skip=("join", "end"))
    assert graph.after("right", states) == Advance()
    assert graph.outcome(states | {"join": "skipped", "end": "skipped"}) == "running"
    assert graph.outcome(states | {"join": "skipped", "end": "skipped", "right": "done"}) == "failed"


def test_a_step_that_continues_on_failure_accepts_it_as_input() -> None:
    graph = graph_of(*DIAMOND[:3], step("join", "left", "right", on_failure="continue"))
    states = {"root": "done", "left": "failed", "right": "done"}

    assert graph.after("right", states) == Advance(start=("join",))
    assert graph.outcome(states | {"join": "done"}) == "completed"


def test_a_step_that_skips_on_failure_stops_its_propagation() -> None:
    graph = graph_of(step("a"), step("b", "a", on_failure="skip"), step("other"), step("join", "b", "other"))
    states = {"a": "failed", "other": "done"}

    assert graph.after("a", states) == Advance(start=("join",), skip=("b",))
    assert graph.outcome(states | {"b": "skipped", "join": "done"}) == "completed"


def test_a_failure_propagates_through_steps_that_fail_with_it() -> None:
    graph = graph_of(step("a"), step("b", "a"), step("other"), step("join", "b", "other"))

    assert graph.after("a", {"a": "failed", "other": "done"}) == Advance(skip=("b", "join"))


def test_the_join_behind_two_alternatives_starts_when_the_chosen_one_is_done() -> None:
    graph = graph_of(*DIAMOND)

    assert graph.after("right", {"root": "done", "left": "skipped", "right": "done"}) == Advance(
        start=("join",)
    )
    assert graph.after("right", {"root": "done", "left": "skipped", "right": "skipped"}) == Advance(
        skip=("join",)
    )


def test_a_failure_at_the_end_of_a_pipeline_fails_the_run() -> None:
    graph = graph_of(step("a"), step("b", "a", on_failure="continue"))

    assert graph.outcome({"a": "done", "b": "failed"}) == "failed"
    assert graph.outcome({"a": "failed", "b": "done"}) == "completed"
    assert (graph.fails_run("a"), graph.fails_run("b")) == (False, True)


def test_the_end_of_a_thousand_steps_in_a_row_is_skipped_without_deep_recursion() -> None:
    chain = [step("0"), *(step(str(place), str(place - 1)) for place in range(1, 2000))]
    graph = graph_of(*chain)

    assert graph.after("0", {"0": "failed"}).skip == tuple(str(place) for place in range(1, 2000))
    assert graph.after("0", {"0": "skipped"}).skip == tuple(str(place) for place in range(1, 2000))
    skipped = {str(place): "skipped" for place in range(1999)} | {"0": "failed"}
    assert graph.after("1998", skipped) == Advance(skip=("1999",))
