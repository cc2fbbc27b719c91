"""Pipelines as their pages show them: what each does, its versions, its runs and what starts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.http import Http404
from django.utils.safestring import SafeString, mark_safe

from console.page import PAGE_WIDTH
from pipelines import diagram, selectors, versions
from pipelines.admin.pipeline import as_yaml
from pipelines.definition import DefinitionError
from pipelines.models import Pipeline, PipelineRun, PipelineVersion, Schedule
from pipelines.subjects import subject_of
from tenants import pausing
from tenants.context import tenant_scope
from tenants.models import PauseKind

MOST_LISTED = 200
NEWEST_RUNS = 300  # of the tenant, among which the last of each pipeline is looked for
MOST_RUNS = 10
MOST_SCHEDULES = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One pipeline of the list. `last` is None when none of its runs is among the tenant's newest."""

    pipeline: Any
    last: PipelineRun | None


@dataclass(frozen=True, slots=True)
class Listing:
    rows: Sequence[Row]
    has_more: bool
    search: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step as its definition says."""

    shown: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.shown.get("name") or self.shown["id"])

    @property
    def who(self) -> str:
        return str(self.shown.get("agent_role") or self.shown.get("human_role") or "")

    @property
    def needs(self) -> Sequence[str]:
        found: Sequence[str] = self.shown.get("depends_on") or ()
        return found

    @property
    def remarks(self) -> Sequence[str]:
        """What there is to know of it besides."""
        given = self.shown
        said = [
            ("a person approves its output", given.get("requires_approval")),
            ("a person decides", given.get("is_approval_gate")),
            ("a person does it", given.get("human_role") and not given.get("is_approval_gate")),
            (f"only when {given.get('when')}", given.get("when")),
            (f"for each of {given.get('for_each')}", given.get("for_each")),
        ]
        return [words for words, holds in said if holds]


@dataclass(frozen=True, slots=True)
class Subject:
    """A run, and what it is about."""

    run: PipelineRun
    about: str


@dataclass(frozen=True, slots=True)
class One:
    """The page of one pipeline. `version` is the one that is looked at."""

    pipeline: Any
    version: PipelineVersion
    steps: Sequence[Step]
    picture: SafeString
    text: str
    versions: Sequence[PipelineVersion]
    runs: Sequence[Subject]
    schedules: Sequence[Schedule]

    @property
    def is_newest(self) -> bool:
        return bool(self.version.number == self.pipeline.latest)


def listing(tenant_id: UUID, search: str = "") -> Listing:
    """The pipelines by name."""
    with tenant_scope(tenant_id):
        rows = _with_pauses(tenant_id)
        if search:
            rows = rows.filter(
                Q(name__icontains=search) | Q(key__icontains=search) | Q(description__icontains=search)
            )
        found = list(rows.order_by("name", "key")[: MOST_LISTED + 1])
        last = _last_runs(tenant_id) if found else {}
    shown = [Row(pipeline, last.get(pipeline.pk)) for pipeline in found[:MOST_LISTED]]
    return Listing(shown, len(found) > MOST_LISTED, search)


def one(tenant_id: UUID, key: str, number: int | None = None) -> One:
    """One pipeline, as its newest version or the one with this number has it. Raises `Http404`."""
    with tenant_scope(tenant_id):
        pipeline, version = found(tenant_id, key, number)
        known = selectors.versions_of(tenant_id, pipeline)
        runs = selectors.runs(tenant_id).filter(version__in=[each.pk for each in known])
        newest = list(runs.order_by("-started_at", "-pk")[:MOST_RUNS])
        schedules = Schedule.objects.for_tenant(tenant_id).filter(pipeline_id=pipeline.pk)
        starting = list(schedules.order_by("name", "pk")[:MOST_SCHEDULES])
        picture = _drawn(version, pipeline.name)
    return One(
        pipeline=pipeline,
        version=version,
        steps=[Step(each) for each in version.definition["steps"]],
        picture=picture,
        text=as_yaml(version.definition),
        versions=known,
        runs=[Subject(run, subject_of(run.name, run.params) or "without a subject") for run in newest],
        schedules=starting,
    )


def found(tenant_id: UUID, key: str, number: int | None = None) -> tuple[Any, PipelineVersion]:
    """A pipeline, and its newest version or the one with this number. Raises `Http404`. In the caller's `tenant_scope`."""
    pipeline = _with_pauses(tenant_id).filter(key=key.replace("\x00", "")).first()
    if pipeline is None:
        raise Http404
    rows = PipelineVersion.objects.for_tenant(tenant_id).filter(pipeline_id=pipeline.pk)
    version = rows.filter(number=pipeline.latest if number is None else number).first()
    if version is None:
        raise Http404
    return pipeline, version


def _with_pauses(tenant_id: UUID) -> Any:
    return pausing.with_pauses(Pipeline.objects.for_tenant(tenant_id), PauseKind.PIPELINE)


def _last_runs(tenant_id: UUID) -> dict[UUID, PipelineRun]:
    newest = selectors.runs(tenant_id).order_by("-started_at", "-pk")[:NEWEST_RUNS]
    return {run.version.pipeline_id: run for run in reversed(newest)}


def _drawn(version: PipelineVersion, title: str) -> SafeString:
    try:
        definition = versions.compiled(version.pk).definition
    except DefinitionError:
        return SafeString("")  # An old version that the present program cannot read; its steps are listed.
    svg = diagram.draw(definition, None, title=title, styled=False, widest=PAGE_WIDTH)
    return mark_safe(svg)  # noqa: S308  # `draw` escapes every text and checks every link
