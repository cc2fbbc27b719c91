"""Pages of pipelines. Everybody sees them, operators start and pause them, admins copy and change them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from http import HTTPStatus
from typing import Any
from uuid import UUID

from django import forms
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.safestring import SafeString, mark_safe

from activities.states import BANDS
from agents.models import Agent
from console.internal_api import ApiForm, JsonField, Reply, ValueField
from console.page import (
    ACTING,
    LOOKING,
    NOT_OFFERED,
    PAGE_WIDTH,
    PageContext,
    Refused,
    number_in,
    page,
    text_in,
)
from pipelines import diagram, selectors, versions
from pipelines.admin.pipeline import as_yaml
from pipelines.conditions import RESERVED
from pipelines.definition import DefinitionError
from pipelines.definition.errors import at
from pipelines.diagram import StepPicture
from pipelines.models import Pipeline, PipelineVersion, Schedule
from pipelines.models.pipeline import KEY_PATTERN
from pipelines.subjects import subject_of
from tenants import pausing
from tenants.context import tenant_scope
from tenants.models import PauseKind, Role
from tenants.plain_names import LONGEST_NAME

MOST_LISTED = 200
NEWEST_RUNS = 300  # of the tenant, among which the last one of each pipeline is searched
MOST_RUNS = 10
MOST_SCHEDULES = 10
CHANGED = "The pipeline has changed since you loaded the page. Check the parameters, then start the run."


@page("pipelines")
def every(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The pipelines by name, each with its last run, if that is among the newest of the tenant."""
    search = text_in(request.GET, "search")
    with tenant_scope(visit.tenant_id):
        rows = _with_pauses(visit.tenant_id)
        if search:
            rows = rows.filter(
                Q(name__icontains=search) | Q(key__icontains=search) | Q(description__icontains=search)
            )
        found = list(rows.order_by("name", "key")[: MOST_LISTED + 1])
        newest = selectors.runs(visit.tenant_id).order_by("-started_at", "-pk")[:NEWEST_RUNS]
        last = {run.version.pipeline_id: run for run in reversed(newest)} if found else {}
    context = {
        "rows": [(pipeline, last.get(pipeline.pk)) for pipeline in found[:MOST_LISTED]],
        "has_more": len(found) > MOST_LISTED,
        "search": search,
    }
    return visit.render("console/pipelines/every.html", context)


def _act(request: HttpRequest, visit: PageContext, key: str) -> HttpResponse:
    action, _, number = request.POST.get("action", "").partition(":")
    if action in ("pause", "resume"):
        visit.act("POST", f"/pipelines/{key}/{action}/", {})
        words = "The pipeline is paused" if action == "pause" else "The pipeline is resumed"
    elif action == "restore" and (version_number := number_in(number)) is not None:
        with tenant_scope(visit.tenant_id):
            _, version = find_version(visit.tenant_id, key, version_number)
        seen = number_in(request.POST.get("latest", ""))
        visit.act("PUT", f"/pipelines/{key}/", version.definition, version=seen)
        words = f"Version {version_number} was restored as a new version"
    else:
        raise Refused(NOT_OFFERED, status=400)
    return visit.redirect(words, "pipeline", key)


@page("pipelines", act=_act)
def one(request: HttpRequest, visit: PageContext, key: str) -> HttpResponse:
    """One pipeline, with its latest version or the requested one. A POST pauses it, resumes it, or restores one of its versions."""
    tenant_id, number = visit.tenant_id, number_in(request.GET.get("version", ""))
    with tenant_scope(tenant_id):
        pipeline, version = find_version(tenant_id, key, number)
        known = selectors.versions_of(tenant_id, pipeline)
        runs = selectors.runs(tenant_id).filter(version__in=[each.pk for each in known])
        schedules = Schedule.objects.for_tenant(tenant_id).filter(pipeline_id=pipeline.pk)
        context = {
            "pipeline": pipeline,
            "version": version,
            "steps": [_describe_step(each) for each in version.definition["steps"]],
            "picture": draw_version(version.pk, title=pipeline.name),
            "text": as_yaml(version.definition),
            "versions": known,
            "runs": [
                (run, subject_of(run.name, run.params) or "without a subject")
                for run in runs.order_by("-started_at", "-pk")[:MOST_RUNS]
            ],
            "schedules": list(schedules.order_by("name", "pk")[:MOST_SCHEDULES]),
        }
    return visit.render("console/pipelines/one.html", context)


def _describe_step(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step of a definition with remarks about the properties that have no column of their own."""
    remarks = [
        ("requires approval", step.get("requires_approval")),
        ("approval gate", step.get("is_approval_gate")),
        ("done by a person", step.get("human_role") and not step.get("is_approval_gate")),
        (f"only if {step.get('when')}", step.get("when")),
        (f"for each of {step.get('for_each')}", step.get("for_each")),
    ]
    return {
        "name": step.get("name") or step["id"],
        "who": step.get("agent_role") or step.get("human_role") or "",
        "needs": step.get("depends_on") or (),
        "remarks": [words for words, holds in remarks if holds],
    }


@page("pipelines", (*LOOKING, *ACTING), least=Role.OPERATOR)
def start(request: HttpRequest, visit: PageContext, key: str) -> HttpResponse:
    """The form that starts a run of the latest version."""
    with tenant_scope(visit.tenant_id):
        pipeline, version = find_version(visit.tenant_id, key)
        parameters = parameters_of(version)
    form, is_outdated = StartForm(parameters=parameters), request.POST.get("version") != str(version.number)
    if request.method == "POST":
        form = StartForm(request.POST, parameters=parameters)
        if is_outdated:
            form.status = HTTPStatus.CONFLICT
            form.add_error(None, CHANGED)
        elif reply := form.send(visit, "POST", f"/pipelines/{key}/runs/"):
            return visit.redirect("The run has started.", "run", reply.data["id"])
    context = {"form": form, "pipeline": pipeline, "version": version}
    return visit.render("console/pipelines/start.html", context)


class CopyForm(ApiForm):
    """The name and key of the copy. `definition` is that of the original."""

    definition: Mapping[str, Any]

    name = forms.CharField(max_length=200)
    key = forms.RegexField(
        KEY_PATTERN,
        max_length=63,
        help_text="Its identifier in the API: lower-case letters, digits, - and _.",
        error_messages={"invalid": "Use lower-case letters, digits, - and _."},
    )

    def body(self) -> dict[str, Any]:
        return {**self.definition, **super().body()}


@page("pipelines", (*LOOKING, *ACTING), least=Role.ADMIN)
def copy(request: HttpRequest, visit: PageContext, key: str) -> HttpResponse:
    """The form that copies the latest version to a new pipeline."""
    with tenant_scope(visit.tenant_id):
        pipeline, version = find_version(visit.tenant_id, key)
    initial = {"name": f"Copy of {pipeline.name}"[:200], "key": f"{key}-copy"[:63]}
    form = CopyForm(request.POST or None, initial=initial)
    form.definition = version.definition
    if request.method == "POST" and form.send(visit, "POST", "/pipelines/"):
        return visit.redirect(f"Created: {form.cleaned_data['name']}", "pipeline", form.cleaned_data["key"])
    return visit.render("console/pipelines/copy.html", {"form": form, "pipeline": pipeline})


# The form for a pipeline's parameters, built from its defaults and the input schemas of its agents.
#
# The API validates the values against the whole schema; the form displays its errors at the fields.

MOST_FIELDS = 60  # of one form; other parameters are entered as JSON
LONG = 200  # characters from which on a text has a multi-line field
NO_CHOICE = "\u2013"


class ChoiceField(forms.ChoiceField):
    """One of a schema's enum values, of any type."""

    def __init__(self, values: list[Any], **options: Any) -> None:
        self.values, self.places = values, {str(place) for place in range(len(values))}
        labels = [
            (str(place), value if isinstance(value, str) else json.dumps(value))
            for place, value in enumerate(values)
        ]
        super().__init__(choices=[("", NO_CHOICE), *labels], **options)

    def prepare_value(self, value: Any) -> Any:
        """Return the index of a value as the form sends it; initial values are the values themselves."""
        if isinstance(value, str) and value in self.places:
            return value
        return str(self.values.index(value)) if value in self.values else value

    def clean(self, value: Any) -> Any:
        place = super().clean(value)
        return self.values[int(place)] if place else None


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a run, with its agent's schema and the pipeline's default."""

    name: str
    schema: Mapping[str, Any]
    required: bool
    default: Any = None

    @property
    def field_name(self) -> str:
        """The name of its field: a digest, because a parameter may have any name."""
        return f"param_{sha256(self.name.encode()).hexdigest()[:16]}"

    def field(self) -> forms.Field:
        title, about = self.schema.get("title"), self.schema.get("description")
        options: dict[str, Any] = {
            "label": title if isinstance(title, str) and title.strip() else self.name,
            "help_text": about if isinstance(about, str) else "",
            "required": self.required,
            "initial": self.default,
        }
        return self._build_field(options)

    def _build_field(self, options: dict[str, Any]) -> forms.Field:
        values = self.schema.get("enum")
        if isinstance(values, list) and values:
            return ChoiceField(values, **options)
        kind = self._kind()
        if kind == "boolean":
            return ChoiceField([True, False], **options)
        if kind == "integer":
            return forms.IntegerField(**options)
        if kind == "number":
            return forms.FloatField(**options)
        if kind == "string":
            return forms.CharField(strip=False, widget=self._text_widget(), **options)
        return ValueField(**options)

    def _kind(self) -> str:
        kind = self.schema.get("type")
        kinds = [
            each
            for each in (kind if isinstance(kind, list) else [kind])
            if isinstance(each, str) and each != "null"
        ]
        if len(kinds) == 1:
            return kinds[0]
        if kinds:
            return ""
        of_default: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
        return of_default.get(type(self.default), "")

    def _text_widget(self) -> forms.Widget:
        longest, default = self.schema.get("maxLength"), self.default
        is_long = isinstance(longest, int) and longest > LONG
        if is_long or (isinstance(default, str) and (len(default) > LONG or "\n" in default)):
            return forms.Textarea(attrs={"rows": 4})
        return forms.TextInput()


def parameters_of(version: PipelineVersion) -> list[Parameter]:
    """Return the parameters of a version, required ones first. One statement."""
    steps, defaults = version.definition["steps"], version.definition.get("params") or {}
    roles = {step["agent_role"] for step in steps if step.get("agent_role")}
    schemas = dict(Agent.objects.filter(role__in=roles).values_list("role", "input_schema"))
    known: dict[str, Parameter] = {}
    for step in steps:
        for name, schema, required in _parameters_of_step(step, schemas.get(step.get("agent_role"))):
            before = known.get(name)
            required = (required and name not in defaults) or (before is not None and before.required)
            known[name] = Parameter(name, before.schema if before else schema, required, defaults.get(name))
    for name, value in defaults.items():
        known.setdefault(name, Parameter(name, {}, False, value))
    return sorted(known.values(), key=lambda each: not each.required)[:MOST_FIELDS]


def _parameters_of_step(
    step: Mapping[str, Any], schema: Any
) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yield the agent's parameters that the step does not set itself, each with its schema and whether it is required."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return
    own = {*(step.get("params") or {}), *(RESERVED if step.get("for_each") else ())}
    needed = schema.get("required")
    certain = not step.get("when") and not step.get("for_each")
    for name, about in properties.items():
        if name not in own:
            required = certain and isinstance(needed, list) and name in needed
            yield name, about if isinstance(about, Mapping) else {}, required


class LabelsField(forms.CharField):
    """Labels of a run, one per line. Its value is an object of texts, which the API validates."""

    def clean(self, value: Any) -> dict[str, str]:
        labels: dict[str, str] = {}
        for line in (super().clean(value) or "").splitlines():
            name, colon, text = (part.strip() for part in line.partition(":"))
            if not name and not text:
                continue
            if not colon:
                raise forms.ValidationError(f"“{line.strip()[:80]}” does not have the form name: text.")
            if name in labels:
                raise forms.ValidationError(f"“{name[:80]}” appears twice.")
            labels[name] = text
        return labels


class StartForm(ApiForm):
    """The form that starts a run of one version. It is refused when another version is the latest by then."""

    content = forms.CharField(
        label="Input",
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 4}),
        help_text="The text that the first steps work on, such as a brief or an article.",
    )
    name = forms.CharField(
        label="Subject",
        required=False,
        max_length=LONGEST_NAME,
        help_text="The name of the run in lists. If empty, it is taken from the pipeline or its parameters.",
    )
    labels = LabelsField(
        label="Labels",
        required=False,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="One per line, such as client: acme. The list of runs can be filtered by them.",
    )
    priority = forms.ChoiceField(choices=[(name, name) for name in BANDS], initial="normal")
    more = JsonField(
        label="Other parameters", required=False, help_text='As JSON, such as {"topic": "bees"}.'
    )

    def __init__(self, data: Any = None, *, parameters: list[Parameter]) -> None:
        super().__init__(data)
        self.parameters = {each.field_name: each for each in parameters}
        own = {name: each.field() for name, each in self.parameters.items()}
        self.fields = {**own, **self.fields}

    def body(self) -> dict[str, Any]:
        cleaned = self.cleaned_data
        params = {
            each.name: cleaned[name]
            for name, each in self.parameters.items()
            if cleaned.get(name) not in (None, "") and cleaned[name] != each.default
        }
        body: dict[str, Any] = {
            "params": {**(cleaned.get("more") or {}), **params},
            "priority": cleaned["priority"],
            **{name: cleaned[name] for name in ("name", "labels") if cleaned[name]},
        }
        return body | ({"input": {"content": cleaned["content"]}} if cleaned["content"].strip() else {})

    def places(self) -> Mapping[str, str]:
        params = {at("params", each.name): name for name, each in self.parameters.items()}
        return {**params, "input.content": "content"}

    def blame(self, reply: Reply) -> None:
        # An error of a step's parameters is one of the run's.
        errors = {path[max(path.find("params"), 0) :]: message for path, message in reply.errors.items()}
        super().blame(replace(reply, errors=errors))


def find_version(tenant_id: UUID, key: str, number: int | None = None) -> tuple[Any, PipelineVersion]:
    """Return a pipeline and its latest version, or the one with this number. Raises `Http404`. In the caller's `tenant_scope`."""
    pipeline = _with_pauses(tenant_id).filter(key=key.replace("\x00", "")).first_or_raise(Http404())
    rows = PipelineVersion.objects.for_tenant(tenant_id).filter(pipeline_id=pipeline.pk)
    version = rows.filter(number=pipeline.latest if number is None else number).first_or_raise(Http404())
    return pipeline, version


def _with_pauses(tenant_id: UUID) -> Any:
    return pausing.with_pauses(Pipeline.objects.for_tenant(tenant_id), PauseKind.PIPELINE)


def draw_version(
    version_id: UUID, states: Mapping[str, StepPicture] | None = None, **options: Any
) -> SafeString:
    try:
        definition = versions.compile_version(version_id).definition
    except DefinitionError:
        return SafeString("")  # an old version in a format that is no longer supported; its steps are listed
    svg = diagram.draw(definition, states, styled=False, widest=PAGE_WIDTH, **options)
    return mark_safe(svg)  # noqa: S308  # `draw` escapes every text and checks every link
