"""The order of a pipeline's steps, and what follows once one of them has settled.

Pure: ids and states go in, ids come out, nothing is remembered between calls. Anyone who crashed before acting
on an answer asks again with the stored states and gets the same answer.

A step is settled when it is done, failed or skipped. What becomes of a step that still waits is decided by
its own `on_upstream_failure` and the states of the steps it depends on:

    continue   It starts as soon as all of them have settled, whatever became of them.
    fail       It is skipped as soon as one of them failed, or was skipped with a failure behind it.
               Otherwise it starts when all have settled and at least one is done. If every one of them was
               skipped, nothing reaches it, and it is skipped too.
    skip       As `fail`, but the failure ends here: the steps behind it see a step that was not needed.

So a failure runs through `fail` steps until it meets `skip` or `continue`, while a step left out by its own
condition stands in nobody's way: the join behind two alternatives starts when the chosen one is done.

A failed step fails the run unless it has dependents and all of them declare `skip` or `continue`. Other
branches keep running to their end first: the run has its outcome only when every step has settled.
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
    """Where one step of a run stands."""

    PENDING = "pending"  # It waits for the steps it depends on. It starts, or is skipped.
    ACTIVE = "active"  # Started, and queued, running or with a person. Settles in one of these ways:
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class RunOutcome(StrEnum):
    """How a run stands as far as its steps tell."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class UpstreamFailure(StrEnum):
    """What a step does about a failure upstream. The module's docstring says exactly what each means."""

    FAIL = "fail"
    SKIP = "skip"
    CONTINUE = "continue"


SETTLED = frozenset({StepState.DONE, StepState.FAILED, StepState.SKIPPED})

States = Mapping[str, str]  # step id -> StepState or its text; a step that is left out is pending


class Step(Protocol):
    """What the graph needs to know of a step."""

    @property
    def id(self) -> str: ...
    @property
    def depends_on(self) -> Sequence[str]: ...
    @property
    def on_upstream_failure(self) -> str: ...


class Definition(Protocol):
    """What the graph needs to know of a pipeline's definition."""

    @property
    def steps(self) -> Sequence[Step]: ...


@dataclass(frozen=True, slots=True)
class Advance:
    """What to do next, in the order of the definition. Some steps start because of those that are skipped."""

    start: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graph:
    """Steps in the order of the definition, with what each depends on. Build it once per pipeline version."""

    dependencies: Mapping[str, tuple[str, ...]]
    policies: Mapping[str, UpstreamFailure]

    @classmethod
    def of(cls, definition: Definition) -> Self:
        """The graph of a parsed definition. Raises ValueError for a dependency that is no step of it."""
        graph = cls(
            dependencies={step.id: tuple(step.depends_on) for step in definition.steps},
            policies={step.id: UpstreamFailure(step.on_upstream_failure) for step in definition.steps},
        )
        for step, dependencies in graph.dependencies.items():
            for dependency in dependencies:
                if dependency not in graph.dependencies:
                    raise ValueError(f"{step} depends on {dependency}, which is no step")
        return graph

    def dependencies_of(self, step: str) -> tuple[str, ...]:
        return self.dependencies[step]

    def dependents_of(self, step: str) -> tuple[str, ...]:
        """The steps that directly depend on `step`, in the order of the definition."""
        return tuple(self._dependents[step])

    def ancestors_of(self, step: str) -> set[str]:
        """Every step that comes before `step`, however far."""
        found: set[str] = set()
        to_visit = [step]
        while to_visit:
            for dependency in self.dependencies[to_visit.pop()]:
                if dependency not in found:
                    found.add(dependency)
                    to_visit.append(dependency)
        return found

    def descendants_of(self, step: str) -> set[str]:
        """Every step that comes after `step`, however far."""
        found: set[str] = set()
        to_visit = [step]
        while to_visit:
            for dependent in self._dependents[to_visit.pop()]:
                if dependent not in found:
                    found.add(dependent)
                    to_visit.append(dependent)
        return found

    def roots(self) -> tuple[str, ...]:
        return tuple(step for step, dependencies in self.dependencies.items() if not dependencies)

    def layers(self) -> tuple[tuple[str, ...], ...]:
        """Steps by the length of the longest path to them. No step depends on another of its layer."""
        depth: dict[str, int] = {}
        for step in self._order:
            depth[step] = 1 + max((depth[dependency] for dependency in self.dependencies[step]), default=-1)
        layers: list[list[str]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
        for step in self.dependencies:
            layers[depth[step]].append(step)
        return tuple(map(tuple, layers))

    def number_alike(self, shapes: Mapping[str, Hashable]) -> dict[str, int]:
        """Gives interchangeable steps the same number: the items of a fan-out, say.

        Their shapes are equal, and so are the shapes of all that leads to them and of all that follows.
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
        """What follows from `step` having settled; `states` already say so.

        Looks at its dependents, and at theirs only as far as steps get skipped. Nothing follows from a step
        that has not settled. Idempotent: a step that is no longer pending appears in no answer.
        """
        consequences = _Consequences(self, states)
        if states.get(step) in SETTLED:
            consequences.spread(self._dependents[step])
        return consequences.advance()

    def advance(self, states: States) -> Advance:
        """What follows from all the states together: starts a run, or mends one whose process died."""
        consequences = _Consequences(self, states)
        consequences.spread(self._order)
        return consequences.advance()

    def fails_run(self, step: str) -> bool:
        """Whether a failure of `step` fails the run: no step follows it, or one that declares `fail` does."""
        dependents = self._dependents[step]
        return not dependents or any(self.policies[each] is UpstreamFailure.FAIL for each in dependents)

    @cached_property
    def fatal(self) -> tuple[str, ...]:
        """The steps whose failure fails the run."""
        return tuple(step for step in self.dependencies if self.fails_run(step))

    def outcome(self, states: States) -> RunOutcome:
        """Running until every step has settled; then failed or completed."""
        found = {step: states.get(step, StepState.PENDING) for step in self.dependencies}
        if any(state not in SETTLED for state in found.values()):
            return RunOutcome.RUNNING
        failed = any(found[step] == StepState.FAILED for step in self.fatal)
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
        """The given steps in the order of the definition."""
        return tuple(sorted(steps, key=self._position.__getitem__))


class _Verdict(Enum):
    SETTLED = auto()  # or active: nothing is left to decide
    WAIT = auto()
    START = auto()
    SKIP = auto()


class _Consequences:
    """One walk through the graph. Steps that it skips count as skipped from then on."""

    def __init__(self, graph: Graph, states: States) -> None:
        self.graph = graph
        self.states = states  # as given until the first skip, then the copy
        self._copy: dict[str, str] | None = None
        self.start: list[str] = []
        self.skip: list[str] = []
        self._carries_failure: dict[str, bool] = {}  # what was found out already

    def spread(self, steps: Iterable[str]) -> None:
        """Decides about `steps`, and about the dependents of those that are skipped."""
        # Taken in topological order, so that each is looked at once, with everything before it decided.
        waiting = [(self.graph.rank[step], step) for step in steps]
        heapify(waiting)
        seen = {step for _, step in waiting}
        while waiting:
            step = heappop(waiting)[1]
            verdict = self.verdict(step)
            if verdict is _Verdict.START:
                self.start.append(step)
            elif verdict is _Verdict.SKIP:
                self._mark_skipped(step)
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
        found = {get(each, StepState.PENDING) for each in dependencies}  # a set: a join may have thousands
        goes_on = self.graph.policies[step] is UpstreamFailure.CONTINUE
        harmless = goes_on or found.isdisjoint((StepState.FAILED, StepState.SKIPPED))
        if not harmless and any(self._failure_comes_from(each) for each in dependencies):
            return _Verdict.SKIP
        if not found <= SETTLED:
            return _Verdict.WAIT
        return _Verdict.START if goes_on or not found or StepState.DONE in found else _Verdict.SKIP

    def _mark_skipped(self, step: str) -> None:
        if self._copy is None:
            self._copy = self.states = dict(self.states)
        self._copy[step] = StepState.SKIPPED
        self.skip.append(step)

    def _failure_comes_from(self, step: str) -> bool:
        """Whether `step` failed, or was skipped under `fail` with such a step before it."""
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
        # It stays so for this walk: everything before a step is decided by the time anyone asks about it.
        self._carries_failure.update(dict.fromkeys(seen, False))
        return False


def find_cycles(dependencies: Mapping[str, Iterable[str]]) -> list[tuple[str, ...]]:
    """At least one cycle of every knot, no two with a step in common. Unknown ids are passed over.

    A cycle is told in the direction of the work and closed: ("research", "brief", "research") when brief
    depends on research and research on brief.
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
    """Turned into the direction of the work, beginning with the step that is defined first."""
    flow = list(reversed(cycle))
    members = set(flow)
    first = flow.index(next(step for step in dependencies if step in members))
    return (*flow[first:], *flow[:first], flow[first])
