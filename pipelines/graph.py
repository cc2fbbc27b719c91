"""Decides which steps of a pipeline start or are skipped once another has settled.

Pure and stateless: step ids and states go in, step ids come out. After a crash, a call with the stored states
gives the same result.

A step is settled when it is done, failed or skipped. Whether a pending step starts depends on its own
`on_upstream_failure` and on the states of the steps it depends on:

    continue   It starts as soon as all of them have settled, in whatever way.
    fail       It is skipped as soon as one of them has failed, or was skipped because of a failure.
               Otherwise it starts when all have settled and at least one is done. If all of them were
               skipped, it is skipped too.
    skip       As `fail`, but the failure ends here: later steps see a step that was not needed.

So a failure passes through `fail` steps until it meets `skip` or `continue`. A step that is skipped by its own
condition blocks nothing: the join behind two alternatives starts when the chosen one is done.

A failed step fails the run unless it has dependents and all of them declare `skip` or `continue`. Other
branches run to their end first: the run has an outcome only when every step has settled.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from functools import cached_property
from graphlib import TopologicalSorter
from heapq import heapify, heappop, heappush
from typing import Protocol, Self


class StepState(StrEnum):
    PENDING = "pending"  # It waits for the steps it depends on. It starts, or is skipped.
    ACTIVE = "active"  # Started, and queued, running or with a person. Settles in one of these ways:
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class RunOutcome(StrEnum):
    """The state of a run, as derived from its steps."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class UpstreamFailure(StrEnum):
    """How a step reacts to an upstream failure. The module's docstring defines each value."""

    FAIL = "fail"
    SKIP = "skip"
    CONTINUE = "continue"


SETTLED = frozenset({StepState.DONE, StepState.FAILED, StepState.SKIPPED})

States = Mapping[str, str]  # step id -> StepState or its text; a step that is left out is pending


class Step(Protocol):
    """The members of a step that the graph reads."""

    @property
    def id(self) -> str: ...
    @property
    def depends_on(self) -> Sequence[str]: ...
    @property
    def on_upstream_failure(self) -> str: ...


class Definition(Protocol):
    """The members of a definition that the graph reads."""

    @property
    def steps(self) -> Sequence[Step]: ...


@dataclass(frozen=True, slots=True)
class Advance:
    """The steps to start and to skip, in the order of the definition. Skipping a step may start others."""

    start: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graph:
    """Steps in the order of the definition, with their dependencies. Build it once per pipeline version."""

    dependencies: Mapping[str, tuple[str, ...]]
    policies: Mapping[str, UpstreamFailure]

    @classmethod
    def of(cls, definition: Definition) -> Self:
        """Return the graph of a parsed definition. Raises ValueError for a dependency that is not one of its steps."""
        graph = cls(
            dependencies={step.id: tuple(step.depends_on) for step in definition.steps},
            policies={step.id: UpstreamFailure(step.on_upstream_failure) for step in definition.steps},
        )
        for step, dependencies in graph.dependencies.items():
            for dependency in dependencies:
                if dependency not in graph.dependencies:
                    raise ValueError(f"{step} depends on {dependency}, which is not a step")
        return graph

    def dependencies_of(self, step: str) -> tuple[str, ...]:
        return self.dependencies[step]

    def dependents_of(self, step: str) -> tuple[str, ...]:
        """Return the steps that directly depend on `step`, in the order of the definition."""
        return tuple(self._dependents[step])

    def ancestors_of(self, step: str) -> set[str]:
        """Return every step that comes before `step`, directly or not."""
        return _reachable(step, self.dependencies)

    def descendants_of(self, step: str) -> set[str]:
        """Return every step that comes after `step`, directly or not."""
        return _reachable(step, self._dependents)

    def roots(self) -> tuple[str, ...]:
        return tuple(step for step, dependencies in self.dependencies.items() if not dependencies)

    def layers(self) -> tuple[tuple[str, ...], ...]:
        """Return the steps grouped by the longest path to them. No step depends on another of its layer."""
        depth: dict[str, int] = {}
        for step in self._order:
            depth[step] = 1 + max((depth[dependency] for dependency in self.dependencies[step]), default=-1)
        layers: list[list[str]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
        for step in self.dependencies:
            layers[depth[step]].append(step)
        return tuple(map(tuple, layers))

    def number_alike(self, shapes: Mapping[str, Hashable]) -> dict[str, int]:
        """Number the steps so that interchangeable ones have the same number, such as the items of a fan-out.

        Steps are interchangeable if their shapes are equal, and the shapes of everything before and after them.
        """
        numbers: dict[Hashable, int] = {}
        forward: dict[str, int] = {}
        both: dict[str, int] = {}
        for step in self._order:
            before = tuple(sorted(forward[each] for each in self.dependencies[step]))
            forward[step] = numbers.setdefault((shapes[step], before), len(numbers))
        for step in reversed(self._order):
            behind = tuple(sorted(both[each] for each in self._dependents[step]))
            both[step] = numbers.setdefault((forward[step], behind), len(numbers))
        return both

    def after(self, step: str, states: States) -> Advance:
        """Return what to do after `step` has settled; `states` already include that.

        Looks only at its dependents, and at the dependents of steps that are skipped. Empty if `step` has not
        settled. Idempotent: a step that is no longer pending is never returned.
        """
        consequences = _Consequences(self, states)
        if states.get(step) in SETTLED:
            consequences.spread(self._dependents[step])
        return consequences.advance()

    def advance(self, states: States) -> Advance:
        """Return what to do in view of all states: starts a run, or repairs one whose process died."""
        consequences = _Consequences(self, states)
        consequences.spread(self._order)
        return consequences.advance()

    def fails_run(self, step: str) -> bool:
        """Whether a failure of `step` fails the run: it has no dependents, or one of them declares `fail`."""
        dependents = self._dependents[step]
        return not dependents or any(self.policies[each] is UpstreamFailure.FAIL for each in dependents)

    @cached_property
    def fatal(self) -> tuple[str, ...]:
        """The steps whose failure fails the run."""
        return tuple(step for step in self.dependencies if self.fails_run(step))

    def outcome(self, states: States) -> RunOutcome:
        """Return running until every step has settled, then failed or completed."""
        current = {step: states.get(step, StepState.PENDING) for step in self.dependencies}
        if any(state not in SETTLED for state in current.values()):
            return RunOutcome.RUNNING
        failed = any(current[step] == StepState.FAILED for step in self.fatal)
        return RunOutcome.FAILED if failed else RunOutcome.COMPLETED

    @cached_property
    def _dependents(self) -> dict[str, list[str]]:
        dependents: dict[str, list[str]] = {step: [] for step in self.dependencies}
        for step, dependencies in self.dependencies.items():
            for dependency in dependencies:
                dependents[dependency].append(step)
        return dependents

    @cached_property
    def _order(self) -> tuple[str, ...]:
        return tuple(TopologicalSorter(self.dependencies).static_order())

    @cached_property
    def rank(self) -> dict[str, int]:
        """The place of each step in the topological order."""
        return {step: rank for rank, step in enumerate(self._order)}

    @cached_property
    def _position(self) -> dict[str, int]:
        return {step: position for position, step in enumerate(self.dependencies)}

    def in_order(self, steps: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(steps, key=self._position.__getitem__))


def _reachable(step: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
    """Return every step that the edges lead to from `step`, directly or not."""
    reached: set[str] = set()
    to_visit = [step]
    while to_visit:
        new = set(edges[to_visit.pop()]) - reached
        reached |= new
        to_visit += new
    return reached


class _Verdict(Enum):
    SETTLED = auto()  # or active: there is nothing to decide
    WAIT = auto()
    START = auto()
    SKIP = auto()


class _Consequences:
    """One walk through the graph. Steps that it skips count as skipped for the rest of the walk."""

    def __init__(self, graph: Graph, states: States) -> None:
        self.graph = graph
        self.states = states  # the caller's until the first skip, then the copy
        self._copy: dict[str, str] | None = None
        self.start: list[str] = []
        self.skip: list[str] = []
        self._carries_failure: dict[str, bool] = {}  # results so far

    def spread(self, steps: Iterable[str]) -> None:
        """Decide `steps`, and the dependents of those that are skipped."""
        # In topological order each step is visited once, after everything before it is decided.
        waiting = [(self.graph.rank[step], step) for step in steps]
        heapify(waiting)
        seen = {step for _, step in waiting}
        while waiting:
            step = heappop(waiting)[1]
            verdict = self.verdict(step)
            if verdict is _Verdict.START:
                self.start.append(step)
            elif verdict is _Verdict.SKIP:
                if self._copy is None:
                    self._copy = self.states = dict(self.states)
                self._copy[step] = StepState.SKIPPED
                self.skip.append(step)
                for dependent in self.graph.dependents_of(step):
                    if dependent not in seen:
                        seen.add(dependent)
                        heappush(waiting, (self.graph.rank[dependent], dependent))

    def advance(self) -> Advance:
        return Advance(start=self.graph.in_order(self.start), skip=self.graph.in_order(self.skip))

    def verdict(self, step: str) -> _Verdict:
        get = self.states.get
        if get(step, StepState.PENDING) != StepState.PENDING:
            return _Verdict.SETTLED
        dependencies = self.graph.dependencies[step]
        states = {get(each, StepState.PENDING) for each in dependencies}  # a set: a join may have thousands
        continues = self.graph.policies[step] is UpstreamFailure.CONTINUE
        harmless = continues or states.isdisjoint((StepState.FAILED, StepState.SKIPPED))
        if not harmless and any(self._failure_comes_from(each) for each in dependencies):
            return _Verdict.SKIP
        if not states <= SETTLED:
            return _Verdict.WAIT
        return _Verdict.START if continues or not states or StepState.DONE in states else _Verdict.SKIP

    def _failure_comes_from(self, step: str) -> bool:
        """Whether `step` failed, or was skipped under `fail` because of such a step before it."""
        get = self.states.get
        if get(step) not in (StepState.FAILED, StepState.SKIPPED):
            return False
        trail, seen = [step], {step}  # iterative, since a path may be longer than the call stack
        while trail:
            current = trail.pop()
            state, known = get(current, StepState.PENDING), self._carries_failure.get(current)
            if state == StepState.FAILED or known:
                self._carries_failure[step] = True
                return True
            passes_on = state == StepState.SKIPPED and self.graph.policies[current] is UpstreamFailure.FAIL
            if passes_on and known is None:
                trail.extend(each for each in self.graph.dependencies[current] if each not in seen)
                seen.update(self.graph.dependencies[current])
        # This holds for the rest of the walk, because everything before these steps is decided already.
        self._carries_failure.update(dict.fromkeys(seen, False))
        return False


def find_cycles(dependencies: Mapping[str, Iterable[str]]) -> list[tuple[str, ...]]:
    """Return at least one cycle of every group of steps that wait for each other. No two share a step; unknown ids are ignored.

    A cycle is in the order of execution and closed: ("research", "brief", "research") when brief depends on
    research and research on brief.
    """
    cycles: list[tuple[str, ...]] = []
    knotted: set[str] = set()
    finished: set[str] = set()
    for root in dependencies:
        if root in finished:
            continue
        path = {root: iter(dependencies[root])}  # insertion order is the way back to the root
        while path:
            step = next(reversed(path))
            following = next((d for d in path[step] if d in dependencies and d not in finished), None)
            if following is None:
                finished.add(step)
                del path[step]
            elif following not in path:
                path[following] = iter(dependencies[following])
            elif following not in knotted:
                trail = list(path)
                cycle = trail[trail.index(following) :]
                if knotted.isdisjoint(cycle):
                    knotted.update(cycle)
                    cycles.append(_close_cycle(cycle, dependencies))
    return cycles


def _close_cycle(cycle: Sequence[str], dependencies: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return the cycle in the order of execution, beginning with the step that is defined first."""
    flow = list(reversed(cycle))
    members = set(flow)
    first = flow.index(next(step for step in dependencies if step in members))
    return (*flow[first:], *flow[:first], flow[first])
