"""What the steps of a run have left: references for those that work on it, values for the expressions of those that come after.

A step that was fanned out leaves a list, one member for each of its branches in the order of the items, with None for a branch that
failed. So whatever depends on it is a join.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Q

from activities import outputs
from activities.outputs import StoredOutput
from pipelines import conditions
from pipelines.models import StepRun
from pipelines.versions import Compiled

#: To the output of a step, or to those of its branches.
Reference = UUID | list[UUID | None]
References = Mapping[str, Reference]


def of_run(run_id: UUID) -> dict[str, Reference]:
    """The output references of each step that has left an output."""
    rows = StepRun.objects.filter(run_id=run_id).filter(
        Q(output_ref__isnull=False) | Q(branches__isnull=False) | Q(branch__gt=0)
    )
    return _collect_references(
        rows.order_by("branch").values_list("step", "branch", "branches", "output_ref")
    )


def _collect_references(rows: Iterable[tuple[str, int, int | None, UUID | None]]) -> dict[str, Reference]:
    """Rows of steps as wholes come before those of their branches."""
    found: dict[str, Reference] = {}
    for step, branch, branches, reference in rows:
        if branch:
            references = found[step]
            if isinstance(references, list):
                references.append(reference)
        elif branches is not None:
            found[step] = []
        elif reference is not None:
            found[step] = reference
    return found


def of_step(plan: Compiled, step: str, found: References) -> dict[str, Reference]:
    """The inputs of a step, by the step that left them. A gate without an output of its own passes on what it was asked about."""
    references: dict[str, Reference] = {}
    to_visit, visited = list(reversed(plan.graph.dependencies_of(step))), set[str]()
    while to_visit:
        name = to_visit.pop()
        if name in visited:
            continue
        visited.add(name)
        if name in found:
            references[name] = found[name]
        elif plan.step(name).is_approval_gate:
            to_visit.extend(reversed(plan.graph.dependencies_of(name)))
    return references


def of_branch(plan: Compiled, step: str, found: References) -> dict[str, Reference]:
    """The inputs of each branch of a step, beside its item. Lists are left out, since every one of many branches would repeat them."""
    references = of_step(plan, step, found)
    return {name: reference for name, reference in references.items() if not isinstance(reference, list)}


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What expressions see of the steps.

    `missing` are outputs that are not in PostgreSQL any more and were not given either; `lost` are steps of which an output is nowhere.
    """

    steps: Mapping[str, Mapping[str, Any]]
    missing: frozenset[UUID]
    lost: frozenset[str] = frozenset()


def read_inputs(
    tenant_id: UUID,
    run_id: UUID,
    plan: Compiled,
    steps: Iterable[str],
    known: Mapping[UUID, StoredOutput | None],
) -> StepInputs:
    """Only the inputs that the expressions of these steps read. `known` are outputs that were read before: None for what is nowhere."""
    parts = frozenset().union(*(conditions.parts_read(plan.step(step)) for step in steps))
    names = {step for step, _ in parts}
    if not names:
        return StepInputs({}, frozenset())
    rows = list(
        StepRun.objects.filter(run_id=run_id, step__in=names)
        .order_by("branch")
        .values_list("step", "branch", "branches", "output_ref", "status")
    )
    references = _collect_references(row[:4] for row in rows)
    steps_with_output = {step for step, part in parts if part != "status"}
    output_ids = {
        each for step in steps_with_output for each in _as_list(references.get(step)) if each is not None
    }
    there = {**known, **outputs.at_hand(tenant_id, output_ids - known.keys())} if output_ids else {}
    missing = output_ids - there.keys()
    states = {step: status for step, branch, *_, status in rows if branch == 0}
    return StepInputs(
        {
            step: {
                "status": states.get(step),
                **({} if missing else _show_reference(references.get(step), there)),
            }
            for step in names
        },
        frozenset(missing),
        frozenset(
            step
            for step in steps_with_output
            for each in _as_list(references.get(step))
            if each is not None and each not in missing and there[each] is None
        ),
    )


def _as_list(reference: Reference | None) -> list[UUID | None]:
    return reference if isinstance(reference, list) else [reference]


def _show_reference(reference: Reference | None, there: Mapping[UUID, StoredOutput | None]) -> dict[str, Any]:
    found = [there.get(each) if each is not None else None for each in _as_list(reference)]
    data = [output.data if output else None for output in found]
    content = [output.content if output else None for output in found]
    return (
        {"data": data, "content": content}
        if isinstance(reference, list)
        else {"data": data[0], "content": content[0]}
    )
