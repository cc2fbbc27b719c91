"""A pipeline's definition in a form: as text, and with scripts as a list of steps beside it that is kept in step with the text.

Every fault is named by its path, and saving makes a new version. The text alone is sent and saved, so nothing is lost without scripts.
"""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminTextareaWidget

from agents import configuration
from pipelines import versions
from pipelines.admin.writing import as_yaml
from pipelines.definition import DefinitionError, PipelineDefinition, load
from pipelines.models import ActivityTemplate, Pipeline, PipelineVersion
from tenants.context import tenant_scope

CHECK = "_check"  # the button of a browser without scripts

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


class DefinitionEditor(UnfoldAdminTextareaWidget):
    """The text. A script of ours makes an editor of it, for which `config` says where to have it checked and which roles there are."""

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
    """What a person edits of a pipeline. Its key, name and description stand in the definition."""

    definition = forms.CharField(
        strip=False,
        widget=DefinitionEditor,
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
        self.fields["definition"].widget.config = {
            "check": reverse("admin:pipelines_pipeline_check"),
            "tenant": "" if self.instance._state.adding else str(self.instance.tenant_id),
            "pipeline": str(self.instance.pk) if newest else "",
            "roles": sorted(configuration.known_roles()),
        }

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        tenant = values.get("tenant") or (None if self.instance._state.adding else self.instance.tenant)
        if tenant and values.get("definition"):
            try:
                self._check(tenant.pk, values["definition"])
            except DefinitionError as error:
                self.add_error("definition", [ValidationError(str(fault)) for fault in error.faults])
        if CHECK in self.data and not self.errors:
            self.add_error(None, "Checked and not saved: there is nothing wrong with it.")
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
        self.data_of_definition = read(text)
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


def read(text: str) -> dict[str, Any]:
    """The data that a text holds, JSON or YAML. Raises `DefinitionError`."""
    return load(text, filename="definition.json" if text.lstrip().startswith("{") else "definition.yaml")
