"""The list of pipeline runs, newest first, narrowed by status and pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.http import Http404

from console.cursor import Cursor, page_of
from console.labels import tone_of
from pipelines import selectors
from pipelines.models import Pipeline, PipelineRun
from pipelines.models.run import RunState
from pipelines.selectors import StepRow
from pipelines.subjects import subject_of
from tenants import clock
from tenants.context import tenant_scope

PAGE = 50
MOST_PIPELINES = 200  # that can be chosen from
TONES = ("good", "live", "ask", "bad", "idle", "off")


@dataclass(frozen=True, slots=True)
class Row:
    """One run of the list."""

    run: PipelineRun
    steps: Sequence[StepRow]

    @property
    def pipeline(self) -> str:
        return self.run.version.pipeline.name or self.run.version.pipeline.key

    @property
    def subject(self) -> str:
        """What it is about, else the name of its pipeline."""
        return subject_of(self.run.name, self.run.params) or self.pipeline

    @property
    def settled(self) -> int:
        return sum(1 for step in self.steps if step.run.status not in ("pending", "active"))

    @property
    def lasted(self) -> timedelta:
        return (self.run.finished_at or clock.now()) - self.run.started_at

    @property
    def shares(self) -> list[tuple[str, int, int]]:
        """Tone, beginning and width of each part of the bar that says how far it is."""
        counts = Counter(tone_of(step.activity_status or step.run.status) for step in self.steps)
        found, at = [], 0
        for tone in TONES:
            if counts[tone]:
                found.append((tone, at, counts[tone]))
                at += counts[tone]
        return found


@dataclass(frozen=True, slots=True)
class Listing:
    """What the list shows."""

    status: str
    pipeline: str
    rows: Sequence[Row]
    after: Cursor | None
    is_first: bool
    pipelines: Mapping[str, str]

    @property
    def statuses(self) -> list[tuple[str, str, bool]]:
        known = [("", "All"), *((str(value), str(value).capitalize()) for value in RunState.values)]
        return [(value, words, value == self.status) for value, words in known]

    @property
    def is_narrowed(self) -> bool:
        return bool(self.status or self.pipeline)


def listing(tenant_id: UUID, status: str, pipeline: str, after: str) -> Listing:
    """One page of the runs. Raises `Http404` for a status that there is not: a list that shows too much would mislead."""
    if status and status not in RunState.values:
        raise Http404
    place = Cursor.read(after) if after else None
    with tenant_scope(tenant_id):
        rows = selectors.runs(tenant_id)
        rows = rows.filter(status=status) if status else rows
        rows = rows.filter(version__pipeline__key=pipeline.replace("\x00", "")) if pipeline else rows
        page, following = page_of(rows, "started_at", place, PAGE)
        steps = selectors.steps_of(tenant_id, page)
        known = Pipeline.objects.for_tenant(tenant_id).order_by("key").values_list("key", "name")
        pipelines = dict(known[:MOST_PIPELINES])
    return Listing(
        status, pipeline, [Row(run, steps[run.pk]) for run in page], following, place is None, pipelines
    )
