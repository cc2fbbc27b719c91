"""Deliverables and how their months go."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.admin import TabularInline
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from activities.models import Activity
from pipelines import deliverables, periods
from pipelines.admin.run import RUN_LABELS
from pipelines.exceptions import PipelineError
from pipelines.models import Deliverable, DeliverablePeriod, PipelineRun
from pipelines.models.deliverable import DeliverableState, PeriodState
from tenants.admin.bases import NOTHING, KeptAdmin, RecordAdmin, TenantFilter, as_json, badge, link_to
from tenants.admin.deeds import Deed, DeedsAdmin

DELIVERABLE_LABELS = {DeliverableState.ACTIVE.value: "success", DeliverableState.PAUSED.value: "warning"}
PERIOD_LABELS = {
    PeriodState.PLANNING.value: "warning",
    PeriodState.ACTIVE.value: "info",
    PeriodState.COMPLETED.value: "success",
}

START = Deed(
    "start_selected",
    "Start the running month",
    "Started",
    "Each of these gets its period of the running month (UTC), if it has none yet, and the planner is asked for a plan.",
    (PipelineError,),
)
ASK_AGAIN = Deed(
    "ask_again_selected",
    "Ask the planner again",
    "Asked again",
    "For periods whose planner came to no plan. What people were asked because of that is withdrawn.",
    (PipelineError,),
)
CANCEL = Deed(
    "cancel_selected",
    "Cancel periods",
    "Cancelled",
    "These periods end, and with them their planner and every run of theirs that has not ended.",
    (PipelineError,),
    notes="Reason",
    danger=True,
)


class DeliverableForm(forms.ModelForm):
    def clean_pipelines(self) -> list[str]:
        keys = self.cleaned_data["pipelines"]
        if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
            raise forms.ValidationError('This is a list of keys, such as ["content-brief"].')
        return keys

    def clean_params(self) -> dict[str, Any]:
        params = self.cleaned_data["params"] or {}
        if not isinstance(params, dict):
            raise forms.ValidationError("Parameters are an object.")
        return params

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        tenant = self.instance.tenant if self.instance.tenant_id else values.get("tenant")
        if tenant is not None and "pipelines" in values:
            for key in sorted(deliverables.unknown_pipelines(tenant.pk, values["pipelines"])):
                self.add_error("pipelines", f"There is no pipeline {key!r} of this tenant.")
        return values


@admin.register(Deliverable)
class DeliverableAdmin(DeedsAdmin, KeptAdmin):
    form = DeliverableForm
    list_display = ("name", "key", "tenant", "state", "next_on", "updated_at")
    list_filter = (TenantFilter, "status")
    list_select_related = ("tenant",)
    search_fields = ("key", "name", "tenant__slug")
    autocomplete_fields = ("tenant",)
    fields = (
        "tenant",
        "key",
        "name",
        "description",
        "status",
        "pipelines",
        "params",
        "next_on",
        "periods_link",
    )
    actions = ("start_selected",)
    actions_detail = ("start",)

    def get_readonly_fields(self, request: HttpRequest, obj: Deliverable | None = None) -> tuple[str, ...]:
        shown = ("next_on", "periods_link")
        # Programs name it by its key, so it stays what it is.
        return ("tenant", "key", *shown) if obj else shown

    @display(description="Status")
    def state(self, deliverable: Deliverable) -> SafeString:
        return badge(deliverable.status, DELIVERABLE_LABELS.get(deliverable.status, ""))

    @display(description="Periods")
    def periods_link(self, deliverable: Deliverable) -> SafeString:
        if deliverable._state.adding:
            return NOTHING
        newest = deliverable.periods.order_by("-starts_on")[:12]
        links = format_html_join(", ", "{}", ((link_to(period, period.pk, period),) for period in newest))
        return links or NOTHING

    def save_model(self, request: HttpRequest, obj: Deliverable, form: Any, change: bool) -> None:
        """As the API does it: its transaction belongs to the tenant, the one around us to the platform."""
        values = {
            name: form.cleaned_data[name] for name in ("name", "description", "status", "pipelines", "params")
        }
        if change:
            deliverables.change(obj.tenant_id, obj.pk, values)
        else:
            made, _ = deliverables.create(obj.tenant_id, {"key": obj.key, **values})
            obj.pk = made.pk
        obj._state.adding = False
        obj.refresh_from_db()

    @admin.action(description="Start the running month", permissions=["change"])
    def start_selected(self, request: HttpRequest, queryset: QuerySet[Deliverable]) -> HttpResponse | None:
        today, actor = datetime.now(UTC).date(), _actor(request)
        return self.perform(
            request, queryset, START,
            lambda row, notes: periods.start_period(row.tenant_id, row.pk, today=today, actor=actor),
        )  # fmt: skip

    @action(
        description="Start the running month", url_path="start", icon="event_upcoming", permissions=["change"]
    )
    def start(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.perform_one(request, object_id, self.start_selected)


class RunInline(TabularInline):
    """The runs in the order of the plan."""

    model = PipelineRun
    fields = ("run_link", "state", "unsettled", "started_at", "finished_at")
    readonly_fields = fields
    ordering = ("plan_item", "pk")
    extra = 0
    per_page = 50
    can_delete = False
    hide_title = True
    verbose_name_plural = "Runs"

    def get_queryset(self, request: HttpRequest) -> QuerySet[PipelineRun]:
        rows: QuerySet[PipelineRun] = super().get_queryset(request)
        return rows.select_related("version__pipeline").defer("input", "version__definition")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @display(description="Run")
    def run_link(self, run: PipelineRun) -> SafeString:
        return link_to(run, run.pk, run.name or run.version.pipeline.name)

    @display(description="Status")
    def state(self, run: PipelineRun) -> SafeString:
        return badge(run.status, RUN_LABELS.get(run.status, ""))


@admin.register(DeliverablePeriod)
class DeliverablePeriodAdmin(DeedsAdmin, RecordAdmin):
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
    actions = ("ask_again_selected", "cancel_selected")
    actions_detail = ("ask_again", "cancel")

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

    @admin.action(description="Ask the planner again", permissions=["view"])
    def ask_again_selected(
        self, request: HttpRequest, queryset: QuerySet[DeliverablePeriod]
    ) -> HttpResponse | None:
        actor = _actor(request)
        return self.perform(
            request,
            queryset,
            ASK_AGAIN,
            lambda row, notes: periods.ask_again(row.tenant_id, row.pk, actor=actor),
        )

    @admin.action(description="Cancel", permissions=["view"])
    def cancel_selected(
        self, request: HttpRequest, queryset: QuerySet[DeliverablePeriod]
    ) -> HttpResponse | None:
        actor = _actor(request)
        return self.perform(
            request,
            queryset,
            CANCEL,
            lambda row, reason: periods.cancel_period(row.tenant_id, row.pk, actor=actor, reason=reason),
        )

    @action(description="Ask the planner again", url_path="ask-again", icon="replay", permissions=["view"])
    def ask_again(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.perform_one(request, object_id, self.ask_again_selected)

    @action(
        description="Cancel the period",
        url_path="cancel",
        icon="cancel",
        permissions=["view"],
        variant=ActionVariant.DANGER,
    )
    def cancel(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.perform_one(request, object_id, self.cancel_selected)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        found = self.get_object(request, object_id)
        if found is None or found.status in (PeriodState.COMPLETED, PeriodState.CANCELLED):
            return []
        offered: list[Any] = super().get_actions_detail(request, object_id)
        return [each for each in offered if found.status == PeriodState.PLANNING or each.path != "ask-again"]


def _actor(request: HttpRequest) -> str:
    return f"user:{request.user.get_username()}"
