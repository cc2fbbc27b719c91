"""Runs of pipelines as people look at them: steps with their activities, for a whole page in a handful of statements.

Reads only, in the caller's `tenant_scope`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self
from uuid import UUID

from django.db.models import Q, QuerySet, TextField
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Cast

from activities import selectors as activity_selectors
from activities.models import Activity
from activities.states import STATUSES, Status
from pipelines.models import Pipeline, PipelineRun, PipelineVersion, StepRun
from pipelines.models.run import StepState

MOST_BRANCHES = 100  # of a step that are listed
MOST_VERSIONS = 100  # of a pipeline that are listed


@dataclass(frozen=True, slots=True)
class BranchRow:
    """One branch of a step that was fanned out."""

    run: StepRun
    item: Any
    activity_status: str | None


@dataclass(frozen=True, slots=True)
class BranchCounts:
    """How the branches of a step stand."""

    total: int
    done: int
    failed: int
    active: int

    @classmethod
    def of(cls, step: StepRun) -> Self | None:
        """None for a step without branches."""
        if step.branches is None:
            return None
        done = step.branches - step.failed_branches - step.unsettled_branches
        return cls(step.branches, done, step.failed_branches, step.unsettled_branches)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of a run: its own state, and that of the activity that does it; or the first of its branches."""

    run: StepRun
    name: str
    needs: Sequence[str]
    activity_status: str | None
    branches: Sequence[BranchRow] = ()
    agent_role: str | None = None
    human_role: str | None = None
    priority: int | None = None  # None: that of the run

    @property
    def counts(self) -> BranchCounts | None:
        return BranchCounts.of(self.run)


def runs(tenant_id: UUID) -> QuerySet[PipelineRun]:
    """Runs with the key of their pipeline and the number of their version, without the definitions."""
    rows = PipelineRun.objects.for_tenant(tenant_id).select_related("version__pipeline")
    found: QuerySet[PipelineRun] = rows.defer(
        "input", "replay_input", "version__definition", "version__pipeline__description"
    )
    return found


SEARCHED = 20_000  # of the tenant's runs, the newest, are looked through for words


def about(rows: QuerySet[PipelineRun], tenant_id: UUID, words: str) -> QuerySet[PipelineRun]:
    """Those of the rows whose name, parameters or pipeline have these words. Upper and lower case are one."""
    newest = PipelineRun.objects.for_tenant(tenant_id).order_by("-started_at", "-id").values("pk")[:SEARCHED]
    named = Q(name__icontains=words) | Q(version__pipeline__name__icontains=words)
    with_params = rows.filter(pk__in=newest).annotate(given=Cast("params", TextField()))
    found: QuerySet[PipelineRun] = with_params.filter(named | Q(given__icontains=words))
    return found


def with_label(rows: QuerySet[PipelineRun], label: str) -> QuerySet[PipelineRun]:
    """Those of the rows with this label, `name:text`, or with a label of this name whatever its text."""
    name, colon, text = label.partition(":")
    found: QuerySet[PipelineRun] = (
        rows.filter(labels__contains={name: text}) if colon else rows.filter(labels__has_key=name)
    )
    return found


def costs_of(tenant_id: UUID, page: Sequence[PipelineRun]) -> dict[UUID, Decimal]:
    """What all attempts of these runs have cost in US dollars. A run that has cost nothing is not in it."""
    if not page:
        return {}
    own = Activity.objects.for_tenant(tenant_id).filter(pipeline_run_id__in=[run.pk for run in page])
    return activity_selectors.costs_of(tenant_id, own, "pipeline_run_id")


def waits_for(tenant_id: UUID, steps: Mapping[UUID, Sequence[StepRow]]) -> dict[UUID, list[str]]:
    """Whom each of these runs waits for: people by their role, as in `people: editor`, then the roles of agents whose turn it is."""
    roles = _find_asked_roles(tenant_id, steps)
    found = {}
    for run_id, rows in steps.items():
        active = [step for step in rows if step.run.status == StepState.ACTIVE]
        agents = [step.agent_role for step in active if step.agent_role and not _is_with_people(step)]
        found[run_id] = list(dict.fromkeys([*(f"people: {role}" for role in roles.get(run_id, ())), *agents]))
    return found


def _is_with_people(step: StepRow) -> bool:
    status = step.activity_status
    return status is not None and STATUSES[Status(status)].lane == "people"


def _find_asked_roles(tenant_id: UUID, steps: Mapping[UUID, Sequence[StepRow]]) -> dict[UUID, list[str]]:
    """The roles of the people who are asked something by steps under way, by run."""
    run_of = {
        step.run.activity_id: run_id
        for run_id, rows in steps.items()
        for step in rows
        if step.run.status == StepState.ACTIVE and step.run.activity_id
    }
    if not run_of:
        return {}
    rows = Activity.objects.for_tenant(tenant_id).filter(activity_selectors.OPEN_FOR_PEOPLE)
    asking = rows.filter(Q(parent_id__in=run_of) | Q(pk__in=run_of))
    found: dict[UUID, list[str]] = defaultdict(list)
    for pk, parent_id, role in asking.values_list("pk", "parent_id", "human_role"):
        found[run_of[pk] if pk in run_of else run_of[parent_id]].append(role or "anybody")
    return found


def steps_of(tenant_id: UUID, page: Sequence[PipelineRun], *, branches: int = 0) -> dict[UUID, list[StepRow]]:
    """The steps of these runs in the order of the definition, in three statements for all of them.

    With them come so many of the first `branches` of those that were fanned out.
    """
    rows = StepRun.objects.for_tenant(tenant_id).filter(
        run_id__in=[run.pk for run in page], branch__lte=branches
    )
    steps = list(rows)
    plans = _plans(tenant_id, {run.version_id for run in page})
    done_by = Activity.objects.for_tenant(tenant_id).filter(
        pk__in={step.activity_id for step in steps if step.activity_id}
    )
    statuses = dict(done_by.values_list("pk", "status"))
    shown = _branches(steps, done_by, statuses)
    versions = {run.pk: run.version_id for run in page}
    found: dict[UUID, list[StepRow]] = defaultdict(list)
    for step in sorted(steps, key=lambda step: (step.position, step.branch)):
        if step.branch:
            continue
        plan = plans[versions[step.run_id]].get(step.step, {})
        status = statuses.get(step.activity_id) if step.activity_id else None
        name, needs = plan.get("name") or step.step, plan.get("depends_on", ())
        found[step.run_id].append(
            StepRow(
                step,
                name,
                needs,
                status,
                shown.get((step.run_id, step.step), ()),
                agent_role=plan.get("agent_role"),
                human_role=plan.get("human_role"),
                priority=plan.get("priority"),
            )
        )
    return found


def _branches(
    steps: Sequence[StepRun], done_by: QuerySet[Activity], statuses: Mapping[UUID, str]
) -> dict[tuple[UUID, str], list[BranchRow]]:
    """The branches among these rows, by their run and step. One statement more, if there are any."""
    rows = sorted((step for step in steps if step.branch), key=lambda step: step.branch)
    found: dict[tuple[UUID, str], list[BranchRow]] = defaultdict(list)
    if not rows:
        return found
    items = dict(done_by.filter(branch__gt=0).values_list("pk", KeyTransform("item", "params")))
    for row in rows:
        activity_id = row.activity_id
        item, status = (items.get(activity_id), statuses.get(activity_id)) if activity_id else (None, None)
        found[row.run_id, row.step].append(BranchRow(row, item, status))
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
