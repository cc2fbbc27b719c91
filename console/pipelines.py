"""Pipelines: looked at by everybody, started and paused by operators, copied and changed by admins."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import Any
from uuid import UUID

from django import forms
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString, mark_safe

from activities.states import BANDS
from agents.models import Agent
from console.internal_api import ApiForm, JsonField, Reply, call_api
from console.page import (
    ACTING,
    LOOKING,
    NOT_OFFERED,
    PAGE_WIDTH,
    PageContext,
    Refused,
    page,
    redirect_with_success,
    refusal_of,
    render_page,
)
from pipelines import diagram, selectors, versions
from pipelines.admin.pipeline import as_yaml
from pipelines.conditions import RESERVED
from pipelines.definition import DefinitionError
from pipelines.definition.errors import at
from pipelines.models import Pipeline, PipelineRun, PipelineVersion, Schedule
from pipelines.models.pipeline import KEY_PATTERN
from pipelines.subjects import subject_of
from tenants import pausing, strict_json
from tenants.context import tenant_scope
from tenants.models import PauseKind, Role
from tenants.plain_names import LONGEST_NAME

CHANGED = "The pipeline has changed since you looked: see what a run takes now, and start it then."
LONGEST_NUMBER = 9  # digits


@page("pipelines")
def every(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The pipelines, and how the last run of each went."""
    search = request.GET.get("search", "").replace("\x00", "").strip()[:200]
    context = {"listing": listing(visit.tenant_id, search), **_may(visit)}
    return render_page(request, visit, "console/pipelines/every.html", context)


def _act(request: HttpRequest, visit: PageContext, key: str) -> HttpResponse:
    action, _, number = request.POST.get("deed", "").partition(":")
    if action in ("pause", "resume"):
        reply = call_api(request, visit.who, "POST", f"/pipelines/{key}/{action}/", {})
        words = "Paused: nothing new of its runs starts" if action == "pause" else "It goes on"
    elif action == "restore" and (version_number := _number(number)) is not None:
        with tenant_scope(visit.tenant_id):
            _, version = find_version(visit.tenant_id, key, version_number)
        seen = _number(request.POST.get("latest", ""))
        reply = call_api(request, visit.who, "PUT", f"/pipelines/{key}/", version.definition, version=seen)
        words = f"Version {version_number} is the newest again, under a new number"
    else:
        raise Refused(NOT_OFFERED, status=400)
    if reply.status == HTTPStatus.NOT_FOUND:
        raise Http404
    if not reply.ok:
        raise refusal_of(reply)
    return redirect_with_success(request, visit, reverse("console:pipeline", args=[key]), words)


@page("pipelines", act=_act)
def one(request: HttpRequest, visit: PageContext, key: str) -> HttpResponse:
    """One pipeline. A POST pauses it, resumes it, or makes one of its versions the newest again."""
    found = find_pipeline(visit.tenant_id, key, _number(request.GET.get("version", "")))
    context = {"one": found, "pipeline": found.pipeline, **_may(visit)}
    return render_page(request, visit, "console/pipelines/one.html", context)


@page("pipelines", (*LOOKING, *ACTING), least=Role.OPERATOR)
def start(request: HttpRequest, visit: PageContext, key: str) -> HttpResponse:
    """A form for what a run of the newest version takes. A POST starts it."""
    with tenant_scope(visit.tenant_id):
        pipeline, version = find_version(visit.tenant_id, key)
        parameters = parameters_of(version)
    form, is_other = StartForm(parameters=parameters), request.POST.get("version") != str(version.number)
    if request.method == "POST":
        form = StartForm(request.POST, parameters=parameters)
        if is_other:
            form.status = HTTPStatus.CONFLICT
            form.add_error(None, CHANGED)
        elif reply := form.send(request, visit.who, "POST", f"/pipelines/{key}/runs/"):
            address = reverse("console:run", args=[reply.data["id"]])
            return redirect_with_success(request, visit, address, "The run has begun.")
    context = {"form": form, "pipeline": pipeline, "version": version}
    return render_page(
        request, visit, "console/pipelines/start.html", context, form.status if form.errors else 200
    )


class CopyForm(ApiForm):
    """What the copy is called. Everything else is as in the pipeline that is copied."""

    name = forms.CharField(max_length=200)
    key = forms.RegexField(
        KEY_PATTERN,
        max_length=63,
        help_text="Its name for programs: lower-case letters, digits, - and _.",
        error_messages={"invalid": "Use lower-case letters, digits, - and _."},
    )


@page("pipelines", (*LOOKING, *ACTING), least=Role.ADMIN)
def copy(request: HttpRequest, visit: PageContext, key: str) -> HttpResponse:
    """A new pipeline that does what the newest version of this one does."""
    with tenant_scope(visit.tenant_id):
        pipeline, version = find_version(visit.tenant_id, key)
    form = CopyForm(initial={"name": f"Copy of {pipeline.name}"[:200], "key": f"{key}-copy"[:63]})
    if request.method == "POST":
        form = CopyForm(request.POST)
        if form.is_valid():
            body = {**version.definition, **form.body()}
            reply = call_api(request, visit.who, "POST", "/pipelines/", body)
            if reply.ok:
                address = reverse("console:pipeline", args=[form.cleaned_data["key"]])
                return redirect_with_success(request, visit, address, f"Made: {form.cleaned_data['name']}")
            form.blame(reply)
    context = {"form": form, "pipeline": pipeline}
    return render_page(
        request, visit, "console/pipelines/copy.html", context, form.status if form.errors else 200
    )


def _may(visit: PageContext) -> dict[str, Any]:
    """What the person may do with pipelines, and where they are edited."""
    is_admin = visit.who.role.includes(Role.ADMIN)
    editor = f"{reverse('admin:pipelines_pipeline_add')}?{urlencode({'tenant': str(visit.tenant_id)})}"
    return {
        "may_operate": visit.who.role.includes(Role.OPERATOR),
        "may_arrange": is_admin,
        "new_pipeline": editor if is_admin else "",
    }


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER else None


# The parameters of a pipeline as fields of a form: what its own defaults and the input schemas of its agents say about them.
#
# A schema that says more than a field can show is held against what was typed by the API, whose errors stand at the field.

MOST_FIELDS = 60  # of one form; what is beyond is typed as JSON
LONG = 200  # characters from which on a text has an area of its own
LONGEST_JSON = 100_000  # bytes
UNSAID = "\u2013"


class ValueField(forms.CharField):
    """Any value, typed as JSON."""

    widget = forms.Textarea(attrs={"rows": 3, "spellcheck": "false", "class": "mono"})

    def prepare_value(self, value: Any) -> Any:
        return (
            value
            if isinstance(value, str) or value is None
            else json.dumps(value, indent=2, ensure_ascii=False)
        )

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            return strict_json.loads(text.encode(), max_bytes=LONGEST_JSON)
        except strict_json.StrictJSONError as error:
            raise forms.ValidationError(f"This is no JSON: {error.message}") from error


class ChoiceField(forms.ChoiceField):
    """One of the values that a schema names, whatever kind they are of."""

    def __init__(self, values: list[Any], **options: Any) -> None:
        self.values, self.places = values, {str(place) for place in range(len(values))}
        shown = [
            (str(place), value if isinstance(value, str) else json.dumps(value))
            for place, value in enumerate(values)
        ]
        super().__init__(choices=[("", UNSAID), *shown], **options)

    def prepare_value(self, value: Any) -> Any:
        """What was chosen is the place of a value; what the form begins with is the value itself."""
        if isinstance(value, str) and value in self.places:
            return value
        return str(self.values.index(value)) if value in self.values else value

    def clean(self, value: Any) -> Any:
        found = super().clean(value)
        return self.values[int(found)] if found else None


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a run. `schema` is what its agent says about it; `default` what the pipeline gives without a word."""

    name: str
    schema: Mapping[str, Any]
    required: bool
    default: Any = None

    @property
    def field_name(self) -> str:
        """In the form: the same for the same parameter, whatever it is called."""
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
    """What a run of this version may be given, those that must be given first. One statement."""
    steps, defaults = version.definition["steps"], version.definition.get("params") or {}
    roles = {step["agent_role"] for step in steps if step.get("agent_role")}
    schemas = dict(Agent.objects.filter(role__in=roles).values_list("role", "input_schema"))
    known: dict[str, Parameter] = {}
    for step in steps:
        for name, schema, required in _find_asked_by(step, schemas.get(step.get("agent_role"))):
            before = known.get(name)
            required = (required and name not in defaults) or (before is not None and before.required)
            known[name] = Parameter(name, before.schema if before else schema, required, defaults.get(name))
    for name, value in defaults.items():
        known.setdefault(name, Parameter(name, {}, False, value))
    return sorted(known.values(), key=lambda each: not each.required)[:MOST_FIELDS]


def _find_asked_by(step: Mapping[str, Any], schema: Any) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """What a step's agent wants that the step does not say itself, and whether it cannot start without."""
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
    """Labels of a run, one in a line. Its value is an object of texts; what they may be is the API's business."""

    def clean(self, value: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in (super().clean(value) or "").splitlines():
            name, colon, text = (part.strip() for part in line.partition(":"))
            if not name and not text:
                continue
            if not colon:
                raise forms.ValidationError(f"“{line.strip()[:80]}” is not of the form name: text.")
            if name in found:
                raise forms.ValidationError(f"“{name[:80]}” stands there twice.")
            found[name] = text
        return found


class StartForm(ApiForm):
    """What a run is given. Made for one version; anyone who sends it for another is told what a run of the newest takes."""

    content = forms.CharField(
        label="What the first steps work on",
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 4}),
        help_text="A text, such as a brief or the article that is to be worked on.",
    )
    name = forms.CharField(
        label="What it is about",
        required=False,
        max_length=LONGEST_NAME,
        help_text="By this it is found in the list of runs. Left empty, the pipeline or its parameters say it.",
    )
    labels = LabelsField(
        label="Labels",
        required=False,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="One in a line, such as client: acme. The list of runs can be narrowed by them.",
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

    def blame(self, reply: Reply) -> None:
        places = {at("params", each.name): name for name, each in self.parameters.items()} | {
            "input.content": "content",
            "labels": "labels",
            "name": "name",
        }
        self.status = reply.status
        for path, message in reply.errors.items():
            own = path[path.index("params") :] if "params" in path else path
            name = next(
                (
                    field
                    for place, field in places.items()
                    if own == place or own.startswith((f"{place}.", f"{place}["))
                ),
                None,
            )
            self.add_error(name, message if name else f"{path} {message}".strip())
        if not reply.errors:
            self.add_error(None, reply.reason)


# Pipelines as their pages show them: what each does, its versions, its runs and what starts it.

MOST_LISTED = 200
NEWEST_RUNS = 300  # of the tenant, among which the last of each pipeline is looked for
MOST_RUNS = 10
MOST_SCHEDULES = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One pipeline of the list. `last` is None when none of its runs is among the tenant's newest."""

    pipeline: Any
    last: PipelineRun | None


@dataclass(frozen=True, slots=True)
class Listing:
    rows: Sequence[Row]
    has_more: bool
    search: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step as its definition says."""

    shown: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.shown.get("name") or self.shown["id"])

    @property
    def who(self) -> str:
        return str(self.shown.get("agent_role") or self.shown.get("human_role") or "")

    @property
    def needs(self) -> Sequence[str]:
        found: Sequence[str] = self.shown.get("depends_on") or ()
        return found

    @property
    def remarks(self) -> Sequence[str]:
        """What there is to know of it besides."""
        step = self.shown
        remarks = [
            ("a person approves its output", step.get("requires_approval")),
            ("a person decides", step.get("is_approval_gate")),
            ("a person does it", step.get("human_role") and not step.get("is_approval_gate")),
            (f"only when {step.get('when')}", step.get("when")),
            (f"for each of {step.get('for_each')}", step.get("for_each")),
        ]
        return [words for words, holds in remarks if holds]


@dataclass(frozen=True, slots=True)
class Subject:
    """A run, and what it is about."""

    run: PipelineRun
    about: str


@dataclass(frozen=True, slots=True)
class One:
    """The page of one pipeline. `version` is the one that is looked at."""

    pipeline: Any
    version: PipelineVersion
    steps: Sequence[Step]
    picture: SafeString
    text: str
    versions: Sequence[PipelineVersion]
    runs: Sequence[Subject]
    schedules: Sequence[Schedule]

    @property
    def is_newest(self) -> bool:
        return bool(self.version.number == self.pipeline.latest)


def listing(tenant_id: UUID, search: str = "") -> Listing:
    """The pipelines by name."""
    with tenant_scope(tenant_id):
        rows = _with_pauses(tenant_id)
        if search:
            rows = rows.filter(
                Q(name__icontains=search) | Q(key__icontains=search) | Q(description__icontains=search)
            )
        found = list(rows.order_by("name", "key")[: MOST_LISTED + 1])
        last = _last_runs(tenant_id) if found else {}
    shown = [Row(pipeline, last.get(pipeline.pk)) for pipeline in found[:MOST_LISTED]]
    return Listing(shown, len(found) > MOST_LISTED, search)


def find_pipeline(tenant_id: UUID, key: str, number: int | None = None) -> One:
    """One pipeline, as its newest version or the one with this number has it. Raises `Http404`."""
    with tenant_scope(tenant_id):
        pipeline, version = find_version(tenant_id, key, number)
        known = selectors.versions_of(tenant_id, pipeline)
        runs = selectors.runs(tenant_id).filter(version__in=[each.pk for each in known])
        newest = list(runs.order_by("-started_at", "-pk")[:MOST_RUNS])
        schedules = Schedule.objects.for_tenant(tenant_id).filter(pipeline_id=pipeline.pk)
        starting = list(schedules.order_by("name", "pk")[:MOST_SCHEDULES])
        picture = _draw_version(version, pipeline.name)
    return One(
        pipeline=pipeline,
        version=version,
        steps=[Step(each) for each in version.definition["steps"]],
        picture=picture,
        text=as_yaml(version.definition),
        versions=known,
        runs=[Subject(run, subject_of(run.name, run.params) or "without a subject") for run in newest],
        schedules=starting,
    )


def find_version(tenant_id: UUID, key: str, number: int | None = None) -> tuple[Any, PipelineVersion]:
    """A pipeline, and its newest version or the one with this number. Raises `Http404`. In the caller's `tenant_scope`."""
    pipeline = _with_pauses(tenant_id).filter(key=key.replace("\x00", "")).first()
    if pipeline is None:
        raise Http404
    rows = PipelineVersion.objects.for_tenant(tenant_id).filter(pipeline_id=pipeline.pk)
    version = rows.filter(number=pipeline.latest if number is None else number).first()
    if version is None:
        raise Http404
    return pipeline, version


def _with_pauses(tenant_id: UUID) -> Any:
    return pausing.with_pauses(Pipeline.objects.for_tenant(tenant_id), PauseKind.PIPELINE)


def _last_runs(tenant_id: UUID) -> dict[UUID, PipelineRun]:
    newest = selectors.runs(tenant_id).order_by("-started_at", "-pk")[:NEWEST_RUNS]
    return {run.version.pipeline_id: run for run in reversed(newest)}


def _draw_version(version: PipelineVersion, title: str) -> SafeString:
    try:
        definition = versions.compile_version(version.pk).definition
    except DefinitionError:
        return SafeString("")  # An old version that the present program cannot read; its steps are listed.
    svg = diagram.draw(definition, None, title=title, styled=False, widest=PAGE_WIDTH)
    return mark_safe(svg)  # noqa: S308  # `draw` escapes every text and checks every link
