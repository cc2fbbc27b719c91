"""Schedules: a form with a preview, switching on and off, and runs by hand."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden
from django.template.loader import render_to_string
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST
from unfold.decorators import display
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from agents import configuration, scheduler_settings
from pipelines import timing
from pipelines.admin.executions import ExecutionInline, FiringInline
from pipelines.admin.pipeline import SwitchedAdmin
from pipelines.definition.shapes import RetryStrategy
from pipelines.exceptions import AlreadyExists, NotFound
from pipelines.models import Pipeline, Schedule, ScheduleExecution
from pipelines.schedules import editing, preview, system_jobs
from pipelines.schedules.editing import InvalidSchedule
from pipelines.schedules.preview import Forecast
from tenants import clock
from tenants.admin.actions import Action
from tenants.admin.bases import CHANGED, NOTHING, StrictJSONField, actor_of, badge, identity_of, link_to
from tenants.context import tenant_scope
from tenants.exceptions import PreconditionFailed
from tenants.models import Tenant
from tenants.time_zones import zone_names

# The form of a schedule. It converts its fields to the members of the API, and checks them with the same function.


#: Members of the retry policy, each with its own field.
RETRY = ("max_attempts", "strategy", "base_seconds", "multiplier", "max_seconds", "jitter")
CATCH_UP = [
    ("latest", "the latest missed time"),
    ("none", "no missed times"),
    ("up_to", "the latest missed times, at most:"),
]
STRATEGIES = [("", "from the agent's settings"), *((name, name) for name in RetryStrategy)]
WALL_TIMES = ("start_at", "end_at")
WALL_TIME = "%Y-%m-%dT%H:%M:%S"


def _number(**attributes: Any) -> UnfoldAdminIntegerFieldWidget:
    return UnfoldAdminIntegerFieldWidget(attrs=attributes)


def _fraction(label: str, **attributes: Any) -> forms.FloatField:
    return forms.FloatField(required=False, label=label, widget=_number(step="any", **attributes))


class ScheduleForm(forms.ModelForm):
    """Times are in the schedule's zone. `members` are the values of the form, even if they are invalid."""

    timezone = forms.ChoiceField(widget=UnfoldAdminSelectWidget, help_text="The zone of cron, start and end.")
    start_at = forms.CharField(
        required=False,
        label="Start",
        widget=UnfoldAdminTextInputWidget(attrs={"type": "datetime-local", "step": "1"}),
        help_text="The time of a one-time schedule. A repeating schedule does not run before it, and intervals count from it.",
    )
    end_at = forms.CharField(
        required=False,
        label="End",
        widget=UnfoldAdminTextInputWidget(attrs={"type": "datetime-local", "step": "1"}),
        help_text="It does not run after this time.",
    )
    interval_ms = forms.IntegerField(required=False, label="Interval (ms)", widget=_number(min=1000))
    agent_role = forms.ChoiceField(required=False, label="Agent", widget=UnfoldAdminSelectWidget)
    params = StrictJSONField(
        required=False,
        label="Parameters",
        initial=dict,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 8, "class": "orc-code", "spellcheck": "false"}),
        help_text='JSON. A data source creates a job for each row: {"tickerId": "db:ticker:all:id?enabled=true&batchSize=10"}.',
    )
    retry_max_attempts = forms.IntegerField(required=False, label="Attempts", widget=_number(min=1, max=50))
    retry_strategy = forms.ChoiceField(
        required=False, label="Backoff", choices=STRATEGIES, widget=UnfoldAdminSelectWidget
    )
    retry_base_seconds = _fraction("First delay (s)", min=0)
    retry_max_seconds = _fraction("Longest delay (s)", min=0)
    retry_multiplier = _fraction("Multiplier", min=1)
    retry_jitter = _fraction("Jitter of the delay", min=0, max=1)
    catch_up_policy = forms.ChoiceField(
        required=False, label="After an outage, run", choices=CATCH_UP, widget=UnfoldAdminSelectWidget
    )
    catch_up_most = forms.IntegerField(required=False, label="At most", widget=_number(min=1, max=1000))
    expected = forms.IntegerField(widget=forms.HiddenInput, required=False)

    class Meta:
        model = Schedule
        fields = (
            "tenant", "name", "description", "target_type", "pipeline", "repeat", "cron", "dst_gap", "dst_fold", "jitter_seconds",
            "timeout_seconds", "priority", "overlap", "after_once", "enabled",
        )  # fmt: skip
        labels = {
            "dst_gap": "Times that do not exist",
            "dst_fold": "Times that occur twice",
            "jitter_seconds": "Jitter (s)",
            "timeout_seconds": "Timeout (s)",
            "overlap": "If the last execution has not ended",
            "after_once": "After a one-time run",
        }
        help_texts = {
            "priority": "1 (urgent) to 20 (background).",
            "jitter_seconds": "Fires up to this many seconds late.",
            "overlap": "An execution that waits for a person has not ended.",
        }
        widgets = {"description": UnfoldAdminTextareaWidget(attrs={"rows": 2})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.members: dict[str, Any] = {}  # the values of the form, after `clean`
        self.checked: set[str] = set()  # fields with errors of the schedule, not of the form
        super().__init__(*args, **kwargs)
        schedule = self.instance
        if schedule._state.adding:
            self.initial.setdefault("timezone", scheduler_settings.current().timezone)
        else:
            self._fill(schedule)
        roles = sorted({*configuration.list_roles(), *filter(None, [schedule.agent_role])})
        self._field("agent_role").choices = [("", "---------"), *((role, role) for role in roles)]
        self._field("timezone").choices = [(name, name) for name in sorted(zone_names())]
        for name in ("timeout_seconds", "jitter_seconds", "priority"):
            if name in self.fields:  # a read-only page has none
                self.fields[name].required = False

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        tenant = self.tenant
        self.members = self._members()  # first, because an error removes the value of its field
        if tenant is None:
            return values
        with tenant_scope(tenant.pk):
            checked = editing.check(tenant.pk, self.members)
            name = checked.columns["name"]
            same_name = Schedule.objects.for_tenant(tenant.pk).filter(name=name).exclude(pk=self.instance.pk)
            if name and same_name.exists():
                self.add_error("name", f"There is a schedule {name!r} already.")
        for error in (*checked.errors, *checked.errors_of_work):
            field = self.field_of(error.path)
            if field is None or field in self.checked or field not in self.errors:
                self.checked |= {field} if field else set()
                self.add_error(field, str(error) if field is None or error.path != field else error.message)
        if values.get("expected") not in (None, self.initial.get("expected")):
            self.add_error(None, CHANGED)
        return values

    def _post_clean(self) -> None:
        """Do nothing: `editing` writes the row from the members."""

    @property
    def tenant(self) -> Tenant | None:
        return self.instance.tenant if self.instance.tenant_id else self.cleaned_data.get("tenant")

    @property
    def all_members(self) -> dict[str, Any]:
        """The members, with None for empty ones, so that a change clears them as well."""
        return {**dict.fromkeys(editing.MEMBERS), **self.members}

    def _members(self) -> dict[str, Any]:
        """Return the members in the form of the API. Unreadable values are left out; their fields have errors."""
        values = self.cleaned_data
        pipeline = values.get("pipeline")
        members = {name: values.get(name) for name in editing.MEMBERS if values.get(name) not in (None, "")}
        members |= {"enabled": bool(values.get("enabled")), "params": values.get("params") or {}}
        if pipeline is not None:
            members["pipeline"] = (
                pipeline.key if self.tenant and pipeline.tenant_id == self.tenant.pk else f"{pipeline}"
            )
        members |= {name: self._moment(name) for name in WALL_TIMES if values.get(name)}
        retry = {name: values.get(f"retry_{name}") for name in RETRY}
        members["retry"] = {name: value for name, value in retry.items() if value not in (None, "")}
        policy = values.get("catch_up_policy") or "latest"
        members["catch_up"] = {"up_to": values.get("catch_up_most")} if policy == "up_to" else policy
        # The form always has the fields of both kinds of targets and of times.
        other = {"agent": "pipeline", "pipeline": "agent_role"}.get(str(members.get("target_type")))
        unused = {other} if other else set()
        if members.get("repeat") == "once":
            unused |= {"cron", "interval_ms", "end_at"}
        return {name: value for name, value in members.items() if name not in unused}

    def field_of(self, path: str) -> str | None:
        """Return the field that displays an error, or None for the top of the form."""
        first = path.replace("[", ".").partition(".")[0]
        if first == "retry":
            return f"retry_{path.partition('.')[2]}" if "." in path else "retry_max_attempts"
        if first == "catch_up":
            return (
                "catch_up_most" if self.cleaned_data.get("catch_up_policy") == "up_to" else "catch_up_policy"
            )
        return first if first in self.fields else None

    def _moment(self, name: str) -> Any:
        """Convert a wall time of the chosen zone to a moment. An unchanged field keeps its exact value."""
        text = self.cleaned_data[name]
        before = getattr(self.instance, name)
        if before is not None and not {name, "timezone"} & set(self.changed_data):
            return before
        try:
            wall = datetime.fromisoformat(text)
            zone = ZoneInfo(self.cleaned_data["timezone"])
        except (ValueError, KeyError):
            return text
        return wall if wall.tzinfo else wall.replace(tzinfo=zone)

    def _fill(self, schedule: Schedule) -> None:
        """Set the initial values of fields that do not match a column."""
        zone = ZoneInfo(schedule.timezone)
        for name in ("timezone", "interval_ms", "agent_role", "params"):
            self.initial[name] = getattr(schedule, name)
        for name in WALL_TIMES:
            moment = getattr(schedule, name)
            self.initial[name] = moment.astimezone(zone).strftime(WALL_TIME) if moment else ""
        for name in RETRY:
            self.initial[f"retry_{name}"] = schedule.retry.get(name)
        policy = editing.catch_up_of(schedule)
        self.initial["catch_up_policy"] = "up_to" if isinstance(policy, dict) else policy
        self.initial["catch_up_most"] = policy["up_to"] if isinstance(policy, dict) else None
        self.initial["expected"] = schedule.version

    def _field(self, name: str) -> Any:
        return self.fields[name]


LISTED_TIMES = 5

RUN = Action(
    "run",
    "Started",
    "This runs each schedule once now, even if it is disabled. Its times do not change.",
    title="Run now",
    refusals=(InvalidSchedule,),
    icon="play_arrow",
    permission="change",
    do=lambda request, row, notes: system_jobs.run_now(
        row.tenant_id, row.pk, actor=actor_of(request), requested_identity=identity_of(request)
    ),
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
                ("dst_gap", "dst_fold"),
                "jitter_seconds",
            )
        },
    ),
    ("Parameters", {"fields": ("params",)}),
    ("Preview", {"fields": ("preview",)}),
    (
        "Jobs",
        {
            "description": "Empty fields use the agent's settings.",
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
#: The columns of a schedule, for people who may not change it.
COLUMNS = (
    *SECTIONS[:4],
    ("Jobs", {"fields": (("priority", "timeout_seconds"), "retry")}),
    ("Policies", {"fields": (("overlap", "after_once"), "catch_up")}),
)


@admin.register(Schedule)
class ScheduleAdmin(SwitchedAdmin):
    form = ScheduleForm
    list_display = ("name", "tenant", "target", "timing", "next_runs", "enabled", "last_result")
    list_filter = ("enabled", "repeat", "target_type")
    list_select_related = ("pipeline",)
    search_fields = ("name", "description", "agent_role")
    ordering = ("name",)
    autocomplete_fields = ("pipeline",)
    fieldsets = SECTIONS
    readonly_fields = ("preview",)
    fixed_fields = ("tenant",)
    is_deletable = True
    inlines = (ExecutionInline, FiringInline)
    row_actions = (RUN,)
    refused_late = (InvalidSchedule, AlreadyExists, PreconditionFailed)

    class Media:
        js = ("pipelines/schedule.js",)
        css = {"all": ("pipelines/schedule.css",)}

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        is_read_only = obj is not None and not self.has_change_permission(request, obj)
        return COLUMNS if is_read_only else super().get_fieldsets(request, obj)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Times are in the tenant's time zone, if the tenant is known."""
        initial: dict[str, Any] = super().get_changeform_initial_data(request)
        with suppress(ValidationError):  # the address may name anything as its tenant
            tenant = Tenant.objects.filter(pk=initial.get("tenant", "")).first()
            initial |= {"timezone": tenant.timezone} if tenant else {}
        return initial

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        newest = ScheduleExecution.objects.filter(schedule_id=OuterRef("pk")).order_by("-started_at")
        return super().get_queryset(request).annotate(last_status=Subquery(newest.values("status")[:1]))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_POST(self.preview_view))
        return [path("preview/", view, name="pipelines_schedule_preview"), *super().get_urls()]

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """Render the preview of the schedule in the form. Stores nothing."""
        if not self.has_change_permission(request):
            return HttpResponseForbidden()
        return HttpResponse(render_to_string("admin/pipelines/schedule/preview.html", preview_of(request)))

    @display(description="Times and jobs")
    def preview(self, schedule: Schedule) -> SafeString:
        saved_id = "" if schedule._state.adding else schedule.pk
        return format_html(
            '<div class="orc-preview" id="schedule-preview" data-url="{}" data-schedule="{}">'
            '<button type="button" class="orc-button" data-preview>Preview</button>'
            '<div aria-live="polite" data-answer></div></div>',
            reverse("admin:pipelines_schedule_preview"),
            saved_id,
        )

    @display(description="Target")
    def target(self, schedule: Schedule) -> SafeString | str:
        if schedule.pipeline_id is None:
            return schedule.agent_role or NOTHING
        return link_to(Pipeline, schedule.pipeline_id, schedule.pipeline)

    @display(description="When")
    def timing(self, schedule: Schedule) -> str:
        try:
            return timing.in_words(schedule.timing())
        except (timing.TimingError, ValueError):
            return "cannot be read"

    @display(description="Next runs, in its zone")
    def next_runs(self, schedule: Schedule) -> SafeString:
        if not schedule.enabled or schedule.next_run_at is None:
            return NOTHING
        try:
            moments = preview.next_times(schedule, count=LISTED_TIMES, now=clock.now())
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
        return badge(schedule.last_status) if schedule.last_status else NOTHING

    def save_model(self, request: HttpRequest, obj: Schedule, form: ScheduleForm, change: bool) -> None:
        """Save as the API does, in a transaction of the tenant; the surrounding one belongs to the platform."""
        tenant, actor = form.tenant, actor_of(request)
        assert tenant is not None, "a form without a tenant is not valid"  # noqa: S101
        if change:
            editing.change(
                tenant.pk,
                obj.pk,
                form.all_members,
                actor=actor,
                expected_version=form.cleaned_data.get("expected"),
            )
            self.show_saved(obj, obj.pk)
        else:
            self.show_saved(obj, editing.create(tenant.pk, form.members, actor=actor).pk)

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        with suppress(NotFound):  # somebody else has deleted it meanwhile
            editing.delete(obj.tenant_id, obj.pk, actor=actor_of(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        for schedule in queryset:
            self.delete_model(request, schedule)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Return no related objects: firings are deleted with the schedule, and executions stay."""
        is_refused = not all(self.has_delete_permission(request, schedule) for schedule in objs)
        refused = {"schedules of tenants that you do not administer"} if is_refused else set()
        return [str(schedule) for schedule in objs], {"schedules": len(objs)}, refused, []

    def switch(self, request: HttpRequest, row: Schedule, *, on: bool) -> None:
        editing.set_enabled(row.tenant_id, row.pk, on, actor=actor_of(request))


# The preview of the form, which is updated while a person types.


def preview_of(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the preview: a forecast, or why there is none."""
    present = None
    if saved_id := request.POST.get("schedule"):
        with suppress(ValidationError):  # the request may name anything
            present = Schedule.objects.filter(pk=saved_id).first()
    form = ScheduleForm(request.POST, instance=present)
    form.is_valid()
    tenant = form.tenant
    unreadable = {
        str(form.fields[name].label or name).capitalize(): texts
        for name, texts in form.errors.items()
        if name in form.fields and name not in ("tenant", "name") and name not in form.checked
    }
    if tenant is None:
        return {"waiting_for": "Choose a tenant first.", "unread": unreadable}
    try:
        forecast = preview.forecast_members(tenant.pk, form.members, from_now=True, present=present)
    except InvalidSchedule as refusal:
        errors = [{"path": error.path, "message": error.message} for error in refusal.errors]
        return {"unread": unreadable, "errors": errors}
    zone = ZoneInfo(forecast.timezone)
    return {
        "unread": unreadable,
        "forecast": forecast,
        "errors": forecast.errors,
        "times": [(moment.astimezone(zone), moment) for moment in forecast.fires_at],
        **_work(forecast),
    }


def _work(forecast: Forecast) -> dict[str, Any]:
    last = forecast.fires_at[0] + forecast.ends_after if forecast.fires_at else None
    return {
        "sample": "\n".join(
            json.dumps(params, ensure_ascii=False, default=str) for params in forecast.sample
        ),
        "sampled": len(forecast.sample),
        "ends_after_seconds": f"{forecast.ends_after.total_seconds():g}",
        "last_batch_at": last.astimezone(ZoneInfo(forecast.timezone)) if last else None,
    }
