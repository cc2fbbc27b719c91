"""The form of a deliverable."""

from __future__ import annotations

from typing import Any

from django import forms

from pipelines import deliverables


class DeliverableForm(forms.ModelForm):
    def clean_pipelines(self) -> list[str]:
        keys = self.cleaned_data["pipelines"]
        if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
            raise forms.ValidationError('This is a list of keys, such as ["content-brief"].')
        return keys

    def clean_params(self) -> dict[str, Any]:
        params = self.cleaned_data["params"] or {}
        if not isinstance(params, dict):
            raise forms.ValidationError("Parameters are an object.")
        return params

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        tenant = self.instance.tenant if self.instance.tenant_id else values.get("tenant")
        if tenant is not None and "pipelines" in values:
            for key in sorted(deliverables.unknown_pipelines(tenant.pk, values["pipelines"])):
                self.add_error("pipelines", f"There is no pipeline {key!r} of this tenant.")
        return values
