"""Runs of pipelines and the states of their steps."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString
from unfold.decorators import display
from unfold.enums import ActionVariant

from activities.models import Activity
from pipelines import cancellation, selectors
from pipelines.admin.pipeline import draw_version
from pipelines.models import DeliverablePeriod, PipelineRun, PipelineVersion, StepRun
from pipelines.models.run import RunState
from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import RecordAdmin, ShownInline, actor_of, badge_of, link_of


def cancel_action(
    what: str, explanation: str, cancel: Callable[..., Any], *, open_in: Collection[str]
) -> Action:
    """Return the action that cancels `what`, such as runs, with all that belongs to them. `open_in` are their statuses until they end."""
    return Action(
        "cancel",
        "Cancelled",
        explanation,
        title=f"Cancel {what}",
        notes="Reason",
        danger=True,
        icon="cancel",
        button=f"Cancel the {what.removesuffix('s')}",
        variant=ActionVariant.DANGER,
        offered=lambda row: row.status in open_in,
        do=lambda request, row, reason: cancel(row.tenant_id, row.pk, actor=actor_of(request), reason=reason),
    )


CANCEL = cancel_action(
    "runs",
    "This cancels these runs and all of their activities that have not ended.",
    cancellation.cancel_run,
    open_in=(RunState.RUNNING,),
)


class StepInline(ShownInline):
    model = StepRun
    fields = ("step", "branch", "state", "reason", "round", "activity_link", "settled_at")
    per_page = 50
    verbose_name_plural = "Steps"

    state = badge_of("status", pending="")
    activity_link = link_of("activity_id", Activity, "Activity")


@admin.register(PipelineRun)
class PipelineRunAdmin(ActionsAdmin, RecordAdmin):
    list_display = ("started_at", "title", "tenant", "state", "unsettled", "created_by", "finished_at")
    list_filter = ("status",)
    list_select_related = ("version__pipeline",)
    search_fields = ("version__pipeline__key",)
    fields = (
        "state", "picture", "version_link", "name", "tenant", "params", "input", "priority", "unsettled", "deliverable_id",
        "period_link", "created_by", "started_at", "finished_at", "id",
    )  # fmt: skip
    inlines = (StepInline,)
    row_actions = (CANCEL,)

    state = badge_of("status")
    version_link = link_of(
        "version_id",
        PipelineVersion,
        "Pipeline",
        text=lambda run: f"{run.version.pipeline.name}, {run.version}",
    )
    period_link = link_of("period_id", DeliverablePeriod, "Period", text=lambda run: run.period)

    @display(description="Pipeline")
    def title(self, run: PipelineRun) -> str:
        return f"{run.version.pipeline.name}, {run.version}"

    @display(description="Steps")
    def picture(self, run: PipelineRun) -> SafeString:
        steps = selectors.steps_of(run.tenant_id, [run])[run.pk]
        return draw_version(run.version_id, steps, title=f"{self.title(run)}, {run.status}")


@admin.register(StepRun)
class StepRunAdmin(RecordAdmin):
    list_display = ("step", "branch", "run_link", "tenant", "state", "reason", "round", "settled_at")
    list_filter = ("status",)
    list_select_related = ("run",)
    search_fields = ("step",)

    run_link = link_of("run_id", PipelineRun, "Run")
    state = badge_of("status", pending="")
    activity_link = link_of("activity_id", Activity, "Activity")
