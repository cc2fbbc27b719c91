"""How the months of deliverables go."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import display
from unfold.enums import ActionVariant

from activities.models import Activity
from pipelines import deliverables
from pipelines.admin.run import RUN_LABELS
from pipelines.exceptions import PipelineError
from pipelines.models import DeliverablePeriod, PipelineRun
from pipelines.models.deliverable import PeriodState
from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import (
    NOTHING,
    RecordAdmin,
    ShownInline,
    TenantFilter,
    actor_of,
    as_json,
    badge,
    link_to,
)

# The runs of a month, below it.


class RunInline(ShownInline):
    """The runs in the order of the plan."""

    model = PipelineRun
    fields = ("run_link", "state", "unsettled", "started_at", "finished_at")
    readonly_fields = fields
    ordering = ("plan_item", "pk")
    per_page = 50
    verbose_name_plural = "Runs"

    def get_queryset(self, request: HttpRequest) -> QuerySet[PipelineRun]:
        rows: QuerySet[PipelineRun] = super().get_queryset(request)
        return rows.select_related("version__pipeline").defer("input", "version__definition")

    @display(description="Run")
    def run_link(self, run: PipelineRun) -> SafeString:
        return link_to(run, run.pk, run.name or run.version.pipeline.name)

    @display(description="Status")
    def state(self, run: PipelineRun) -> SafeString:
        return badge(run.status, RUN_LABELS.get(run.status, ""))


PERIOD_LABELS = {
    PeriodState.PLANNING.value: "warning",
    PeriodState.ACTIVE.value: "info",
    PeriodState.COMPLETED.value: "success",
}
ASK_AGAIN = Action(
    "ask_again_selected",
    "Ask the planner again",
    "Asked again",
    "For periods whose planner came to no plan. What people were asked because of that is withdrawn.",
    (PipelineError,),
    path="ask-again",
    icon="replay",
    do=lambda request, row, notes: deliverables.ask_again(row.tenant_id, row.pk, actor=actor_of(request)),
)
CANCEL = Action(
    "cancel_selected",
    "Cancel periods",
    "Cancelled",
    "These periods end, and with them their planner and every run of theirs that has not ended.",
    (PipelineError,),
    notes="Reason",
    danger=True,
    path="cancel",
    icon="cancel",
    label="Cancel",
    button="Cancel the period",
    variant=ActionVariant.DANGER,
    do=lambda request, row, reason: deliverables.cancel_period(
        row.tenant_id, row.pk, actor=actor_of(request), reason=reason
    ),
)


@admin.register(DeliverablePeriod)
class DeliverablePeriodAdmin(ActionsAdmin, RecordAdmin):
    list_display = ("month", "deliverable_link", "tenant", "state", "progress", "risk", "ended_at")
    list_filter = (TenantFilter, "status", "at_risk")
    list_select_related = ("tenant", "deliverable")
    search_fields = ("deliverable__key", "deliverable__name", "tenant__slug")
    ordering = ("-starts_on", "-pk")
    stands_for = {
        "planner_link": "planner_activity_id",
        "faults": "plan_faults",
        "plan_text": "plan",
        "risk": "at_risk_reason",
    }
    fields = (
        "deliverable_link", "tenant", "starts_on", "ends_on", "state", "progress", "risk", "planner_link", "faults",
        "plan_text", "created_at", "ended_at", "id",
    )  # fmt: skip
    readonly_fields = fields
    inlines = (RunInline,)
    row_actions = (ASK_AGAIN, CANCEL)

    @display(description="Month", ordering="starts_on")
    def month(self, period: DeliverablePeriod) -> str:
        return f"{period.starts_on:%B %Y}"

    @display(description="Deliverable")
    def deliverable_link(self, period: DeliverablePeriod) -> SafeString:
        return link_to(period.deliverable, period.deliverable_id, period.deliverable)

    @display(description="Status")
    def state(self, period: DeliverablePeriod) -> SafeString:
        return badge(period.status, PERIOD_LABELS.get(period.status, ""))

    @display(description="Progress")
    def progress(self, period: DeliverablePeriod) -> SafeString:
        if not period.planned:
            return NOTHING
        ended = period.completed + period.failed + period.cancelled
        told = f"{period.completed} of {period.planned} completed"
        told += f", {period.failed} failed" if period.failed else ""
        told += f", {period.cancelled} cancelled" if period.cancelled else ""
        return format_html(
            '<progress max="{}" value="{}">{}</progress> {}', period.planned, ended, told, told
        )

    @display(description="At risk")
    def risk(self, period: DeliverablePeriod) -> SafeString:
        return (
            format_html("{} {}", badge("at risk", "danger"), period.at_risk_reason)
            if period.at_risk
            else NOTHING
        )

    @display(description="Planner")
    def planner_link(self, period: DeliverablePeriod) -> SafeString:
        return link_to(Activity, period.planner_activity_id, period.planner_activity_id)

    @display(description="What was wrong with the last plan")
    def faults(self, period: DeliverablePeriod) -> SafeString:
        told = ((fault["path"], fault["message"]) for fault in period.plan_faults)
        return format_html('<ul class="orc-faults">{}</ul>', format_html_join("", "<li>{} {}</li>", told))

    @display(description="Plan")
    def plan_text(self, period: DeliverablePeriod) -> SafeString:
        return format_html('<pre class="orc-output">{}</pre>', as_json(period.plan))

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        found = self.get_object(request, object_id)
        if found is None or found.status in (PeriodState.COMPLETED, PeriodState.CANCELLED):
            return []
        offered: list[Any] = super().get_actions_detail(request, object_id)
        return [each for each in offered if found.status == PeriodState.PLANNING or each.path != "ask-again"]
