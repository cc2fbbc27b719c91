"""Deliverables and their periods, with starting and cancelling a period by hand."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import display

from activities.models import Activity
from pipelines import deliverables
from pipelines.admin.run import cancel_action
from pipelines.models import Deliverable, DeliverablePeriod, PipelineRun
from pipelines.models.deliverable import PeriodState
from tenants import clock
from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import (
    NOTHING,
    RecordAdmin,
    SeenForm,
    ShownInline,
    UndeletableAdmin,
    actor_of,
    badge,
    badge_of,
    json_of,
    link_of,
    link_to,
)


class DeliverableForm(SeenForm):
    def clean_pipelines(self) -> list[str]:
        keys = self.cleaned_data["pipelines"]
        if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
            raise forms.ValidationError('Enter a list of keys, such as ["content-brief"].')
        return keys

    def clean_params(self) -> dict[str, Any]:
        params = self.cleaned_data["params"] or {}
        if not isinstance(params, dict):
            raise forms.ValidationError("Enter an object.")
        return params

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        tenant = self.instance.tenant if self.instance.tenant_id else values.get("tenant")
        if tenant is not None and "pipelines" in values:
            keys, params = values["pipelines"], values.get("params", {})
            for key in sorted(deliverables.find_unknown_pipelines(tenant.pk, keys)):
                self.add_error("pipelines", f"There is no pipeline {key!r} of this tenant.")
            for text in deliverables.reserved_errors(tenant.pk, keys, params).values():
                self.add_error("params", text)
        return values


START = Action(
    "start",
    "Started",
    "This starts the period of the current month (UTC) of each deliverable that has none yet, and asks the planner for a plan.",
    title="Start the current month",
    icon="event_upcoming",
    permission="change",
    do=lambda request, row, notes: deliverables.start_period(
        row.tenant_id, row.pk, today=clock.now().date(), actor=actor_of(request)
    ),
)


@admin.register(Deliverable)
class DeliverableAdmin(ActionsAdmin, UndeletableAdmin):
    form = DeliverableForm
    saves_elsewhere = True
    list_display = ("name", "key", "tenant", "state", "next_on", "updated_at")
    list_filter = ("status",)
    search_fields = ("key", "name")
    fields = (
        "tenant",
        "key",
        "name",
        "description",
        "status",
        "pipelines",
        "params",
        "target",
        "next_on",
        "periods_link",
    )
    readonly_fields = ("next_on", "periods_link")
    fixed_fields = ("tenant", "key")  # because programs refer to the key
    row_actions = (START,)

    state = badge_of("status", active="success")

    @display(description="Periods")
    def periods_link(self, deliverable: Deliverable) -> SafeString:
        if deliverable._state.adding:
            return NOTHING
        newest = deliverable.periods.order_by("-starts_on")[:12]
        links = format_html_join(", ", "{}", ((link_to(period, period.pk, period),) for period in newest))
        return links or NOTHING

    def save_model(self, request: HttpRequest, obj: Deliverable, form: Any, change: bool) -> None:
        """Save as the API does, in a transaction of the tenant; the surrounding one belongs to the platform."""
        values = {
            name: form.cleaned_data[name]
            for name in ("name", "description", "status", "pipelines", "params", "target")
        }
        if change:
            deliverables.change(obj.tenant_id, obj.pk, values)
            self.show_saved(obj, obj.pk)
        else:
            deliverable, _ = deliverables.create(obj.tenant_id, {"key": obj.key, **values})
            self.show_saved(obj, deliverable.pk)


class RunInline(ShownInline):
    model = PipelineRun
    fields = ("run_link", "state", "unsettled", "started_at", "finished_at")
    ordering = ("plan_item", "pk")
    per_page = 50
    verbose_name_plural = "Runs"

    state = badge_of("status")

    def get_queryset(self, request: HttpRequest) -> QuerySet[PipelineRun]:
        rows: QuerySet[PipelineRun] = super().get_queryset(request)
        return rows.select_related("version__pipeline").defer("input", "version__definition")

    @display(description="Run")
    def run_link(self, run: PipelineRun) -> SafeString:
        return link_to(run, run.pk, run.name or run.version.pipeline.name)


ASK_AGAIN = Action(
    "ask-again",
    "Asked again",
    "Only for periods whose planner produced no plan. Open questions to people about it are cancelled.",
    title="Ask the planner again",
    icon="replay",
    offered=lambda period: period.status == PeriodState.PLANNING,
    do=lambda request, row, notes: deliverables.ask_again(row.tenant_id, row.pk, actor=actor_of(request)),
)
CANCEL = cancel_action(
    "periods",
    "This cancels these periods, their planners, and all of their runs that have not ended.",
    deliverables.cancel_period,
    open_in=(PeriodState.PLANNING, PeriodState.ACTIVE),
)


@admin.register(DeliverablePeriod)
class DeliverablePeriodAdmin(ActionsAdmin, RecordAdmin):
    list_display = ("month", "deliverable_link", "tenant", "state", "progress", "risk", "ended_at")
    list_filter = ("status", "at_risk")
    list_select_related = ("deliverable",)
    search_fields = ("deliverable__key", "deliverable__name")
    ordering = ("-starts_on", "-pk")
    stands_for = {"errors_of_plan": "plan_faults", "risk": "at_risk_reason"}
    fields = (
        "deliverable_link", "tenant", "starts_on", "ends_on", "state", "progress", "risk", "planner_link", "errors_of_plan",
        "plan_text", "created_at", "ended_at", "id",
    )  # fmt: skip
    inlines = (RunInline,)
    row_actions = (ASK_AGAIN, CANCEL)

    deliverable_link = link_of(
        "deliverable_id", Deliverable, "Deliverable", text=lambda period: period.deliverable
    )
    state = badge_of("status")
    planner_link = link_of("planner_activity_id", Activity, "Planner")
    plan_text = json_of("plan", "Plan")

    @display(description="Month", ordering="starts_on")
    def month(self, period: DeliverablePeriod) -> str:
        return f"{period.starts_on:%B %Y}"

    @display(description="Progress")
    def progress(self, period: DeliverablePeriod) -> SafeString:
        if not period.planned:
            return NOTHING
        ended = period.completed + period.failed + period.cancelled
        counts = f"{period.completed} of {period.planned} completed"
        counts += f", {period.failed} failed" if period.failed else ""
        counts += f", {period.cancelled} cancelled" if period.cancelled else ""
        return format_html(
            '<progress max="{}" value="{}">{}</progress> {}', period.planned, ended, counts, counts
        )

    @display(description="At risk")
    def risk(self, period: DeliverablePeriod) -> SafeString:
        return (
            format_html("{} {}", badge("at risk", "danger"), period.at_risk_reason)
            if period.at_risk
            else NOTHING
        )

    @display(description="Errors of the last plan")
    def errors_of_plan(self, period: DeliverablePeriod) -> SafeString:
        errors = ((error["path"], error["message"]) for error in period.plan_faults)
        return format_html('<ul class="orc-faults">{}</ul>', format_html_join("", "<li>{} {}</li>", errors))
