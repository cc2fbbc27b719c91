"""Schedules: edited in a form that tells beforehand what will happen, switched, and run by hand."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import admin, messages
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST
from unfold.decorators import action, display

from pipelines import timing
from pipelines.admin.executions import EXECUTION_LABELS, ExecutionInline, FiringInline
from pipelines.admin.schedule_form import ScheduleForm
from pipelines.admin.schedule_preview import preview_of
from pipelines.exceptions import PipelineError
from pipelines.models import Pipeline, Schedule, ScheduleExecution
from pipelines.schedules import forecast, plans, running, saving
from pipelines.schedules.errors import InvalidSchedule, ScheduleChanged, ScheduleExists
from tenants import clock
from tenants.admin.bases import NOTHING, PlatformAdmin, TenantFilter, actor_of, badge, link_to
from tenants.admin.deeds import Deed, DeedsAdmin

LISTED_TIMES = 5

RUN = Deed(
    "run_selected",
    "Run now",
    "Started",
    "Each of these runs once, now, whether it is enabled or not. Its times stay as they are.",
    (PipelineError, InvalidSchedule),
)

SECTIONS = (
    (None, {"fields": ("tenant", ("name", "enabled"), "description")}),
    ("Target", {"fields": ("target_type", ("agent_role", "pipeline"))}),
    (
        "Timing",
        {
            "fields": (
                ("repeat", "timezone"),
                ("cron", "interval_ms"),
                ("start_at", "end_at"),
                ("dst_gap", "dst_fold", "jitter_seconds"),
            )
        },
    ),
    ("Parameters", {"fields": ("params",)}),
    ("Preview", {"fields": ("preview",)}),
    (
        "Jobs",
        {
            "description": "What is left empty comes from the agent's settings.",
            "fields": (
                ("priority", "timeout_seconds"),
                ("retry_max_attempts", "retry_strategy"),
                ("retry_base_seconds", "retry_max_seconds"),
                ("retry_multiplier", "retry_jitter"),
            ),
        },
    ),
    (
        "Policies",
        {"fields": (("overlap", "after_once"), ("catch_up_policy", "catch_up_most"), "expected")},
    ),
)


@admin.register(Schedule)
class ScheduleAdmin(DeedsAdmin, PlatformAdmin):
    form = ScheduleForm
    list_display = ("name", "tenant", "target", "timing", "next_runs", "enabled", "last_result")
    list_filter = (TenantFilter, "enabled", "repeat", "target_type")
    list_select_related = ("tenant", "pipeline")
    search_fields = ("name", "description", "agent_role", "tenant__slug")
    ordering = ("name",)
    autocomplete_fields = ("tenant", "pipeline")
    fieldsets = SECTIONS
    inlines = (ExecutionInline, FiringInline)
    actions = ("enable_selected", "disable_selected", "run_selected")
    actions_detail = ("run",)

    class Media:
        js = ("pipelines/schedule.js",)
        css = {"all": ("pipelines/schedule.css",)}

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return PlatformAdmin.has_delete_permission(self, request, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: Schedule | None = None) -> tuple[str, ...]:
        return ("tenant", "preview") if obj else ("preview",)

    def get_inlines(self, request: HttpRequest, obj: Schedule | None) -> Any:
        return self.inlines if obj else ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        newest = ScheduleExecution.objects.filter(schedule_id=OuterRef("pk")).order_by("-started_at")
        rows: QuerySet[Schedule] = super().get_queryset(request)
        return rows.annotate(last_status=Subquery(newest.values("status")[:1]))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_POST(self.preview_view))
        return [path("preview/", view, name="pipelines_schedule_preview"), *super().get_urls()]

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """What the form, as it is filled in, would come to: a piece of a page. Nothing is written."""
        if not self.has_change_permission(request):
            return HttpResponseForbidden()
        return HttpResponse(render_to_string("admin/pipelines/schedule/preview.html", preview_of(request)))

    @display(description="What will happen")
    def preview(self, schedule: Schedule) -> SafeString:
        known = "" if schedule._state.adding else schedule.pk
        return format_html(
            '<div class="orc-preview" id="schedule-preview" data-url="{}" data-schedule="{}">'
            '<button type="button" class="orc-button" data-preview>Preview</button>'
            '<div aria-live="polite" data-answer></div></div>',
            reverse("admin:pipelines_schedule_preview"),
            known,
        )

    @display(description="Target")
    def target(self, schedule: Schedule) -> SafeString | str:
        if schedule.pipeline_id is None:
            return schedule.agent_role or NOTHING
        return link_to(Pipeline, schedule.pipeline_id, schedule.pipeline)

    @display(description="When")
    def timing(self, schedule: Schedule) -> str:
        try:
            return timing.in_words(plans.timing_of(schedule))
        except (timing.TimingError, ValueError):
            return "cannot be read"

    @display(description="Next runs, in its zone")
    def next_runs(self, schedule: Schedule) -> SafeString:
        if not schedule.enabled or schedule.next_run_at is None:
            return NOTHING
        try:
            moments = forecast.coming(schedule, count=LISTED_TIMES, now=clock.now())
        except (timing.TimingError, ValueError):
            return NOTHING
        zone = ZoneInfo(schedule.timezone)
        lines = [f"{moment.astimezone(zone):%a %d %b %Y %H:%M:%S}".removesuffix(":00") for moment in moments]
        if not lines:
            return NOTHING
        return format_html(
            '<b>{}</b><br><small class="orc-then">{}</small>', lines[0], SafeString("<br>".join(lines[1:]))
        )

    @display(description="Last result")
    def last_result(self, schedule: Any) -> SafeString:
        if not schedule.last_status:
            return NOTHING
        return badge(schedule.last_status, EXECUTION_LABELS.get(schedule.last_status, ""))

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        try:
            response: HttpResponse = super().changeform_view(request, object_id, form_url, extra_context)
        except (InvalidSchedule, ScheduleExists, ScheduleChanged) as refusal:
            # Somebody else was faster, after the form had been judged.
            messages.error(
                request, f"Not saved: {refusal} Go back in the browser to copy what you filled in."
            )
            return HttpResponseRedirect(request.path)
        return response

    def save_model(self, request: HttpRequest, obj: Schedule, form: ScheduleForm, change: bool) -> None:
        """As the API does it: its transaction belongs to the tenant, the one around us to the platform."""
        tenant, actor = form.tenant, actor_of(request)
        assert tenant is not None, "a form without a tenant is not valid"  # noqa: S101
        if change:
            saving.change(
                tenant.pk, obj.pk, form.whole, actor=actor, expected_version=form.cleaned_data.get("expected")
            )
        else:
            obj.pk = saving.create(tenant.pk, form.members, actor=actor).pk
        obj._state.adding = False
        obj.refresh_from_db()

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        saving.delete(obj.tenant_id, obj.pk, actor=actor_of(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        for schedule in queryset:
            self.delete_model(request, schedule)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """The record of its times goes with a schedule, and its executions stay; nothing else needs a permission."""
        return [str(schedule) for schedule in objs], {"schedules": len(objs)}, set(), []

    @admin.action(description="Enable", permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._switch(request, queryset, on=True)

    @admin.action(description="Disable", permissions=["change"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._switch(request, queryset, on=False)

    @admin.action(description="Run now", permissions=["change"])
    def run_selected(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> HttpResponse | None:
        actor = actor_of(request)
        return self.perform(
            request, queryset, RUN, lambda row, notes: running.run_now(row.tenant_id, row.pk, actor=actor)
        )

    @action(description="Run now", url_path="run", icon="play_arrow", permissions=["change"])
    def run(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.perform_one(request, object_id, self.run_selected)

    def _switch(self, request: HttpRequest, queryset: QuerySet[Schedule], *, on: bool) -> None:
        word = "Enabled" if on else "Disabled"
        for schedule in queryset.exclude(enabled=on):
            try:
                saving.set_enabled(schedule.tenant_id, schedule.pk, on, actor=actor_of(request))
            except PipelineError as refusal:
                messages.warning(request, f"Skipped {schedule}: {refusal}")
                continue
            self.log_change(request, schedule, f"{word}.")
            messages.success(request, f"{word}: {schedule}.")
