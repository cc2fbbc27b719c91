"""Pictures of pipelines for pages of the admin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from activities.models import Activity
from pipelines import diagram, versions
from pipelines.definition import DefinitionError, PipelineDefinition
from pipelines.diagram import Counts, StepPicture
from pipelines.models import StepRun
from pipelines.models.run import StepReason, StepState
from pipelines.selectors import BranchCounts
from tenants.admin.bases import page_of

# The picture follows the reader's own setting; in the admin the theme's switch decides.
_THEME = (
    f".orc-picture .pipeline-picture{{{diagram.LIGHT}}}.dark .orc-picture .pipeline-picture{{{diagram.DARK}}}"
)


def drawn(version_id: UUID, steps: QuerySet[StepRun] | None = None, *, title: str) -> SafeString:
    """The picture of a version; with the steps of a run as wholes, of that run."""
    try:
        definition = versions.compiled(version_id).definition
    except DefinitionError as error:
        return format_html("This version cannot be read by the present program: {}", str(error))
    if steps is None:
        return framed(definition, title=title)
    rows = list(steps)
    return framed(definition, _states(rows), _counts(rows), title=title)


def framed(
    definition: PipelineDefinition,
    states: Mapping[str, StepPicture] | None = None,
    counts: Counts | None = None,
    *,
    title: str,
) -> SafeString:
    """The picture as a part of a page. When it is wide it scrolls, not the page."""
    svg = diagram.draw(definition, states, title=title, counts=counts)
    # `draw` escapes every text and checks every link.
    parts = (SafeString(_THEME), SafeString(svg))
    return format_html('<div class="orc-picture"><style>{}</style>{}</div>', *parts)


def _counts(rows: Sequence[StepRun]) -> Counts:
    """The branches of the steps that were fanned out, by what became of them."""
    found = {row.step: BranchCounts.of(row) for row in rows}
    return {
        step: {"failed": counts.failed, "active": counts.active, "done": counts.done}
        for step, counts in found.items()
        if counts is not None
    }


def _states(rows: Sequence[StepRun]) -> Mapping[str, StepPicture]:
    activities = Activity.objects.in_bulk([row.activity_id for row in rows if row.activity_id])
    return {
        row.step: _state(row, activities.get(row.activity_id) if row.activity_id else None) for row in rows
    }


def _state(step: StepRun, activity: Activity | None) -> StepPicture:
    if activity is None:
        unmet = step.status == StepState.SKIPPED and step.reason == StepReason.CONDITION
        return StepPicture(
            status="condition_unmet" if unmet else step.status,
            detail="no items" if step.branches == 0 else "",
            href=_branches_of(step) if step.branches else None,
            round=step.round,
        )
    begun, ended = activity.started_at, activity.finished_at
    detail = f"{(ended - begun).total_seconds():.1f} s" if begun and ended else ""
    return StepPicture(
        status=activity.status, detail=detail, href=page_of(Activity, activity.pk), round=step.round
    )


def _branches_of(step: StepRun) -> str:
    """The address of the list of a step's branches."""
    chosen = urlencode({"run__id__exact": step.run_id, "step__exact": step.step})
    return f"{reverse('admin:pipelines_steprun_changelist')}?{chosen}"
