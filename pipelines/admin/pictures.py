"""Pictures of pipelines for pages of the admin."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from django.db.models import QuerySet
from django.utils.html import format_html
from django.utils.safestring import SafeString

from activities.models import Activity
from pipelines import picture, versions
from pipelines.definition import DefinitionError
from pipelines.models import StepRun
from pipelines.picture import StepPicture
from tenants.admin.bases import page_of

# The picture follows the reader's own setting; in the admin the theme's switch decides.
_THEME = (
    f".orc-picture .pipeline-picture{{{picture.LIGHT}}}.dark .orc-picture .pipeline-picture{{{picture.DARK}}}"
)


def drawn(version_id: UUID, steps: QuerySet[StepRun] | None = None, *, title: str) -> SafeString:
    """The picture of a version; with the steps of a run, of that run."""
    try:
        definition = versions.compiled(version_id).definition
    except DefinitionError as error:
        return format_html("This version cannot be read by the present program: {}", str(error))
    svg = picture.draw(definition, None if steps is None else _states(steps), title=title)
    # `draw` escapes every text and checks every link.
    parts = (SafeString(_THEME), SafeString(svg))
    return format_html('<div class="orc-picture"><style>{}</style>{}</div>', *parts)


def _states(steps: QuerySet[StepRun]) -> Mapping[str, StepPicture]:
    rows = list(steps)
    activities = Activity.objects.in_bulk([row.activity_id for row in rows if row.activity_id])
    return {
        row.step: _state(row, activities.get(row.activity_id) if row.activity_id else None) for row in rows
    }


def _state(step: StepRun, activity: Activity | None) -> StepPicture:
    if activity is None:
        detail = f"{step.branches - step.unsettled_branches} of {step.branches}" if step.branches else ""
        return StepPicture(status=step.status, detail=detail, round=step.round)
    begun, ended = activity.started_at, activity.finished_at
    detail = f"{(ended - begun).total_seconds():.1f} s" if begun and ended else ""
    return StepPicture(
        status=activity.status, detail=detail, href=page_of(Activity, activity.pk), round=step.round
    )
