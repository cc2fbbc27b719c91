"""Runs of pipelines as people look at them: steps with their activities, for a whole page in a handful of statements.

Reads only, in the caller's `tenant_scope`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from activities.models import Activity
from pipelines.models import Pipeline, PipelineRun, PipelineVersion, StepRun

MOST_VERSIONS = 100  # of a pipeline that are listed


@dataclass(frozen=True, slots=True)
class StepShown:
    """One step of a run: its own state, and that of the activity that does it."""

    run: StepRun
    name: str
    needs: Sequence[str]
    activity_status: str | None


def runs(tenant_id: UUID) -> QuerySet[PipelineRun]:
    """Runs with the key of their pipeline and the number of their version, without the definitions."""
    rows = PipelineRun.objects.for_tenant(tenant_id).select_related("version__pipeline")
    found: QuerySet[PipelineRun] = rows.defer(
        "input", "version__definition", "version__pipeline__description"
    )
    return found


def steps_of(tenant_id: UUID, page: Sequence[PipelineRun]) -> dict[UUID, list[StepShown]]:
    """The steps of these runs in the order of the definition, in three statements for all of them."""
    steps = list(StepRun.objects.for_tenant(tenant_id).filter(run_id__in=[run.pk for run in page]))
    plans = _plans(tenant_id, {run.version_id for run in page})
    activities = {step.activity_id for step in steps if step.activity_id}
    statuses = dict(
        Activity.objects.for_tenant(tenant_id).filter(pk__in=activities).values_list("pk", "status")
    )
    versions = {run.pk: run.version_id for run in page}
    found: dict[UUID, list[StepShown]] = defaultdict(list)
    for step in sorted(steps, key=lambda step: (step.position, step.branch)):
        plan = plans[versions[step.run_id]].get(step.step, {})
        status = statuses.get(step.activity_id) if step.activity_id else None
        found[step.run_id].append(
            StepShown(step, plan.get("name") or step.step, plan.get("depends_on", ()), status)
        )
    return found


def _plans(tenant_id: UUID, version_ids: set[UUID]) -> dict[UUID, Mapping[str, Mapping[str, Any]]]:
    """What each version says about each of its steps. Stored definitions spell their dependencies out."""
    rows = (
        PipelineVersion.objects.for_tenant(tenant_id)
        .filter(pk__in=version_ids)
        .values_list("pk", "definition")
    )
    return {pk: {step["id"]: step for step in definition["steps"]} for pk, definition in rows}


def newest_version(tenant_id: UUID, pipeline: Pipeline) -> PipelineVersion | None:
    rows = PipelineVersion.objects.for_tenant(tenant_id)
    found: PipelineVersion | None = rows.filter(pipeline_id=pipeline.pk, number=pipeline.latest).first()
    return found


def versions_of(tenant_id: UUID, pipeline: Pipeline) -> list[PipelineVersion]:
    """The newest versions of a pipeline, without their definitions."""
    rows = PipelineVersion.objects.for_tenant(tenant_id).filter(pipeline_id=pipeline.pk)
    return list(rows.defer("definition").order_by("-number")[:MOST_VERSIONS])
