"""Saves immutable versions of pipelines, with their templates resolved.

A run keeps the version that it began with, and a version keeps the content of its templates from when it was saved. So editing either
changes no running work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any
from uuid import UUID

import orjson
from django.db.models import F
from django.db.models.functions import Now

from agents import configuration
from pipelines import conditions, expressions, parameters
from pipelines.definition import DefinitionError, InputError, PipelineDefinition, parse, synonyms
from pipelines.graph import Graph
from pipelines.models import ActivityTemplate, Deliverable, Pipeline, PipelineRun, PipelineVersion
from tenants import turns
from tenants.context import tenant_scope
from tenants.exceptions import PreconditionFailed

DEPENDENCY_TIMEOUT_SECONDS = 86_400.0  # a day, for steps without a time-out of their own

MOST_BYTES = 8 * 1024 * 1024  # of all steps of a pipeline

# The members that a step inherits from its template unless it sets them itself.
_FROM_TEMPLATE = ("name", "description", "agent_role", "human_role", "timeout_seconds")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A version that is ready to run."""

    pipeline_id: UUID
    definition: PipelineDefinition
    graph: Graph
    position: Mapping[str, int]
    conditional: frozenset[str]  # the steps with a `when` or a `for_each`
    fanned_out: frozenset[str]  # those with a `for_each`

    def step(self, step_id: str) -> Any:
        return self.definition.steps[self.position[step_id]]

    def patience_of(self, step_id: str) -> float:
        """Return for how many seconds a step waits for those that it depends on."""
        return float(self.step(step_id).dependency_timeout_seconds or DEPENDENCY_TIMEOUT_SECONDS)


def save(tenant_id: UUID, data: Any, *, actor: str, expected: int | None = None) -> PipelineVersion:
    """Save a definition as the newest version of the pipeline with its key, which is created if necessary.

    Raises `definition.DefinitionError` with every error, and `PreconditionFailed` if `expected` is not the newest version.
    """
    with tenant_scope(tenant_id):
        definition = check_definition(tenant_id, data)
        pipeline, _ = Pipeline.objects.get_or_create(
            tenant_id=tenant_id, key=definition.key, defaults={"name": definition.name, "created_by": actor}
        )
        # Lock the row, so that two concurrent saves get different numbers.
        pipeline = Pipeline.objects.for_tenant(tenant_id).select_for_update().get(pk=pipeline.pk)
        if expected is not None and pipeline.latest != expected:
            raise PreconditionFailed(f"The pipeline is now at version {pipeline.latest}, not {expected}.")
        version = PipelineVersion.objects.create(
            tenant_id=tenant_id, pipeline=pipeline, number=pipeline.latest + 1, definition=definition.to_dict(),
            digest=definition.digest(), created_by=actor,
        )  # fmt: skip
        changes = {} if definition.enabled is None else {"enabled": definition.enabled}
        Pipeline.objects.for_tenant(tenant_id).filter(pk=pipeline.pk).update(
            latest=version.number, name=definition.name, description=definition.description, updated_at=Now(), **changes
        )  # fmt: skip
    return version


def read_ahead(data: Any) -> None:
    """Parse the expressions of a definition, which is the slowest part, before a transaction is opened. `save` uses the cached trees.

    Raises `definition.DefinitionError` if they are too long together. `save` reports all other errors.
    """
    data = synonyms.translate(data, synonyms.PIPELINE).data
    _refuse_heavy(data)
    for text in {text for text in _expressions_in(data) if isinstance(text, str)}:
        turns.give_way()
        expressions.check(text)


def _refuse_heavy(data: Any) -> None:
    if error := conditions.weight_error(_expressions_in(data)):
        raise DefinitionError([InputError("steps", error)])


def _expressions_in(data: Any) -> Iterator[Any]:
    steps = data.get("steps") if isinstance(data, Mapping) else None
    for step in steps if isinstance(steps, list | tuple) else ():
        if isinstance(step, Mapping):
            yield from (step.get("when"), step.get("for_each"))


def check_definition(tenant_id: UUID, data: Any) -> PipelineDefinition:
    """Return the definition with its templates resolved. `data` may use synonyms. Raises `definition.DefinitionError`.

    Call it within a `tenant_scope`.
    """
    translation = synonyms.translate(data, synonyms.PIPELINE)
    _refuse_heavy(translation.data)
    try:
        definition = _parse(tenant_id, translation.data)
    except DefinitionError as error:
        raise DefinitionError(translation.as_written(error.errors)) from error
    if translation.errors:
        raise DefinitionError(translation.errors)
    return definition


def _parse(tenant_id: UUID, data: Any) -> PipelineDefinition:
    templates = {template.key: template for template in ActivityTemplate.objects.for_tenant(tenant_id)}
    steps = data.get("steps") if isinstance(data, Mapping) else None
    if isinstance(steps, list | tuple):
        resolved = [_resolve_step(step, templates) for step in steps]
        _refuse_large(resolved)
        data = {**data, "steps": resolved}
    return parse(
        data,
        known_roles=configuration.list_roles(),
        known_templates=templates.keys(),
        has_members_of_templates=True,
        check_steps=lambda params, steps: chain(
            conditions.errors_of(params, steps), parameters.errors_of_constants(tenant_id, steps)
        ),
    )


def _refuse_large(steps: Iterable[Any]) -> None:
    """Refuse steps with too many bytes: a template in many steps, or an alias of a file, needs few bytes where it is written."""
    remaining = MOST_BYTES
    for step in steps:
        with suppress(TypeError):  # `parse` reports what is not JSON
            remaining -= len(orjson.dumps(step, default=str, option=orjson.OPT_NON_STR_KEYS))
        if remaining < 0:
            message = f"must have at most {MOST_BYTES:,} bytes together, with what comes from their templates"
            raise DefinitionError([InputError("steps", message)])


def _resolve_step(step: Any, templates: Mapping[str, ActivityTemplate]) -> Any:
    """Return the step with the members of its template that it does not set itself. What is invalid stays as it is."""
    key = step.get("template") if isinstance(step, Mapping) else None
    template = templates.get(key) if isinstance(key, str) else None
    if template is None:
        return step
    merged: dict[Any, Any] = {
        name: getattr(template, name) for name in _FROM_TEMPLATE if getattr(template, name)
    }
    if step.get("agent_role") or step.get("human_role"):
        merged.pop("agent_role", None)
        merged.pop("human_role", None)
    merged |= {name: True for name in ("requires_approval", "is_approval_gate") if getattr(template, name)}
    merged |= {"retry": template.retry} if template.retry else {}
    merged |= {key: value for key, value in step.items() if value is not None or key not in merged}
    own = merged.get("params") or {}
    merged["params"] = {**template.params, **own} if isinstance(own, Mapping) else own
    return merged


def newest(tenant_id: UUID, pipeline: Pipeline) -> PipelineVersion:
    """Return the version for new runs. Call it within a `tenant_scope`."""
    return PipelineVersion.objects.for_tenant(tenant_id).get(pipeline=pipeline, number=pipeline.latest)


@lru_cache(maxsize=1024)
def compile_version(version_id: UUID) -> Compiled:
    """Return a version's definition and graph. Versions never change, so the cache is never stale. Call it within a `tenant_scope`."""
    version = PipelineVersion.objects.only("definition", "pipeline_id").get(pk=version_id)
    data = version.definition
    roles = {step["agent_role"] for step in data["steps"] if step.get("agent_role")}
    templates = {step["template"] for step in data["steps"] if step.get("template")}
    definition = parse(data, known_roles=roles, known_templates=templates)
    return Compiled(
        version.pipeline_id,
        definition,
        Graph.of(definition),
        position={step.id: index for index, step in enumerate(definition.steps)},
        conditional=frozenset(step.id for step in definition.steps if conditions.is_conditional(step)),
        fanned_out=frozenset(step.id for step in definition.steps if step.for_each is not None),
    )


def list_planned_roles(activity: Any) -> frozenset[str] | None:
    """Return the agents' roles in the activity's pipeline, and in the pipelines that its deliverable's plans may use.

    `activity` is a row of Activity. Only roles that people have written into a pipeline count. None: it belongs to no pipeline. Call it
    within a `tenant_scope`.
    """
    tenant_id = activity.tenant_id
    steps: list[Any] = []
    if activity.pipeline_run_id is not None:
        runs = PipelineRun.objects.for_tenant(tenant_id).filter(pk=activity.pipeline_run_id)
        steps += runs.values_list("version__definition__steps", flat=True)
    if activity.deliverable_id is not None:
        deliverables = Deliverable.objects.for_tenant(tenant_id).filter(pk=activity.deliverable_id)
        keys = deliverables.values_list("pipelines", flat=True).first() or []
        newest = PipelineVersion.objects.for_tenant(tenant_id).filter(
            pipeline__tenant_id=tenant_id, pipeline__key__in=keys, number=F("pipeline__latest")
        )
        steps += newest.values_list("definition__steps", flat=True)
    if not steps:
        return None
    return frozenset(step["agent_role"] for step in chain.from_iterable(steps) if step.get("agent_role"))
