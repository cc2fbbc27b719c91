"""Reads runs of pipelines for people: steps with their activities, for a whole page in a few statements.

Reads only, within the caller's `tenant_scope`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Self
from uuid import UUID

from django.db.models import OuterRef, Q, QuerySet, Subquery, TextField
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Cast

from activities import selectors as activity_selectors
from activities.models import Activity
from activities.states import STATUSES, Status
from pipelines.diagram import StepPicture
from pipelines.models import Pipeline, PipelineRun, PipelineVersion, StepRun
from pipelines.models.run import RunState, StepReason, StepState
from tenants.models import TenantQuerySet

MOST_BRANCHES = 100  # of a step that are listed
MOST_VERSIONS = 100  # of a pipeline that are listed
# A reason that follows from the activity or the run, so it is not stored with the step.
CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class BranchRow:
    """One branch of a fanned-out step."""

    run: StepRun
    item: Any
    activity_status: str | None


@dataclass(frozen=True, slots=True)
class BranchCounts:
    total: int
    done: int
    failed: int
    active: int

    @classmethod
    def of(cls, step: StepRun) -> Self | None:
        """Return None for a step without branches."""
        if step.branches is None:
            return None
        done = step.branches - step.failed_branches - step.unsettled_branches
        return cls(step.branches, done, step.failed_branches, step.unsettled_branches)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of a run, with the status of its activity, or with its first branches."""

    run: StepRun
    name: str
    needs: Sequence[str]
    activity_status: str | None
    branches: Sequence[BranchRow] = ()
    agent_role: str | None = None
    human_role: str | None = None
    priority: int | None = None  # None: the run's priority
    reason: str = ""  # as stored with the step, or `cancelled`
    reason_detail: str = ""
    done_by: str = ""  # the role of its activity, which may have been reassigned
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def shown_status(self) -> str:
        """The status of its activity, else its own, or that its condition was not met."""
        if self.run.status == StepState.SKIPPED and self.run.reason == StepReason.CONDITION:
            return "condition_unmet"
        return self.activity_status or self.run.status

    def picture(self, href: str | None) -> StepPicture:
        """Return the step as a box of the run's picture."""
        detail = "no items" if self.run.branches == 0 else ""
        if self.started_at and self.ended_at:
            detail = f"{(self.ended_at - self.started_at).total_seconds():.1f} s"
        return StepPicture(status=self.shown_status, detail=detail, href=href, round=self.run.round)

    @property
    def counts(self) -> BranchCounts | None:
        return BranchCounts.of(self.run)


def runs(tenant_id: UUID) -> TenantQuerySet:
    """Return runs with their version and pipeline, without the definitions."""
    rows = PipelineRun.objects.for_tenant(tenant_id).select_related("version__pipeline")
    return rows.defer("input", "replay_input", "version__definition", "version__pipeline__description")


MOST_SEARCHED = 20_000  # a search covers the tenant's newest runs


def search(rows: QuerySet[PipelineRun], tenant_id: UUID, words: str) -> QuerySet[PipelineRun]:
    """Return the rows whose name, parameters or pipeline's name contain these words, ignoring case."""
    newest = (
        PipelineRun.objects.for_tenant(tenant_id).order_by("-started_at", "-id").values("pk")[:MOST_SEARCHED]
    )
    named = Q(name__icontains=words) | Q(version__pipeline__name__icontains=words)
    with_params = rows.filter(pk__in=newest).annotate(params_text=Cast("params", TextField()))
    return with_params.filter(named | Q(params_text__icontains=words))


def with_label(rows: QuerySet[PipelineRun], label: str) -> QuerySet[PipelineRun]:
    """Return the rows with this label: `name:text`, or only `name` for any text."""
    name, colon, text = label.partition(":")
    return rows.filter(labels__contains={name: text}) if colon else rows.filter(labels__has_key=name)


def costs_of(tenant_id: UUID, page: Sequence[PipelineRun]) -> dict[UUID, Decimal]:
    """Return the cost of all attempts of these runs in US dollars. Runs without costs are left out."""
    if not page:
        return {}
    own = Activity.objects.for_tenant(tenant_id).filter(pipeline_run_id__in=[run.pk for run in page])
    return activity_selectors.costs_of(tenant_id, own, "pipeline_run_id")


def with_pipeline(entries: QuerySet[Any]) -> QuerySet[Any]:
    """Annotate entries of the usage ledger with the key of their pipeline, as `pipeline`."""
    pipelines = Pipeline.objects.filter(pk=OuterRef("pipeline_id"))
    return entries.annotate(pipeline=Subquery(pipelines.values("key")))


def waits_for(tenant_id: UUID, steps: Mapping[UUID, Sequence[StepRow]]) -> dict[UUID, list[str]]:
    """Return whom each run waits for: people's roles, as in `people: editor`, then the roles of agents with active steps."""
    roles = _roles_of_people_asked(tenant_id, steps)
    waiting = {}
    for run_id, rows in steps.items():
        active = [step for step in rows if step.run.status == StepState.ACTIVE]
        agents = [step.agent_role for step in active if step.agent_role and not _is_with_people(step)]
        waiting[run_id] = list(
            dict.fromkeys([*(f"people: {role}" for role in roles.get(run_id, ())), *agents])
        )
    return waiting


def _is_with_people(step: StepRow) -> bool:
    status = step.activity_status
    return status is not None and STATUSES[Status(status)].lane == "people"


def _roles_of_people_asked(tenant_id: UUID, steps: Mapping[UUID, Sequence[StepRow]]) -> dict[UUID, list[str]]:
    """Return the roles of people whom active steps have asked something, by run."""
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
    roles: dict[UUID, list[str]] = defaultdict(list)
    for pk, parent_id, role in asking.values_list("pk", "parent_id", "human_role"):
        roles[run_of[pk] if pk in run_of else run_of[parent_id]].append(role or "anybody")
    return roles


def steps_of(tenant_id: UUID, page: Sequence[PipelineRun], *, branches: int = 0) -> dict[UUID, list[StepRow]]:
    """Return the steps of these runs in the order of the definition, in three statements for all runs.

    Fanned-out steps come with their first `branches` branches.
    """
    rows = StepRun.objects.for_tenant(tenant_id).filter(
        run_id__in=[run.pk for run in page], branch__lte=branches
    )
    steps = list(rows)
    plans = _plans(tenant_id, {run.version_id for run in page})
    done_by = Activity.objects.for_tenant(tenant_id).filter(
        pk__in={step.activity_id for step in steps if step.activity_id}
    )
    facts = ("pk", "status", "cancel_reason", "started_at", "finished_at", "agent_role", "human_role")
    activities = {row["pk"]: row for row in done_by.values(*facts)}
    statuses = {pk: row["status"] for pk, row in activities.items()}
    branch_rows = _branches(steps, done_by, statuses)
    versions = {run.pk: run.version_id for run in page}
    cancelled_at = {run.pk: run.finished_at for run in page if run.status == RunState.CANCELLED}
    result: dict[UUID, list[StepRow]] = defaultdict(list)
    for step in sorted(steps, key=lambda step: (step.position, step.branch)):
        if step.branch:
            continue
        plan = plans[versions[step.run_id]].get(step.step, {})
        work: Mapping[str, Any] = activities.get(step.activity_id, {}) if step.activity_id else {}
        status = work.get("status")
        reason, detail = _reason_of(step, status, work.get("cancel_reason"), cancelled_at.get(step.run_id))
        name, needs = plan.get("name") or step.step, plan.get("depends_on", ())
        result[step.run_id].append(
            StepRow(
                step,
                name,
                needs,
                status,
                branch_rows.get((step.run_id, step.step), ()),
                agent_role=plan.get("agent_role"),
                human_role=plan.get("human_role"),
                priority=plan.get("priority"),
                reason=reason,
                reason_detail=detail,
                done_by=work.get("agent_role") or work.get("human_role") or "",
                started_at=work.get("started_at"),
                ended_at=work["finished_at"] if work else step.settled_at,
            )
        )
    return result


def _reason_of(
    step: StepRun, status: str | None, cancel_reason: str | None, run_cancelled_at: datetime | None
) -> tuple[str, str]:
    """Return why a step was skipped, does not start yet or was cancelled, and the same in words; both empty for other steps."""
    if step.reason:
        return step.reason, step.get_reason_display()
    if status == Status.CANCELLED:
        return CANCELLED, cancel_reason or "its activity was cancelled"
    if run_cancelled_at is None or step.activity_id is not None:
        return "", ""
    # A step without an activity of its own keeps its state when its run is cancelled. With branches, it fails with the last of them.
    is_open = step.status in (StepState.PENDING, StepState.ACTIVE)
    failed_later = step.status == StepState.FAILED and step.settled_at and step.settled_at >= run_cancelled_at
    return (CANCELLED, "the run was cancelled") if is_open or failed_later else ("", "")


def _branches(
    steps: Sequence[StepRun], done_by: QuerySet[Activity], statuses: Mapping[UUID, str]
) -> dict[tuple[UUID, str], list[BranchRow]]:
    """Return the branches among these rows by run and step. Takes one more statement if there are any."""
    rows = sorted((step for step in steps if step.branch), key=lambda step: step.branch)
    result: dict[tuple[UUID, str], list[BranchRow]] = defaultdict(list)
    if not rows:
        return result
    items = dict(done_by.filter(branch__gt=0).values_list("pk", KeyTransform("item", "params")))
    for row in rows:
        activity_id = row.activity_id
        item, status = (items.get(activity_id), statuses.get(activity_id)) if activity_id else (None, None)
        result[row.run_id, row.step].append(BranchRow(row, item, status))
    return result


def _plans(tenant_id: UUID, version_ids: set[UUID]) -> dict[UUID, Mapping[str, Mapping[str, Any]]]:
    """Return the definition of each step by version. Stored definitions include implied dependencies."""
    rows = (
        PipelineVersion.objects.for_tenant(tenant_id)
        .filter(pk__in=version_ids)
        .values_list("pk", "definition")
    )
    return {pk: {step["id"]: step for step in definition["steps"]} for pk, definition in rows}


def newest_version(tenant_id: UUID, pipeline: Pipeline) -> PipelineVersion | None:
    rows = PipelineVersion.objects.for_tenant(tenant_id)
    return rows.filter(pipeline_id=pipeline.pk, number=pipeline.latest).first()


def versions_of(tenant_id: UUID, pipeline: Pipeline) -> list[PipelineVersion]:
    """Return the newest versions of a pipeline, without their definitions."""
    rows = PipelineVersion.objects.for_tenant(tenant_id).filter(pipeline_id=pipeline.pk)
    return list(rows.defer("definition").order_by("-number")[:MOST_VERSIONS])
