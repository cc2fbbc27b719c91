"""A pipeline's definition as text in a form: every fault is named by its path, and saving makes a new version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import yaml
from django import forms
from django.core.exceptions import ValidationError
from unfold.widgets import UnfoldAdminTextareaWidget

from pipelines import versions
from pipelines.definition import DefinitionError, PipelineDefinition, StepDefinition, load
from pipelines.models import ActivityTemplate, Pipeline, PipelineVersion
from tenants.context import tenant_scope

EXAMPLE = """\
key: content-brief
name: Content brief
steps:
  - id: research
    agent_role: keyword-researcher
  - id: brief
    agent_role: content-brief-writer
    depends_on: [research]
    requires_approval: true
"""


class PipelineForm(forms.ModelForm):
    """What a person edits of a pipeline. Its key, name and description stand in the definition."""

    definition = forms.CharField(
        strip=False,
        widget=UnfoldAdminTextareaWidget(
            attrs={"rows": 28, "class": "orc-code", "spellcheck": "false", "wrap": "off"}
        ),
        help_text="YAML or JSON. Saving a changed definition makes a new version; runs under way keep theirs.",
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

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        tenant = values.get("tenant") or (self.instance.tenant if self.instance.pk else None)
        if tenant and values.get("definition"):
            try:
                self._check(tenant.pk, values["definition"])
            except DefinitionError as error:
                self.add_error("definition", [ValidationError(str(fault)) for fault in error.faults])
        return values

    @property
    def is_changed(self) -> bool:
        """Whether saving makes a new version."""
        return self.parsed is not None and self.parsed.digest() != self.newest_digest

    def save_version(self, tenant_id: Any, *, actor: str) -> PipelineVersion:
        """Raises `VersionConflict` when somebody else saved a version since this form was opened."""
        return versions.save(
            tenant_id, self.data_of_definition, actor=actor, expected=self.cleaned_data.get("expected")
        )

    def _newest(self) -> PipelineVersion | None:
        if not self.instance.pk:
            return None
        return PipelineVersion.objects.filter(pipeline_id=self.instance.pk).order_by("-number").first()

    def _check(self, tenant_id: Any, text: str) -> None:
        self.data_of_definition = load(
            text, filename="definition.json" if text.lstrip().startswith("{") else "definition.yaml"
        )
        with tenant_scope(tenant_id):
            templates = {
                template.key: template for template in ActivityTemplate.objects.for_tenant(tenant_id)
            }
            self.parsed = versions.checked(self.data_of_definition, templates)
            taken = (
                Pipeline.objects.for_tenant(tenant_id)
                .filter(key=self.parsed.key)
                .exclude(pk=self.instance.pk)
                .exists()
            )
        if taken:
            self.add_error("definition", f"key: there is another pipeline {self.parsed.key!r} already")
        elif self.instance.key and self.parsed.key != self.instance.key:
            self.add_error(
                "definition", f"key: must stay {self.instance.key!r}; another key is another pipeline"
            )


def as_yaml(definition: Mapping[str, Any]) -> str:
    """A stored definition as a person would write it: in the order of the fields, without what goes without saying."""
    steps = [_tidy(step, is_first=index == 0) for index, step in enumerate(definition["steps"])]
    whole = {
        name: definition[name] for name in ("key", "name", "description", "params") if definition.get(name)
    } | {"steps": steps}
    text: str = yaml.dump(whole, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


_ORDER = [part.name for part in fields(StepDefinition)]
_UNSAID = StepDefinition(id="").to_dict()


def _tidy(step: Mapping[str, Any], *, is_first: bool) -> dict[str, Any]:
    # A step without `depends_on` runs after the one before it, so only the first may leave out that it depends on nothing.
    needless = {name for name in _ORDER if name != "depends_on" and step.get(name) == _UNSAID.get(name)}
    if is_first and not step.get("depends_on"):
        needless.add("depends_on")
    return {name: step[name] for name in _ORDER if name in step and name not in needless}


class _Dumper(yaml.SafeDumper):
    """Lists of short words on one line, as in `depends_on: [research, brief]`."""

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        plain = all(isinstance(item, str) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=plain or flow_style)

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)
