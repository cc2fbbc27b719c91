"""Parameters of steps: what each step is given, and what its agent's input schema says about that.

Asked three times, since more is known each time. When a pipeline is saved: what its steps say themselves, which no run can change. When
a run or a schedule is to start: every step that is certain to start as it is. When a step starts: that step, with the schema that its
agent has by then, and each branch with its item.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from agents import input_schemas
from agents.exceptions import RoleNotFound
from pipelines import conditions
from pipelines.definition import InputError, StepDefinition
from pipelines.definition.errors import at

INVALID = "invalid_params"
MOST_NAMED = 5  # errors of one step that its error names


def of_step(params: Mapping[str, Any], step: StepDefinition) -> dict[str, Any]:
    """The run's parameters, which hold the pipeline's already, and over them those of the step."""
    return {**params, **step.params}


def errors_of_constants(tenant_id: UUID, steps: Sequence[StepDefinition]) -> Iterator[tuple[int, str, str]]:
    """What is wrong with the steps' own parameters whatever else a run brings, as `definition.parse` takes it."""
    for index, step in enumerate(steps):
        if not step.agent_role or not step.params:
            continue
        try:
            found = input_schemas.lasting_violations(tenant_id, step.agent_role, step.params)
        except RoleNotFound:  # reported as an unknown role
            continue
        for path, message in found:
            yield index, f".{_write_path(path)}", message


def errors_of_run(
    tenant_id: UUID,
    steps: Sequence[StepDefinition],
    params: Mapping[str, Any],
    *,
    unknown: Collection[str] = (),
) -> list[InputError]:
    """What is wrong with the parameters of a run: those of the steps that start for certain, and each but once.

    `params` hold the pipeline's already. `unknown` are given as well, but nobody knows yet what they are.
    """
    found: list[InputError] = []
    for index, step in enumerate(steps):
        if step.agent_role and not conditions.is_conditional(step):
            for path, message in _violations(tenant_id, step, params, unknown):
                own = len(path) > 1 and path[1] in step.params
                place = f"{at('steps', index)}." if own else ""
                found.append(InputError(f"{place}{_write_path(path)}", f"step {step.id}: {message}"))
    return found


def refusal(tenant_id: UUID, step: StepDefinition, params: Sequence[Mapping[str, Any]]) -> str | None:
    """Why the step's agent would not take what it is about to be given, once or for each branch; None when it takes it."""
    if not step.agent_role:
        return None
    errors: list[str] = []
    for number, values in enumerate(params):
        branch = f"item {number}: " if step.for_each is not None else ""
        errors += [
            f"{branch}{_write_path(path)}: {message}"
            for path, message in _violations(tenant_id, step, values, ())[: MOST_NAMED - len(errors)]
        ]
        if len(errors) == MOST_NAMED:
            break
    return "; ".join(errors) or None


def _violations(
    tenant_id: UUID, step: StepDefinition, params: Mapping[str, Any], unknown: Collection[str]
) -> list[tuple[tuple[str | int, ...], str]]:
    try:
        return input_schemas.violations(
            tenant_id,
            step.agent_role or "",
            of_step(params, step),
            unknown=[name for name in unknown if name not in step.params],
        )
    except RoleNotFound:  # its work waits for the role, as any work does
        return []


def _write_path(parts: tuple[str | int, ...]) -> str:
    found = ""
    for part in parts:
        found = at(found, part)
    return found
