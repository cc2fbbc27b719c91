"""Pipelines and their versions: an editor with checks, runs by hand, and restoring old versions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import yaml
from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, JsonResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminTextareaWidget

from activities.models import Activity
from agents import configuration
from pipelines import diagram, versions
from pipelines.definition import DefinitionError, PipelineDefinition, StepDefinition, load
from pipelines.diagram import Counts, StepPicture
from pipelines.exceptions import InvalidParams
from pipelines.models import ActivityTemplate, Pipeline, PipelineRun, PipelineVersion, Schedule, StepRun
from pipelines.selectors import StepRow
from pipelines.submission import NewRun, start_run
from tenants import strict_json
from tenants.admin.actions import NAMED, Action, ActionsAdmin
from tenants.admin.bases import (
    NOTHING,
    PlatformAdmin,
    RecordAdmin,
    SeenForm,
    ShownInline,
    actor_of,
    badge,
    identity_of,
    link_to,
    page_of,
)
from tenants.context import tenant_scope
from tenants.exceptions import PreconditionFailed
from tenants.models import Tenant

# The form of a definition: a text field, and with JavaScript also a list of steps that is synchronized with the text.
#
# Every error has its path, and saving creates a new version. Only the text is sent and saved, so the form works without JavaScript.


CHECK = "_check"  # the button for browsers without JavaScript

EXAMPLE = """\
key: my-pipeline
name: My pipeline
steps:
  - id: research
    agent_role: keyword-researcher
  - id: brief
    agent_role: content-brief-writer
    depends_on: [research]
    requires_approval: true
"""


class DefinitionEditor(UnfoldAdminTextareaWidget):
    """The text field of a definition. A script turns it into an editor; `config` holds the URL of the check, and the roles."""

    class Media:
        js = ("pipelines/fields.js", "pipelines/editor.js")
        css = {"all": ("pipelines/editor.css",)}

    def __init__(self) -> None:
        super().__init__(attrs={"rows": 28, "class": "orc-code", "spellcheck": "false", "wrap": "off"})
        self.config: dict[str, Any] = {}

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        area = super().render(
            name, value, {**(attrs or {}), "data-editor": json.dumps(self.config)}, renderer
        )
        return format_html(
            '{}<noscript><button type="submit" name="{}" value="1" class="orc-button">Check without saving</button></noscript>',
            area,
            CHECK,
        )


class PipelineForm(forms.ModelForm):
    """The form of a pipeline. Its key, name and description are in the definition."""

    definition = forms.CharField(
        strip=False,
        widget=DefinitionEditor,
        help_text="YAML or JSON. Saving a changed definition creates a new version; running runs keep their version.",
    )
    expected = forms.IntegerField(widget=forms.HiddenInput, required=False)

    class Meta:
        model = Pipeline
        fields = ("tenant", "enabled")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parsed: PipelineDefinition | None = None
        self.data_of_definition: dict[str, Any] = {}
        newest = self._newest()
        self.newest_digest = newest.digest if newest else ""
        self.initial["definition"] = as_yaml(newest.definition) if newest else EXAMPLE
        self.initial["expected"] = newest.number if newest else None
        self.fields["definition"].widget.config = {
            "check": reverse("admin:pipelines_pipeline_check"),
            "tenant": "" if self.instance._state.adding else str(self.instance.tenant_id),
            "pipeline": str(self.instance.pk) if newest else "",
            "roles": sorted(configuration.list_roles()),
        }

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        tenant = values.get("tenant") or (None if self.instance._state.adding else self.instance.tenant)
        if tenant and values.get("definition"):
            try:
                self._check(tenant.pk, values["definition"])
            except DefinitionError as error:
                self.add_error("definition", [ValidationError(str(problem)) for problem in error.errors])
        newest = self.initial["expected"]
        if self.is_changed and values.get("expected") not in (None, newest):
            self.add_error(
                None,
                f"This is now at version {newest}. Your text is still here: copy it, then reload the page.",
            )
        if CHECK in self.data and not self.errors:
            self.add_error(None, "Checked but not saved: there are no errors.")
        return values

    @property
    def is_changed(self) -> bool:
        """Whether saving creates a new version."""
        return self.parsed is not None and self.parsed.digest() != self.newest_digest

    def save_version(self, tenant_id: Any, *, actor: str) -> PipelineVersion:
        """Save a new version. Raises `PreconditionFailed` if another version was saved since this form was opened."""
        return versions.save(
            tenant_id, self.data_of_definition, actor=actor, expected=self.cleaned_data.get("expected")
        )

    def _newest(self) -> PipelineVersion | None:
        if not self.instance.pk:
            return None
        return PipelineVersion.objects.filter(pipeline_id=self.instance.pk).order_by("-number").first()

    def _check(self, tenant_id: Any, text: str) -> None:
        self.data_of_definition = read(text)
        with tenant_scope(tenant_id):
            self.parsed = versions.check_definition(tenant_id, self.data_of_definition)
            if self.parsed.enabled is not None:
                self.add_error("definition", "enabled: leave it out, and use the field Enabled of this form")
            if error := _error_of_key(tenant_id, self.parsed.key, self.instance.pk):
                self.add_error("definition", f"key: {error}")


def read(text: str) -> dict[str, Any]:
    """Parse a text, JSON or YAML. Raises `DefinitionError`."""
    return load(text, filename="definition.json" if text.lstrip().startswith("{") else "definition.yaml")


RUN_NOW = Action(
    "run",
    "Started",
    "This starts one run of the newest version of each pipeline now.",
    title="Run now",
    notes="Parameters, as a JSON object",
    icon="play_arrow",
    permission="change",
    do=lambda *arguments: _start_run(*arguments),
)
RESTORE = Action(
    "restore",
    "Restored",
    "This saves the definition again, as a new version. Running runs keep their version.",
    title="Restore this version",
    refusals=(DefinitionError,),
    icon="history",
    offered=lambda version: version.number != version.pipeline.latest,
    # Checked as usual, because a role that it needs may no longer exist.
    do=lambda request, version, notes: versions.save(
        version.tenant_id, version.definition, actor=actor_of(request), expected=version.pipeline.latest
    ),
)


class VersionInline(ShownInline):
    model = PipelineVersion
    fields = ("version_link", "created_by", "created_at", "digest", "restoring")
    per_page = 10
    verbose_name_plural = "Versions"

    @display(description="Version")
    def version_link(self, version: PipelineVersion) -> SafeString:
        return link_to(PipelineVersion, version.pk, version.number)

    @display(description="Restore")
    def restoring(self, version: PipelineVersion) -> SafeString:
        if version.number == version.pipeline.latest:
            return badge("newest", "success")
        address = reverse("admin:pipelines_pipelineversion_restore", args=[version.pk])
        return format_html('<a class="text-link" href="{}">Restore this version</a>', address)


class SwitchedAdmin(ActionsAdmin):
    """Rows that can be enabled and disabled in the list."""

    actions: Any = ("enable_selected", "disable_selected")

    def switch(self, request: HttpRequest, row: Any, *, on: bool) -> None:
        """Enable or disable the row. Each subclass must define this. Raises `PipelineError`."""
        raise NotImplementedError

    @admin.action(description="Enable", permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._switch_all(request, queryset, on=True)

    @admin.action(description="Disable", permissions=["change"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._switch_all(request, queryset, on=False)

    def _switch_all(self, request: HttpRequest, queryset: QuerySet[Any], *, on: bool) -> None:
        word = "Enabled" if on else "Disabled"
        for row in queryset.exclude(enabled=on):
            if self.try_on(request, row, lambda row: self.switch(request, row, on=on), done=f"{word}."):
                messages.success(request, f"{word}: {row}.")


@admin.register(Pipeline)
class PipelineAdmin(SwitchedAdmin):
    form = PipelineForm
    list_display = ("name", "key", "tenant", "latest", "enabled", "updated_at")
    list_filter = ("enabled",)
    search_fields = ("key", "name")
    ordering = ("name", "pk")
    fixed_fields = ("picture", "tenant")
    inlines = (VersionInline,)
    row_actions = (RUN_NOW,)
    actions_detail: Any = ("run", "schedule", "runs")
    refused_late = (PreconditionFailed,)

    def get_fieldsets(self, request: HttpRequest, obj: Pipeline | None = None) -> Any:
        fields = ("tenant", "enabled", "definition", "expected")
        return ((None, {"fields": ("picture", *fields) if obj else fields}),)

    @display(description="Picture")
    def picture(self, pipeline: Pipeline) -> SafeString:
        newest = pipeline.versions.order_by("-number").first()
        return draw_version(newest.pk, title=pipeline.name) if newest else NOTHING

    def get_urls(self) -> list[Any]:
        checked = self.admin_site.admin_view(self.check_view)
        return [path("check/", checked, name="pipelines_pipeline_check"), *super().get_urls()]

    def check_view(self, request: HttpRequest) -> HttpResponse:
        """Check the text of the editor. Changes nothing."""
        if not self.has_change_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        sent = request.POST
        return JsonResponse(
            check(
                sent.get("text", ""),
                tenant_id=_uuid(sent.get("tenant")),
                pipeline_id=_uuid(sent.get("pipeline")),
            )
        )

    def save_model(self, request: HttpRequest, obj: Pipeline, form: PipelineForm, change: bool) -> None:
        """Save the version first, in a transaction of the tenant; the surrounding one belongs to the platform."""
        if form.is_changed:
            version = form.save_version(obj.tenant_id, actor=actor_of(request))
            obj.pk = version.pipeline_id
            messages.info(request, f"Saved as version {version.number}.")
        elif change and "definition" in form.changed_data:
            messages.info(request, "The definition has not changed in meaning, so there is no new version.")
        Pipeline.objects.filter(pk=obj.pk).update(enabled=form.cleaned_data["enabled"])
        obj.refresh_from_db()
        _warn_if_scheduled(request, obj)

    def switch(self, request: HttpRequest, row: Pipeline, *, on: bool) -> None:
        Pipeline.objects.filter(pk=row.pk).update(enabled=on)
        row.enabled = on
        _warn_if_scheduled(request, row)

    @action(description="Schedule", url_path="schedule", icon="schedule", permissions=["change"])
    def schedule(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Redirect to the form of a schedule for this pipeline."""
        pipeline = self.get_object(request, object_id)
        if pipeline is None:
            return HttpResponseRedirect(reverse("admin:pipelines_pipeline_changelist"))
        chosen = {"target_type": "pipeline", "pipeline": pipeline.pk, "tenant": pipeline.tenant_id}
        return HttpResponseRedirect(f"{reverse('admin:pipelines_schedule_add')}?{urlencode(chosen)}")

    @action(description="Runs", url_path="runs", icon="play_circle", permissions=["view"])
    def runs(self, request: HttpRequest, object_id: str) -> HttpResponse:
        pipeline = self.get_object(request, object_id)
        chosen = urlencode({"q": pipeline.key, "tenant": pipeline.tenant.slug} if pipeline else {})
        return HttpResponseRedirect(f"{reverse('admin:pipelines_pipelinerun_changelist')}?{chosen}")


@admin.register(PipelineVersion)
class PipelineVersionAdmin(ActionsAdmin, RecordAdmin):
    list_display = ("title", "tenant", "created_by", "created_at", "short_digest")
    list_select_related = ("pipeline",)
    search_fields = ("pipeline__key",)
    fields = ("pipeline_link", "tenant", "number", "picture", "text", "digest", "created_by", "created_at")
    row_actions = (RESTORE,)

    @display(description="Digest")
    def short_digest(self, version: PipelineVersion) -> str:
        return f"{version.digest[:12]}…"

    @display(description="Version")
    def title(self, version: PipelineVersion) -> str:
        return f"{version.pipeline.name}, {version}"

    @display(description="Pipeline")
    def pipeline_link(self, version: PipelineVersion) -> SafeString:
        return link_to(Pipeline, version.pipeline_id, version.pipeline)

    @display(description="Picture")
    def picture(self, version: PipelineVersion) -> SafeString:
        return draw_version(version.pk, title=f"{version.pipeline.name}, {version}")

    @display(description="Definition")
    def text(self, version: PipelineVersion) -> SafeString:
        return format_html('<pre class="orc-output">{}</pre>', as_yaml(version.definition))


def _warn_if_scheduled(request: HttpRequest, pipeline: Pipeline) -> None:
    """Warn about schedules of a pipeline that is switched off."""
    if pipeline.enabled:
        return
    schedules = Schedule.objects.for_tenant(pipeline.tenant_id).filter(pipeline_id=pipeline.pk, enabled=True)
    if names := list(schedules.order_by("name").values_list("name", flat=True)[:NAMED]):
        messages.warning(
            request, f"{pipeline} is switched off and still needed by schedules: {', '.join(names)}."
        )


def _start_run(request: HttpRequest, pipeline: Pipeline, typed: str) -> None:
    new = NewRun(params=_params(typed), requested_identity=identity_of(request))
    run = start_run(pipeline.tenant_id, pipeline.key, new, actor=actor_of(request))
    messages.info(request, format_html("The run: {}", link_to(PipelineRun, run.pk, run.pk)))


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text or "")
    except ValueError:
        return None


# The check of the editor: returns the errors of a definition, its picture, and its data.
#
# The editor sends the text and gets back both the text as YAML and the data, so the browser needs to know neither YAML nor the rules.


NO_TENANT = "Choose the tenant first, because the check needs its templates and roles."


def check(text: str, *, tenant_id: UUID | None, pipeline_id: UUID | None) -> dict[str, Any]:
    """Check the text of the editor. Changes nothing.

    `definition` and `text` are the same in two forms, or null if the text cannot be parsed. `svg` is null if there are errors. `missing`
    names what must be chosen before the check, which is not an error of the definition.
    """
    answer: dict[str, Any] = {
        "definition": None,
        "text": None,
        "faults": [],
        "missing": "",
        "svg": None,
        "templates": [],
    }
    try:
        data = read(text)
        answer |= {"definition": data, "text": as_written(data)}
        if tenant_id is None or not Tenant.objects.filter(pk=tenant_id).exists():
            return answer | {"missing": NO_TENANT}
        with tenant_scope(tenant_id):
            templates = ActivityTemplate.objects.for_tenant(tenant_id).values_list("key", flat=True)
            answer |= {"templates": sorted(templates)}
            definition = versions.check_definition(tenant_id, data)
            error = _error_of_key(tenant_id, definition.key, pipeline_id)
    except DefinitionError as refusal:
        faults = [{"path": problem.path, "message": problem.message} for problem in refusal.errors]
        return answer | {"faults": faults}
    faults = [{"path": "key", "message": error}] if error else []
    return answer | {"faults": faults, "svg": draw_framed(definition, title=definition.name)}


def _error_of_key(tenant_id: UUID, key: str, pipeline_id: UUID | None) -> str:
    """Return why a definition with this key cannot be saved as this pipeline, or with None as a new one; empty if it can."""
    own = Pipeline.objects.for_tenant(tenant_id)
    present = own.filter(pk=pipeline_id).first() if pipeline_id else None
    if present is not None and present.key != key:
        return f"must stay {present.key!r}; create a new pipeline for another key"
    return f"another pipeline has the key {key!r}" if present is None and own.filter(key=key).exists() else ""


# Starting a run by hand, with typed parameters.


LONGEST_PARAMS = 100_000  # bytes


def _params(typed: str) -> dict[str, Any]:
    if not typed.strip():
        return {}
    try:
        params = strict_json.loads(typed.encode(), max_bytes=LONGEST_PARAMS)
    except strict_json.StrictJSONError as error:
        raise InvalidParams([("parameters", f"is not valid JSON: {error.message}")]) from error
    if not isinstance(params, dict):
        raise InvalidParams([("parameters", 'must be an object, such as {"topic": "bees"}')])
    return params


# Definitions as readable YAML: members in a fixed order, short lists on one line, long texts as blocks.
#
# `pipelines.definition.load` reads this text back as the same data.


_WHOLE = ("key", "name", "description", "params")
_ORDER = tuple(part.name for part in fields(StepDefinition))
_DEFAULTS = StepDefinition(id="").to_dict()


def as_yaml(definition: Mapping[str, Any]) -> str:
    """Return a stored definition as YAML, without members that have their default."""
    steps = [_tidy(step, is_first=index == 0) for index, step in enumerate(definition["steps"])]
    document = {name: definition[name] for name in _WHOLE if definition.get(name)} | {"steps": steps}
    return _dump_yaml(document)


def as_written(data: Mapping[str, Any]) -> str:
    """Return an unfinished definition as YAML: all its members, valid or not, in the usual order."""
    ordered = _in_order(data, (*_WHOLE, "steps"))
    if isinstance(data.get("steps"), list):
        ordered["steps"] = [
            _in_order(step, _ORDER) if isinstance(step, Mapping) else step for step in data["steps"]
        ]
    return _dump_yaml(ordered)


def _in_order(data: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    known = {name: data[name] for name in names if name in data}
    return known | {name: value for name, value in data.items() if name not in known}


def _tidy(step: Mapping[str, Any], *, is_first: bool) -> dict[str, Any]:
    # A step without `depends_on` runs after the step before it, so only the first may omit an empty list.
    defaults = {name for name in _ORDER if name != "depends_on" and step.get(name) == _DEFAULTS.get(name)}
    if is_first and not step.get("depends_on"):
        defaults.add("depends_on")
    return {name: step[name] for name in _ORDER if name in step and name not in defaults}


def _dump_yaml(data: Mapping[str, Any]) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Dumper(yaml.SafeDumper):
    """Lists of short words on one line, as in `depends_on: [research, brief]`."""

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        plain = all(isinstance(item, str) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=plain or flow_style)

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


# Quote these: the dumper follows YAML 1.1, so it would leave some texts unquoted that YAML 1.2 reads as numbers.
_LIKE_A_NUMBER = re.compile(r"[-+.]?[0-9][0-9eE.+-]*")


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "'" if _LIKE_A_NUMBER.fullmatch(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


# Activity templates. A version of a pipeline keeps the content of its templates, so templates may change freely.


class TemplateForm(SeenForm):
    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        role = values.get("agent_role")
        if role and role not in configuration.list_roles():
            self.add_error("agent_role", f"There is no agent with the role {role!r}.")
        if role and values.get("human_role"):
            self.add_error("human_role", "Choose an agent or a person, not both.")
        return values


@admin.register(ActivityTemplate)
class ActivityTemplateAdmin(PlatformAdmin):
    form = TemplateForm
    list_display = ("name", "key", "tenant", "agent_role", "human_role", "requires_approval")
    list_filter = ("requires_approval", "is_approval_gate")
    search_fields = ("key", "name")
    readonly_fields = ("created_at",)


# Pictures of pipelines for pages of the admin.

# Elsewhere the picture follows the reader's setting; in the admin it follows the theme's switch.
_THEME = (
    f".orc-picture .pipeline-picture{{{diagram.LIGHT}}}.dark .orc-picture .pipeline-picture{{{diagram.DARK}}}"
)


def draw_version(version_id: UUID, steps: Sequence[StepRow] = (), *, title: str) -> SafeString:
    """Draw a version, or with the steps of a run, that run, with one box for each step."""
    try:
        definition = versions.compile_version(version_id).definition
    except DefinitionError as error:
        return format_html("The current software cannot read this version: {}", str(error))
    states = {row.run.step: row.picture(_link_of(row.run)) for row in steps}
    counts = {
        row.run.step: {"failed": counted.failed, "active": counted.active, "done": counted.done}
        for row in steps
        if (counted := row.counts)
    }
    return draw_framed(definition, states if steps else None, counts, title=title)


def _link_of(step: StepRun) -> str | None:
    """Return the URL of the step's activity, or of the list of its branches."""
    if step.activity_id:
        return page_of(Activity, step.activity_id)
    chosen = urlencode({"run__id__exact": step.run_id, "step__exact": step.step})
    return f"{reverse('admin:pipelines_steprun_changelist')}?{chosen}" if step.branches else None


def draw_framed(
    definition: PipelineDefinition,
    states: Mapping[str, StepPicture] | None = None,
    counts: Counts | None = None,
    *,
    title: str,
) -> SafeString:
    """Draw a picture as a part of a page. A wide picture scrolls, not the page."""
    svg = diagram.draw(definition, states, title=title, counts=counts)
    # `draw` escapes every text and checks every link.
    parts = (SafeString(_THEME), SafeString(svg))
    return format_html('<div class="orc-picture"><style>{}</style>{}</div>', *parts)
