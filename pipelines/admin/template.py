"""Activity templates. Versions of pipelines hold what a template said when they were saved, so any of it may be changed."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin

from agents import configuration
from pipelines.models import ActivityTemplate
from tenants.admin.bases import PlatformAdmin, TenantFilter


class TemplateForm(forms.ModelForm):
    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        role = values.get("agent_role")
        if role and role not in configuration.known_roles():
            self.add_error("agent_role", f"There is no agent with the role {role!r}.")
        if role and values.get("human_role"):
            self.add_error("human_role", "An agent or a person does it, not both.")
        return values


@admin.register(ActivityTemplate)
class ActivityTemplateAdmin(PlatformAdmin):
    form = TemplateForm
    list_display = ("name", "key", "tenant", "agent_role", "human_role", "requires_approval")
    list_filter = (TenantFilter, "requires_approval", "is_approval_gate")
    list_select_related = ("tenant",)
    search_fields = ("key", "name", "tenant__slug")
    autocomplete_fields = ("tenant",)
    readonly_fields = ("created_at",)
