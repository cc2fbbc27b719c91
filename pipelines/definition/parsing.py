"""From plain data to a `PipelineDefinition`: reads the whole, then checks what holds the steps together.

A step that does not say `depends_on` gets its dependencies from its place in the list:

    not parallel   it runs after the step before it
    parallel       it runs beside the step before it, that is, it has the same dependencies

The first step has none. So consecutive parallel steps run side by side; a step that waits for all of them
names them in its `depends_on`. An empty list means no dependencies; an explicit list is never added to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipelines.definition.faults import Faults, at, shown
from pipelines.definition.reading import Reader
from pipelines.definition.shapes import PipelineDefinition, StepDefinition
from pipelines.definition.steps import Draft, World, read_step
from pipelines.definition.values import JsonCopier
from pipelines.graph import find_cycles

StepsCheck = Callable[[Mapping[str, Any], Sequence[StepDefinition]], Iterable[tuple[int, str, str]]]

MAX_STEPS = 2_000
MAX_DEPENDENCIES = 50_000  # of all steps together; parallel steps multiply what the step before them has


def parse(
    data: Any,
    *,
    known_roles: Collection[str],
    known_templates: Collection[str],
    known_human_roles: Collection[str] | None = None,
    check_expression: Callable[[str], str | None] | None = None,
    check_steps: StepsCheck | None = None,
) -> PipelineDefinition:
    """The definition that `data` describes, or a DefinitionError with every fault. Changes nothing in `data`.

    `known_roles` are the agents' roles. People's roles are checked only if `known_human_roles` are given.
    `check_expression` gets the text of each `when` and `for_each` and returns what is wrong with it, or None.
    `check_steps` gets the parameters of the whole and all steps, each with its dependencies, and tells what is wrong with them:
    the index of the step, the place in it and the message.
    """
    faults = Faults()
    world = World(
        roles=frozenset(known_roles),
        templates=frozenset(known_templates),
        human_roles=None if known_human_roles is None else frozenset(known_human_roles),
        check_expression=check_expression,
    )
    definition = _read(Reader(data, "", JsonCopier(faults)), world)
    for index, place, message in check_steps(definition.params, definition.steps) if check_steps else ():
        faults.add(f"{at('steps', index)}{place}", message)
    faults.raise_if_any()
    return definition


def _read(reader: Reader, world: World) -> PipelineDefinition:
    key, name = reader.identifier("key"), reader.name("name")
    description, params = reader.text("description", limit=20_000, blank=True), reader.mapping("params")
    for required in ("key", "name", "steps"):
        reader.require(required)
    items = reader.items("steps", limit=MAX_STEPS)
    if items == []:
        reader.fault("steps", "must have at least one member")
    reader.refuse_other_keys()
    drafts = [read_step(Reader(item, path, reader.copier), world) for path, item in items or ()]
    return PipelineDefinition(
        key=key or "",
        name=name or "",
        description=description or "",
        params=params,
        steps=_connected(drafts, reader.faults),
    )


def _connected(drafts: list[Draft], faults: Faults) -> tuple[StepDefinition, ...]:
    """The steps with their dependencies, which are checked on the way."""
    _refuse_second_use_of_ids(drafts, faults)
    ids = dict.fromkeys(draft.step.id for draft in drafts if draft.step.id)
    steps: list[StepDefinition] = []
    for draft in drafts:
        previous = steps[-1] if steps else None
        said = draft.depends_on is not None
        depends_on = _named(draft, ids, faults) if said else _implied(draft.step, previous)
        steps.append(replace(draft.step, depends_on=depends_on))
    if sum(len(step.depends_on) for step in steps) > MAX_DEPENDENCIES:
        faults.add("steps", f"must have at most {MAX_DEPENDENCIES:,} dependencies together")
    else:
        _refuse_cycles(steps, drafts, faults)
    return tuple(steps)


def _refuse_second_use_of_ids(drafts: list[Draft], faults: Faults) -> None:
    first: dict[str, str] = {}
    for draft in drafts:
        if draft.step.id and first.setdefault(draft.step.id, draft.path) != draft.path:
            faults.add(
                f"{draft.path}.id", f"{shown(draft.step.id)} is already the id of {first[draft.step.id]}"
            )


def _implied(step: StepDefinition, previous: StepDefinition | None) -> tuple[str, ...]:
    if previous is None:
        return ()
    return previous.depends_on if step.parallel else (previous.id,)


def _named(draft: Draft, ids: Collection[str], faults: Faults) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for path, dependency in draft.depends_on or ():
        if dependency == draft.step.id:
            faults.add(path, "a step cannot depend on itself")
        elif dependency not in ids:
            faults.unknown(path, "step", dependency, ids)
        elif dependency in found:
            faults.add(path, f"{shown(dependency)} is named twice")
        else:
            found[dependency] = None
    return tuple(found)


def _refuse_cycles(steps: list[StepDefinition], drafts: list[Draft], faults: Faults) -> None:
    dependencies: dict[str, tuple[str, ...]] = {}
    paths: dict[str, str] = {}
    for step, draft in zip(steps, drafts, strict=True):
        if step.id and step.id not in dependencies:
            dependencies[step.id] = step.depends_on
            paths[step.id] = f"{draft.path}.depends_on" if draft.depends_on else draft.path
    for cycle in find_cycles(dependencies):
        faults.add(paths[cycle[0]], f"the steps wait for each other in a cycle: {' -> '.join(cycle)}")
