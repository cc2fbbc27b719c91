"""The admin of the registry: agents and the versions of them that are deployed."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import TabularInline

from agents import credentials
from agents.admin.configurations import SealingAdmin, SealingForm
from agents.models import Agent, AgentVersionDeployment
from tenants.admin.bases import PlatformAdmin


class DeploymentInline(TabularInline):
    model = AgentVersionDeployment
    fields = ("version", "environment", "endpoint", "deployed_by", "deployed_at")
    readonly_fields = ("deployed_at",)
    extra = 0


@admin.register(Agent)
class AgentAdmin(SealingAdmin):
    list_display = ("role", "name", "adapter", "tenant_concurrency", "max_concurrency", "enabled", "paused")
    list_filter = ("adapter", "enabled", "paused")
    search_fields = ("role", "name")
    readonly_fields: tuple[str, ...] = ("stored_auth", "created_at")
    inlines = (DeploymentInline,)
    fieldsets = (
        (None, {"fields": ("role", "name", "description", "enabled", "paused")}),
        (
            "How it is reached",
            {"fields": ("adapter", "endpoint", "model", "options", "input_schema"), "classes": ("tab",)},
        ),
        (
            "What it is told",
            {"fields": ("instructions",), "classes": ("tab",)},
        ),
        ("Credentials", {"fields": ("stored_auth", "auth", "forget_auth"), "classes": ("tab",)}),
        (
            "Limits",
            {
                "fields": ("tenant_concurrency", "max_concurrency", "timeout_seconds", "retry"),
                "classes": ("tab",),
            },
        ),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Agent | None = None) -> tuple[str, ...]:
        # The role names queues, rows and sealed credentials.
        return (*self.readonly_fields, "role") if obj else self.readonly_fields

    def save_model(self, request: HttpRequest, obj: Agent, form: SealingForm, change: bool) -> None:
        form.seal(credentials.agent_context(obj.role))
        super().save_model(request, obj, form, change)


@admin.register(AgentVersionDeployment)
class AgentVersionDeploymentAdmin(PlatformAdmin):
    list_display = ("agent", "version", "environment", "endpoint", "deployed_by", "deployed_at")
    list_filter = ("environment",)
    search_fields = ("agent__role", "version")
    autocomplete_fields = ("agent",)
    readonly_fields = ("deployed_at",)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"deployed_by": request.user.get_username(), **super().get_changeform_initial_data(request)}
