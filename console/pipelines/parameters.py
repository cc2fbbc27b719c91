"""The parameters of a pipeline as fields of a form: what its own defaults and the input schemas of its agents say about them.

A schema that says more than a field can show is held against what was typed by the API, whose faults stand at the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from django import forms

from activities.states import BANDS
from agents.models import Agent
from console.internal_api import ApiForm, JsonField, Reply
from pipelines.conditions import RESERVED
from pipelines.definition.faults import at
from pipelines.models import PipelineVersion
from tenants import strict_json
from tenants.plain_names import LONGEST_NAME

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
        given: dict[str, Any] = {
            "label": title if isinstance(title, str) and title.strip() else self.name,
            "help_text": about if isinstance(about, str) else "",
            "required": self.required,
            "initial": self.default,
        }
        return self._made(given)

    def _made(self, given: dict[str, Any]) -> forms.Field:
        values = self.schema.get("enum")
        if isinstance(values, list) and values:
            return ChoiceField(values, **given)
        kind = self._kind()
        if kind == "boolean":
            return ChoiceField([True, False], **given)
        if kind == "integer":
            return forms.IntegerField(**given)
        if kind == "number":
            return forms.FloatField(**given)
        if kind == "string":
            return forms.CharField(strip=False, widget=self._text_widget(), **given)
        return ValueField(**given)

    def _kind(self) -> str:
        said = self.schema.get("type")
        kinds = [
            each
            for each in (said if isinstance(said, list) else [said])
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
        for name, schema, required in _asked_by(step, schemas.get(step.get("agent_role"))):
            before = known.get(name)
            required = (required and name not in defaults) or (before is not None and before.required)
            known[name] = Parameter(name, before.schema if before else schema, required, defaults.get(name))
    for name, value in defaults.items():
        known.setdefault(name, Parameter(name, {}, False, value))
    return sorted(known.values(), key=lambda each: not each.required)[:MOST_FIELDS]


def _asked_by(step: Mapping[str, Any], schema: Any) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
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
    """What a run is given. Made for one version; whoever sends it for another is told what a run of the newest takes."""

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
        given = self.cleaned_data
        params = {
            each.name: given[name]
            for name, each in self.parameters.items()
            if given.get(name) not in (None, "") and given[name] != each.default
        }
        body: dict[str, Any] = {
            "params": {**(given.get("more") or {}), **params},
            "priority": given["priority"],
            **{name: given[name] for name in ("name", "labels") if given[name]},
        }
        return body | ({"input": {"content": given["content"]}} if given["content"].strip() else {})

    def blame(self, reply: Reply) -> None:
        places = {at("params", each.name): name for name, each in self.parameters.items()} | {
            "input.content": "content",
            "labels": "labels",
            "name": "name",
        }
        self.status = reply.status
        for path, message in reply.faults.items():
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
        if not reply.faults:
            self.add_error(None, reply.reason)
