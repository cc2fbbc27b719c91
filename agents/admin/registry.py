"""The admin of the registry: the settings, versions and health of agents, and what needs them.

Deployments are created, promoted and rolled back by buttons. They are never edited, because they are history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import action, display

from agents import configuration, credentials, deployments, health, registry
from agents.admin.configurations import SealingAdmin, SealingForm
from agents.api.configurations import error_of_address
from agents.api.registry import PLAIN, AgentChangeSerializer
from agents.exceptions import RegistryError
from agents.models import Agent, AgentVersionDeployment
from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import NOTHING, ShownInline, actor_of, badge, link_to
from tenants.api.problems import flatten_errors

PROMOTE = Action(
    "promote",
    "Promoted",
    "This version will serve all tenants. The current version moves to the history, and you can roll back to it.",
    title="Promote to production",
    icon="rocket_launch",
    offered=lambda row: row.environment != "production" or row.replaced_at is not None,
    do=lambda request, row, notes: deployments.promote(row.agent_id, row.pk, actor=actor_of(request)),
)


class DeploymentForm(forms.ModelForm):
    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        agent, endpoint = values.get("agent"), values.get("endpoint")
        if agent and endpoint and (error := error_of_address(agent.adapter, endpoint)):
            self.add_error("endpoint", error)
        current = deployments.in_production(agent.role) if agent else None
        pair = (values.get("version"), endpoint or "")
        if (
            values.get("environment") == "production"
            and current
            and pair == (current.version, current.endpoint)
        ):
            self.add_error("version", ValidationError("This version is in production already."))
        return values

    def validate_constraints(self) -> None:
        """Leave constraints to the database, because deploying replaces rows that this check would report as a conflict."""


class _DeploymentColumns:
    @display(description="Environment")
    def where(self, deployment: AgentVersionDeployment) -> SafeString:
        if deployment.replaced_at is not None:
            return badge(f"formerly {deployment.environment}")
        return badge(deployment.environment, "success" if deployment.environment == "production" else "info")

    @display(description="Replaced")
    def replaced(self, deployment: AgentVersionDeployment) -> str:
        if deployment.replaced_at is None:
            return NOTHING
        return f"{deployment.replaced_at:%Y-%m-%d %H:%M:%S}Z by {deployment.replaced_by or 'unknown'}"

    @display(description="Promote")
    def promotion(self, deployment: AgentVersionDeployment) -> SafeString:
        """Return a link to the confirmation page, except for the version in production."""
        if deployment.environment == "production" and deployment.replaced_at is None:
            return NOTHING
        address = reverse("admin:agents_agentversiondeployment_promote", args=[deployment.pk])
        return format_html('<a class="text-link" href="{}">Promote to production</a>', address)


class DeploymentInline(_DeploymentColumns, ShownInline):
    """The versions of an agent, newest first."""

    model = AgentVersionDeployment
    fields = ("version_link", "where", "endpoint", "deployed_by", "deployed_at", "replaced", "promotion")
    per_page = 20
    verbose_name_plural = "Versions"

    @display(description="Version")
    def version_link(self, deployment: AgentVersionDeployment) -> SafeString:
        return link_to(AgentVersionDeployment, deployment.pk, deployment.version)


@admin.register(AgentVersionDeployment)
class AgentVersionDeploymentAdmin(_DeploymentColumns, ActionsAdmin):
    form = DeploymentForm
    list_display = ("version", "agent", "where", "endpoint", "deployed_by", "deployed_at", "replaced")
    list_filter = ("environment", ("replaced_at", admin.EmptyFieldListFilter))
    search_fields = ("agent__role", "version")
    autocomplete_fields = ("agent",)
    fields = ("agent", "version", "environment", "endpoint")
    readonly_fields: tuple[str, ...] = ()
    row_actions = (PROMOTE,)
    refused_late = (RegistryError,)
    ordering = ("-deployed_at", "-id")

    def get_fields(self, request: HttpRequest, obj: AgentVersionDeployment | None = None) -> Any:
        history = ("deployed_by", "deployed_at", "replaced", "promoted_from", "previous")
        return (*self.fields, *history) if obj else self.fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.get_fields(request, obj) if obj else ()

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # Deployments are history; the buttons require the permission to view.

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"environment": "staging", **super().get_changeform_initial_data(request)}

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        deployment = deployments.deploy(
            obj.agent_id, obj.version, obj.environment, endpoint=obj.endpoint, actor=actor_of(request)
        )
        self.show_saved(obj, deployment.pk)
        configuration.forget()


ROLL_BACK = Action(
    "roll-back",
    "Rolled back",
    "The previous version in production will serve again. Current runs keep their version.",
    danger=True,
    icon="undo",
    permission="change",
    do=lambda request, agent, notes: deployments.roll_back(agent.role, actor=actor_of(request)),
)

CHECK = Action(
    "check-now",
    "Check requested",
    "Within seconds, a worker calls the endpoints of these agents and records whether they answer. Nothing else changes.",
    icon="monitor_heart",
    permission="change",
    do=lambda request, agent, notes: health.request_check(agent.role),
)


class AgentForm(SealingForm):
    """Validates with the serializers of the API, so that both accept the same."""

    counted_by = "revision"

    def clean(self) -> dict[str, Any]:
        values = super().clean()
        chosen = {name: values[name] for name in PLAIN if values.get(name) not in (None, "", {})}
        body = AgentChangeSerializer(data=chosen)
        for path, message in [] if body.is_valid() else flatten_errors(body.errors):
            name, _, rest = path.partition(".")
            field = name if name in self.fields and name not in self.errors else None
            self.add_error(field, f"{rest}: {message}" if rest else message)
        for name in ("endpoint", "health_url"):
            self._check_address(name, values)
        return values

    def _check_address(self, name: str, values: Mapping[str, Any]) -> None:
        adapter = "http" if name == "health_url" else values.get("adapter", "")
        changed = name in self.changed_data or (name == "endpoint" and "adapter" in self.changed_data)
        address = values.get(name)
        if address and changed and name not in self.errors and (error := error_of_address(adapter, address)):
            self.add_error(name, error)


@admin.register(Agent)
class AgentAdmin(SealingAdmin, ActionsAdmin):
    form = AgentForm
    list_display = (
        "role", "name", "adapter", "in_production", "seen_health", "tenant_concurrency", "max_concurrency", "enabled", "paused",
    )  # fmt: skip
    list_filter = ("adapter", "health", "enabled", "paused")
    search_fields = ("role", "name")
    readonly_fields: tuple[str, ...] = (
        "stored_auth", "created_at", "seen_health", "health_detail", "health_checked_at", "health_failures", "needed_by", "revision",
        "guard",
    )  # fmt: skip
    fixed_fields = ("role",)  # which is part of the names of queues, rows and encrypted credentials
    is_deletable = True
    inlines = (DeploymentInline,)
    row_actions = (ROLL_BACK, CHECK)
    actions_detail: Any = ("deploy",)
    fieldsets = (
        (
            None,
            {"fields": ("role", "name", "description", "enabled", "paused", "seen_health", "needed_by")},
        ),
        (
            "Connection",
            {
                "fields": (
                    "adapter", "endpoint", "model", "options", "health_url", "health_detail", "health_checked_at", "health_failures",
                ),
                "classes": ("tab",),
            },
        ),
        ("Instructions", {"fields": ("instructions", "input_schema"), "classes": ("tab",)}),
        ("Credentials", {"fields": ("stored_auth", "auth", "forget_auth"), "classes": ("tab",)}),
        (
            "Limits",
            {
                "fields": (
                    "tenant_concurrency", "max_concurrency", "guard", "timeout_seconds", "retry", "backlog", "revision", "created_at",
                ),
                "classes": ("tab",),
            },
        ),
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Agent]:
        rows: QuerySet[Agent] = super().get_queryset(request)
        return rows.annotate(version_in_production=deployments.of_row_in_production().values("version"))

    @display(description="Starts a minute for each worker")
    def guard(self, agent: Agent) -> str:
        return str(agent.starts_per_minute() or "no limit")

    @display(description="In production", ordering="version_in_production")
    def in_production(self, agent: Agent) -> str:
        return getattr(agent, "version_in_production", None) or NOTHING

    @display(description="Health", ordering="health")
    def seen_health(self, agent: Agent) -> SafeString:
        return badge(agent.health or "unknown")

    @display(description="Needed by")
    def needed_by(self, agent: Agent) -> SafeString:
        """Return links to everything enabled that refers to the agent."""
        if not agent.pk or not (references := registry.references_to(agent.role)):
            return NOTHING
        links = [(_link_reference(each), each.tenant) for each in references[: registry.NAMED]]
        items = format_html_join("", "<li>{} <small>{}</small></li>", links)
        more = len(references) - registry.NAMED
        return format_html('<ul class="orc-rows">{}{}</ul>', items, f"and {more} more" if more > 0 else "")

    def save_model(self, request: HttpRequest, obj: Agent, form: SealingForm, change: bool) -> None:
        form.seal(credentials.agent_context(obj.role))
        address_changed = bool({"adapter", "endpoint", "health_url"} & set(form.changed_data))
        if not change:
            super().save_model(request, obj, form, change)
            return
        if address_changed:
            registry.reset_health(obj)
        obj.revision = F("revision") + 1
        obj.save(update_fields=registry.columns_to_save(address_changed=address_changed))
        obj.refresh_from_db()
        configuration.forget()
        if not obj.enabled and (references := registry.references_to(obj.role)):
            needed_by = registry.references_in_words(references)
            messages.warning(request, f"{obj.role} is switched off and still needed by {needed_by}.")

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Rows that are deleted with the agent need no separate permission; rows that need the agent prevent its deletion."""
        deleted, counts, _, protected = super().get_deleted_objects(objs, request)
        references = [str(each) for agent in objs for each in registry.references_to(agent.role)]
        return deleted, counts, set(), [*protected, *references]

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return self._unless_refused(
            request, lambda: super(AgentAdmin, self).delete_view(request, object_id, extra_context)
        )

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return self._unless_refused(
            request, lambda: super(AgentAdmin, self).changelist_view(request, extra_context)
        )

    def _unless_refused(self, request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
        try:
            return view()
        except RegistryError as error:
            messages.error(request, str(error))  # Something needs it that did not when the page was rendered.
            return HttpResponseRedirect(reverse("admin:agents_agent_changelist"))

    def delete_model(self, request: HttpRequest, obj: Agent) -> None:
        registry.remove(obj.role, revision=obj.revision)
        configuration.forget()

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Agent]) -> None:
        for agent in queryset:
            self.delete_model(request, agent)

    @action(description="Deploy a version", url_path="deploy", icon="rocket_launch", permissions=["change"])
    def deploy(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Redirect to the form. Changes nothing."""
        form = reverse("admin:agents_agentversiondeployment_add")
        return HttpResponseRedirect(f"{form}?{urlencode({'agent': object_id})}")


def _link_reference(reference: registry.Reference) -> Any:
    if not reference.model:
        return reference.what
    # By name, because `agents` must not import the models above it.
    address = reverse(f"admin:{reference.model.replace('.', '_')}_change", args=[reference.key])
    return format_html('<a class="text-link" href="{}">{}</a>', address, reference.what)
