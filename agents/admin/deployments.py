"""Deployments of agents: deployed, promoted and rolled back by buttons, and never edited: what was is history."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import display

from agents import configuration, deployments
from agents.api.registry import fault_of_address
from agents.exceptions import RegistryError
from agents.models import AgentVersionDeployment
from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import NOTHING, ShownInline, actor_of, badge, link_to

PROMOTE = Action(
    "promote_selected",
    "Bring into production",
    "In production",
    "This version serves all tenants from now on; the one in production becomes history, to which you can roll back.",
    (RegistryError,),
    path="promote",
    icon="rocket_launch",
    do=lambda request, row, notes: deployments.promote(row.agent_id, row.pk, actor=actor_of(request)),
)


class DeploymentForm(forms.ModelForm):
    """A version to deploy."""

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        agent, endpoint = values.get("agent"), values.get("endpoint")
        if agent and endpoint and (fault := fault_of_address(agent.adapter, endpoint)):
            self.add_error("endpoint", fault)
        seen = deployments.in_production(agent.role) if agent else None
        wanted = (values.get("version"), endpoint or "")
        if values.get("environment") == "production" and seen and wanted == (seen.version, seen.endpoint):
            self.add_error("version", ValidationError("This version is in production already."))
        return values

    def validate_constraints(self) -> None:
        """Left to the database: deploying replaces what these would take for a conflict."""


class _Shown:
    """How a deployment is shown in lists."""

    @display(description="Where")
    def where(self, deployment: AgentVersionDeployment) -> SafeString:
        if deployment.replaced_at is not None:
            return badge(f"formerly {deployment.environment}")
        return badge(deployment.environment, "success" if deployment.environment == "production" else "info")

    @display(description="Replaced")
    def replaced(self, deployment: AgentVersionDeployment) -> str:
        if deployment.replaced_at is None:
            return NOTHING
        return f"{deployment.replaced_at:%Y-%m-%d %H:%M:%S}Z by {deployment.replaced_by or 'nobody known'}"

    @display(description="Promote")
    def promotion(self, deployment: AgentVersionDeployment) -> SafeString:
        """A link to the page that asks; it is not the present one's."""
        if deployment.environment == "production" and deployment.replaced_at is None:
            return NOTHING
        address = reverse("admin:agents_agentversiondeployment_promote", args=[deployment.pk])
        return format_html('<a class="text-link" href="{}">Bring into production</a>', address)


class DeploymentInline(_Shown, ShownInline):
    """The versions of an agent, newest first."""

    model = AgentVersionDeployment
    fields = ("version_link", "where", "endpoint", "deployed_by", "deployed_at", "replaced", "promotion")
    readonly_fields = fields
    per_page = 20
    verbose_name_plural = "Versions"

    @display(description="Version")
    def version_link(self, deployment: AgentVersionDeployment) -> SafeString:
        return link_to(AgentVersionDeployment, deployment.pk, deployment.version)


@admin.register(AgentVersionDeployment)
class AgentVersionDeploymentAdmin(_Shown, ActionsAdmin):
    form = DeploymentForm
    list_display = ("version", "agent", "where", "endpoint", "deployed_by", "deployed_at", "replaced")
    list_filter = ("environment", ("replaced_at", admin.EmptyFieldListFilter))
    list_select_related = ("agent",)
    search_fields = ("agent__role", "version")
    autocomplete_fields = ("agent",)
    fields = ("agent", "version", "environment", "endpoint")
    readonly_fields: tuple[str, ...] = ()
    row_actions = (PROMOTE,)
    ordering = ("-deployed_at", "-id")

    def get_fields(self, request: HttpRequest, obj: AgentVersionDeployment | None = None) -> Any:
        shown = ("deployed_by", "deployed_at", "replaced", "promoted_from", "previous")
        return (*self.fields, *shown) if obj else self.fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.get_fields(request, obj) if obj else ()

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # What was deployed is history; the buttons ask for the permission to look.

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"environment": "staging", **super().get_changeform_initial_data(request)}

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        made = deployments.deploy(
            obj.agent_id, obj.version, obj.environment, endpoint=obj.endpoint, actor=actor_of(request)
        )
        obj.pk = made.pk
        obj.refresh_from_db()
        obj._state.adding = False
        configuration.forget()

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            response: HttpResponse = super().changeform_view(request, *args, **kwargs)
        except RegistryError as error:
            messages.error(request, f"Not deployed: {error}")
            return HttpResponseRedirect(request.get_full_path())
        return response

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        found = self.get_object(request, object_id)
        serves = found and found.environment == "production" and found.replaced_at is None
        return [] if not found or serves else super().get_actions_detail(request, object_id)
