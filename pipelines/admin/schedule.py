"""Schedules: edited in a form that tells beforehand what will happen, switched, and run by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.contrib import admin, messages
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden, HttpResponseRedirect
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
from pipelines.admin.executions import EXECUTION_LABELS, ExecutionInline, FiringInline
from pipelines.exceptions import AlreadyExists, PipelineError, ScheduleChanged
from pipelines.models import Pipeline, Schedule, ScheduleExecution
from pipelines.schedules import editing, preview, system_jobs
from pipelines.schedules import preview as schedules_preview
from pipelines.schedules.editing import InvalidSchedule
from pipelines.schedules.preview import Forecast
from pipelines.timing.clock import zone_names
from tenants import clock
from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import NOTHING, PlatformAdmin, TenantFilter, actor_of, badge, link_to
from tenants.context import tenant_scope
from tenants.models import Tenant

# A schedule in a form. What a person fills in is brought to the members of the API, and judged by the same function.


#: Members of the retry policy; each is a field of its own.
RETRY = ("max_attempts", "strategy", "base_seconds", "multiplier", "max_seconds", "jitter")
CATCH_UP = [
    ("latest", "the latest one that was missed"),
    ("none", "none that was missed"),
    ("up_to", "so many that were missed, the latest ones:"),
]
STRATEGIES = [("", "as the agent's settings say"), *((name, name) for name in editing.STRATEGIES)]
WALL_TIMES = ("start_at", "end_at")
WALL_TIME = "%Y-%m-%dT%H:%M:%S"


def _number(**attributes: Any) -> UnfoldAdminIntegerFieldWidget:
    return UnfoldAdminIntegerFieldWidget(attrs=attributes)


class ScheduleForm(forms.ModelForm):
    """Times are those of the schedule's own zone. `members` is what was filled in, whatever is wrong with it."""

    timezone = forms.ChoiceField(
        widget=UnfoldAdminSelectWidget, help_text="Cron, start and end are read on the clocks of this zone."
    )
    start_at = forms.CharField(
        required=False,
        label="Start",
        widget=UnfoldAdminTextInputWidget(attrs={"type": "datetime-local", "step": "1"}),
        help_text="When a run happens once; nothing before it when it repeats, and where an interval counts from.",
    )
    end_at = forms.CharField(
        required=False,
        label="End",
        widget=UnfoldAdminTextInputWidget(attrs={"type": "datetime-local", "step": "1"}),
        help_text="Nothing after it.",
    )
    interval_ms = forms.IntegerField(required=False, label="Interval (ms)", widget=_number(min=1000))
    agent_role = forms.ChoiceField(required=False, label="Agent", widget=UnfoldAdminSelectWidget)
    params = forms.JSONField(
        required=False,
        label="Parameters",
        initial=dict,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 8, "class": "orc-code", "spellcheck": "false"}),
        help_text='JSON. A data source makes a job of each row: {"tickerId": "db:ticker:all:id?enabled=true&batchSize=10"}.',
    )
    retry_max_attempts = forms.IntegerField(required=False, label="Attempts", widget=_number(min=1, max=50))
    retry_strategy = forms.ChoiceField(
        required=False, label="Delay grows", choices=STRATEGIES, widget=UnfoldAdminSelectWidget
    )
    retry_base_seconds = forms.FloatField(
        required=False, label="First delay (s)", widget=_number(min=0, step="any")
    )
    retry_max_seconds = forms.FloatField(
        required=False, label="Longest delay (s)", widget=_number(min=0, step="any")
    )
    retry_multiplier = forms.FloatField(required=False, label="Factor", widget=_number(min=1, step="any"))
    retry_jitter = forms.FloatField(
        required=False, label="Jitter of the delay", widget=_number(min=0, max=1, step="any")
    )
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
            "dst_gap": "Times that clocks skip",
            "dst_fold": "Times that come twice",
            "jitter_seconds": "Jitter (s)",
            "timeout_seconds": "Timeout (s)",
            "overlap": "If one is under way",
            "after_once": "After its one run",
        }
        help_texts = {
            "priority": "1 (urgent) to 20 (background).",
            "jitter_seconds": "Fires up to so many seconds late.",
            "overlap": "Waiting for a person counts as under way.",
        }
        widgets = {"description": UnfoldAdminTextareaWidget(attrs={"rows": 2})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.members: dict[str, Any] = {}  # what has been filled in, once it has been read
        self.judged: set[str] = set()  # fields whose errors are the schedule's, not those of what was typed
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
            self.fields[name].required = False

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        tenant = self.tenant
        self.members = self._members()  # before a error takes the value of its field away
        if tenant is None:
            return values
        with tenant_scope(tenant.pk):
            checked = editing.check(tenant.pk, self.members)
            name = checked.columns["name"]
            same = Schedule.objects.for_tenant(tenant.pk).filter(name=name).exclude(pk=self.instance.pk)
            if name and same.exists():
                self.add_error("name", f"There is a schedule {name!r} already.")
        for error in (*checked.errors, *checked.errors_of_work):
            field = self.field_of(error.path)
            if field is None or field in self.judged or field not in self.errors:
                self.judged |= {field} if field else set()
                self.add_error(field, str(error) if field is None or error.path != field else error.message)
        return values

    def _post_clean(self) -> None:
        """The row is written by `saving`, from the members."""

    @property
    def tenant(self) -> Tenant | None:
        found: Tenant | None = (
            self.instance.tenant if self.instance.tenant_id else self.cleaned_data.get("tenant")
        )
        return found

    @property
    def all_members(self) -> dict[str, Any]:
        """The members with null for those that are empty, so that a change empties them as well."""
        return {**dict.fromkeys(editing.MEMBERS), **self.members}

    def _members(self) -> dict[str, Any]:
        """As the API takes them. What could not be read is left out: its field says why."""
        values = self.cleaned_data
        pipeline = values.get("pipeline")
        found = {name: values.get(name) for name in editing.MEMBERS if values.get(name) not in (None, "")}
        found |= {"enabled": bool(values.get("enabled")), "params": values.get("params") or {}}
        if pipeline is not None:
            found["pipeline"] = (
                pipeline.key if self.tenant and pipeline.tenant_id == self.tenant.pk else f"{pipeline}"
            )
        found |= {name: self._moment(name) for name in WALL_TIMES if values.get(name)}
        retry = {name: values.get(f"retry_{name}") for name in RETRY}
        found["retry"] = {name: value for name, value in retry.items() if value not in (None, "")}
        policy = values.get("catch_up_policy") or "latest"
        found["catch_up"] = {"up_to": values.get("catch_up_most")} if policy == "up_to" else policy
        return self._without_the_other_kind(found)

    def field_of(self, path: str) -> str | None:
        """The field at which an error is shown; None for the top of the form."""
        first = path.replace("[", ".").partition(".")[0]
        if first == "retry":
            return f"retry_{path.partition('.')[2]}" if "." in path else "retry_max_attempts"
        if first == "catch_up":
            return (
                "catch_up_most" if self.cleaned_data.get("catch_up_policy") == "up_to" else "catch_up_policy"
            )
        return first if first in self.fields else None

    def _without_the_other_kind(self, found: dict[str, Any]) -> dict[str, Any]:
        """The form shows the fields of both kinds of targets and of times; what the other kind would need is ignored."""
        other = {"agent": "pipeline", "pipeline": "agent_role"}.get(found.get("target_type", ""))
        dropped = {other} if other else set()
        if found.get("repeat") == "once":
            dropped |= {"cron", "interval_ms", "end_at"}
        return {name: value for name, value in found.items() if name not in dropped}

    def _moment(self, name: str) -> Any:
        """The moment that a wall time of the chosen zone means; one that nobody touched stays to the microsecond."""
        text = self.cleaned_data[name]
        before = getattr(self.instance, name)
        if before is not None and not {name, "timezone"} & set(self.changed_data):
            return before
        try:
            wall = datetime.fromisoformat(text)
            zone = ZoneInfo(self.cleaned_data["timezone"])
        except (ValueError, KeyError):
            return text
        return (wall if wall.tzinfo else wall.replace(tzinfo=zone)).astimezone(UTC)

    def _fill(self, schedule: Schedule) -> None:
        """What the fields show of a row whose columns are not fields themselves."""
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
    "run_selected",
    "Run now",
    "Started",
    "Each of these runs once, now, whether it is enabled or not. Its times stay as they are.",
    (PipelineError, InvalidSchedule),
    path="run",
    icon="play_arrow",
    permission="change",
    do=lambda request, row, notes: system_jobs.run_now(row.tenant_id, row.pk, actor=actor_of(request)),
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
class ScheduleAdmin(ActionsAdmin, PlatformAdmin):
    form = ScheduleForm
    list_display = ("name", "tenant", "target", "timing", "next_runs", "enabled", "last_result")
    list_filter = (TenantFilter, "enabled", "repeat", "target_type")
    list_select_related = ("pipeline",)
    search_fields = ("name", "description", "agent_role", "tenant__slug")
    ordering = ("name",)
    autocomplete_fields = ("tenant", "pipeline")
    fieldsets = SECTIONS
    inlines = (ExecutionInline, FiringInline)
    actions: Any = ("enable_selected", "disable_selected")
    row_actions = (RUN,)

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
        """A part of the page: what the schedule in the form would do. Nothing is stored."""
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
            return timing.in_words(schedule.timing())
        except (timing.TimingError, ValueError):
            return "cannot be read"

    @display(description="Next runs, in its zone")
    def next_runs(self, schedule: Schedule) -> SafeString:
        if not schedule.enabled or schedule.next_run_at is None:
            return NOTHING
        try:
            moments = schedules_preview.coming(schedule, count=LISTED_TIMES, now=clock.now())
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
        except (InvalidSchedule, AlreadyExists, ScheduleChanged) as refusal:
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
            editing.change(
                tenant.pk,
                obj.pk,
                form.all_members,
                actor=actor,
                expected_version=form.cleaned_data.get("expected"),
            )
        else:
            obj.pk = editing.create(tenant.pk, form.members, actor=actor).pk
        obj._state.adding = False
        obj.refresh_from_db()

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        editing.delete(obj.tenant_id, obj.pk, actor=actor_of(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        for schedule in queryset:
            self.delete_model(request, schedule)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """A schedule's firings are deleted with it, and its executions stay; nothing else needs a permission."""
        return [str(schedule) for schedule in objs], {"schedules": len(objs)}, set(), []

    @admin.action(description="Enable", permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._switch(request, queryset, on=True)

    @admin.action(description="Disable", permissions=["change"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._switch(request, queryset, on=False)

    def _switch(self, request: HttpRequest, queryset: QuerySet[Schedule], *, on: bool) -> None:
        word = "Enabled" if on else "Disabled"
        for schedule in queryset.exclude(enabled=on):
            try:
                editing.set_enabled(schedule.tenant_id, schedule.pk, on, actor=actor_of(request))
            except PipelineError as refusal:
                messages.warning(request, f"Skipped {schedule}: {refusal}")
                continue
            self.log_change(request, schedule, f"{word}.")
            messages.success(request, f"{word}: {schedule}.")


# What the form of a schedule, as it is filled in, would come to: for the panel that shows it while somebody types.


def preview_of(request: HttpRequest) -> dict[str, Any]:
    """The context of the panel: a forecast, or why there is none."""
    present = _instance(request.POST.get("schedule", ""))
    form = ScheduleForm(request.POST, instance=present)
    form.is_valid()
    tenant = form.tenant
    unread = {
        str(form.fields[name].label or name).capitalize(): texts
        for name, texts in form.errors.items()
        if name in form.fields and name not in ("tenant", "name") and name not in form.judged
    }
    if tenant is None:
        return {"waiting_for": "Choose a tenant first.", "unread": unread}
    try:
        found = preview.of_members(tenant.pk, form.members, from_now=True, present=present)
    except InvalidSchedule as refusal:
        errors = [{"path": error.path, "message": error.message} for error in refusal.errors]
        return {"unread": unread, "errors": errors}
    return {
        "unread": unread,
        "forecast": found,
        "errors": found.errors,
        "times": _times(found),
        **_work(found),
    }


def _instance(text: str) -> Schedule | None:
    try:
        return Schedule.objects.filter(pk=text).first() if text else None
    except ValueError:
        return None


def _times(found: Forecast) -> list[tuple[datetime, datetime]]:
    """Each time on the clocks of the schedule's zone, and in UTC."""
    zone = ZoneInfo(found.timezone)
    return [(moment.astimezone(zone), moment) for moment in found.fires_at]


def _work(found: Forecast) -> dict[str, Any]:
    last = found.fires_at[0] + found.ends_after if found.fires_at else None
    return {
        "sample": "\n".join(json.dumps(params, ensure_ascii=False, default=str) for params in found.sample),
        "sampled": len(found.sample),
        "ends_after_seconds": f"{found.ends_after.total_seconds():g}",
        "last_batch_at": last.astimezone(ZoneInfo(found.timezone)) if last else None,
    }
