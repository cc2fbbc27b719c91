"""Merges the parameters of steps, and checks them against the input schemas of their agents.

They are checked three times, because more is known each time. When a pipeline is saved: the steps' own parameters, which no run can
change. When a run or a schedule is to start: every step that is certain to start. When a step starts: that step and each of its branches,
with the agent's current schema.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from agents import input_schemas
from agents.exceptions import RoleNotFound
from pipelines import conditions
from pipelines.definition import InputError, StepDefinition
from pipelines.definition.errors import at, path_of

INVALID = "invalid_params"
MOST_NAMED = 5  # errors that the message about a step lists


def of_step(params: Mapping[str, Any], step: StepDefinition) -> dict[str, Any]:
    """Return the run's parameters, which include the pipeline's, overridden by those of the step."""
    return {**params, **step.params}


def errors_of_constants(tenant_id: UUID, steps: Sequence[StepDefinition]) -> Iterator[tuple[int, str, str]]:
    """Yield errors of the steps' own parameters that no run can correct, in the form that `definition.parse` expects."""
    for index, step in enumerate(steps):
        if not step.agent_role or not step.params:
            continue
        try:
            violations = input_schemas.lasting_violations(tenant_id, step.agent_role, step.params)
        except RoleNotFound:  # reported as an unknown role
            continue
        for path, message in violations:
            yield index, f".{path_of(path)}", message


def errors_of_run(
    tenant_id: UUID,
    steps: Sequence[StepDefinition],
    params: Mapping[str, Any],
    *,
    unknown: Collection[str] = (),
) -> list[InputError]:
    """Return the errors of a run's parameters, for the steps that are certain to start.

    `params` include the pipeline's. `unknown` are the names of parameters whose values are not known yet.
    """
    errors: list[InputError] = []
    for index, step in enumerate(steps):
        if step.agent_role and not conditions.is_conditional(step):
            for path, message in _violations(tenant_id, step, params, unknown):
                own = len(path) > 1 and path[1] in step.params
                place = f"{at('steps', index)}." if own else ""
                errors.append(InputError(f"{place}{path_of(path)}", f"step {step.id}: {message}"))
    return errors


def refusal(tenant_id: UUID, step: StepDefinition, params: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why the step's agent would refuse these parameters (one set, or one for each branch), or None if it accepts them."""
    if not step.agent_role:
        return None
    errors: list[str] = []
    for number, values in enumerate(params):
        branch = f"item {number}: " if step.for_each is not None else ""
        errors += [
            f"{branch}{path_of(path)}: {message}"
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
    except RoleNotFound:  # the work waits until the role exists, as all work does
        return []
