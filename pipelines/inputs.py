"""Reads the outputs of a run's steps: as references for the steps that work on them, as values for the expressions of later steps.

A fanned-out step has a list of outputs: one for each branch, in the order of the items, with None for a failed branch. So a step that
depends on it is a join.
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

#: The id of a step's output, or the ids of its branches' outputs.
Reference = UUID | list[UUID | None]
References = Mapping[str, Reference]


def of_run(run_id: UUID) -> dict[str, Reference]:
    """Return the references to outputs by step, for steps that have any."""
    rows = StepRun.objects.filter(run_id=run_id).filter(
        Q(output_ref__isnull=False) | Q(branches__isnull=False) | Q(branch__gt=0)
    )
    return _collect_references(
        rows.order_by("branch").values_list("step", "branch", "branches", "output_ref")
    )


def _collect_references(rows: Iterable[tuple[str, int, int | None, UUID | None]]) -> dict[str, Reference]:
    """Collect references by step. The row of a whole step must come before those of its branches."""
    collected: dict[str, Reference] = {}
    for step, branch, branches, reference in rows:
        if branch:
            references = collected[step]
            if isinstance(references, list):
                references.append(reference)
        elif branches is not None:
            collected[step] = []
        elif reference is not None:
            collected[step] = reference
    return collected


def of_step(plan: Compiled, step: str, available: References) -> dict[str, Reference]:
    """Return the inputs of a step by the steps that produced them. A gate without an output of its own passes on its inputs."""
    references: dict[str, Reference] = {}
    to_visit, visited = list(reversed(plan.graph.dependencies_of(step))), set[str]()
    while to_visit:
        name = to_visit.pop()
        if name in visited:
            continue
        visited.add(name)
        if name in available:
            references[name] = available[name]
        elif plan.step(name).is_approval_gate:
            to_visit.extend(reversed(plan.graph.dependencies_of(name)))
    return references


def of_branch(plan: Compiled, step: str, available: References) -> dict[str, Reference]:
    """Return the inputs of each branch of a step, besides its item. Lists are left out, because every branch would repeat them."""
    references = of_step(plan, step, available)
    return {name: reference for name, reference in references.items() if not isinstance(reference, list)}


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The values of steps for expressions.

    `missing` are outputs that are no longer in PostgreSQL and were not passed as `known`; `lost` are steps with a vanished output.
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
    """Read only the inputs that the expressions of these steps use. `known` are outputs that were read before: None for a vanished one."""
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
    by_id = {**known, **outputs.read_spooled(tenant_id, output_ids - known.keys())} if output_ids else {}
    missing = output_ids - by_id.keys()
    states = {step: status for step, branch, *_, status in rows if branch == 0}
    return StepInputs(
        {
            step: {
                "status": states.get(step),
                **({} if missing else _values_of(references.get(step), by_id)),
            }
            for step in names
        },
        frozenset(missing),
        frozenset(
            step
            for step in steps_with_output
            for each in _as_list(references.get(step))
            if each is not None and each not in missing and by_id[each] is None
        ),
    )


def _as_list(reference: Reference | None) -> list[UUID | None]:
    return reference if isinstance(reference, list) else [reference]


def _values_of(reference: Reference | None, by_id: Mapping[UUID, StoredOutput | None]) -> dict[str, Any]:
    stored = [by_id.get(each) if each is not None else None for each in _as_list(reference)]
    data = [output.data if output else None for output in stored]
    content = [output.content if output else None for output in stored]
    return (
        {"data": data, "content": content}
        if isinstance(reference, list)
        else {"data": data[0], "content": content[0]}
    )
