"""The admin of tenants' settings, sessions and skills for agents.

Credentials can be written but never read: they are encrypted when the form is saved, and no page, log or history displays them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin import EmptyFieldListFilter
from django.core.exceptions import ValidationError
from django.db.models import F
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.safestring import SafeString
from rest_framework.exceptions import ValidationError as RefusedBody
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldBooleanSwitchWidget

from agents import credentials
from agents.api.configurations import AgentSettingsSerializer, AuthSerializer, errors_of_endpoint
from agents.models import AgentConfig, AgentSession, Skill
from tenants import strict_json
from tenants.admin.bases import PlatformAdmin, RecordAdmin, SeenForm, UndeletableAdmin, badge
from tenants.api.problems import flatten_errors

AUTH_HELP = (
    'As JSON, for example {"type": "bearer", "token": "…"}, {"type": "header", "name": "X-Key", "value": "…"} or '
    '{"type": "basic", "username": "…", "password": "…"}. Never displayed again. Leave empty to keep the stored ones.'
)
LONGEST_AUTH = 10_000
OBJECTS = ("retry", "rate", "backlog", "may_hold")  # fields of JSON


class SecretTextarea(UnfoldAdminTextareaWidget):
    """A text area whose value is never rendered, not even when the form is rendered again because of an error in another field."""

    def format_value(self, value: Any) -> str:
        return ""


class SealingForm(SeenForm):
    """A form whose model stores credentials in `auth_sealed`, which it does not display: so `counted_by` tells of their changes."""

    auth = forms.CharField(
        label="New credentials",
        required=False,
        help_text=AUTH_HELP,
        widget=SecretTextarea(attrs={"rows": 3, "autocomplete": "off", "spellcheck": "false"}),
    )
    forget_auth = forms.BooleanField(
        label="Delete the stored credentials", required=False, widget=UnfoldBooleanSwitchWidget
    )

    def clean_auth(self) -> Mapping[str, str] | None:
        text = self.cleaned_data["auth"].strip()
        if not text:
            return None
        try:
            auth = strict_json.loads(text.encode(), max_bytes=LONGEST_AUTH)
        except strict_json.StrictJSONError as error:
            raise ValidationError(f"This is not valid JSON: {error.message}") from error
        if not isinstance(auth, dict) or not all(isinstance(value, str) for value in auth.values()):
            raise ValidationError("Credentials must be an object whose values are texts.")
        body = AuthSerializer(data=auth)
        if not body.is_valid():
            # The errors name members and never quote their values.
            raise ValidationError([f"{path}: {message}" for path, message in flatten_errors(body.errors)])
        return auth

    def seal(self, context: str) -> None:
        """Store the entered credentials in the instance, encrypted for the row that `context` names."""
        if self.cleaned_data.get("forget_auth"):
            self.instance.auth_sealed = ""
        if self.cleaned_data.get("auth"):
            self.instance.auth_sealed = credentials.seal(self.cleaned_data["auth"], context=context)


class SealingAdmin(UndeletableAdmin):
    """Displays whether credentials are stored, and under which key."""

    form = SealingForm

    @display(description="Stored credentials")
    def stored_auth(self, row: Any) -> str:
        return (
            f"Yes, sealed with the key {row.auth_sealed.partition(':')[0]!r}." if row.auth_sealed else "None."
        )


class AgentConfigForm(SealingForm):
    """Validates addresses and objects like the API."""

    counted_by = "version"

    def clean(self) -> dict[str, Any]:
        values = super().clean()
        self._check_objects(values)
        agent = values.get("agent") or getattr(self.instance, "agent", None)
        if agent is None or not {"endpoint", "adapter"} & set(self.changed_data):
            return values
        chosen = {name: values.get(name) or None for name in ("adapter", "endpoint")}
        for member, error in errors_of_endpoint(agent, chosen).items():
            self.add_error(member, error)
        return values

    def _check_objects(self, values: dict[str, Any]) -> None:
        """Convert the changed objects to their stored form, and add an error with its path for each invalid member."""
        fields = AgentSettingsSerializer().fields
        for name in OBJECTS:
            if name in self.changed_data and values.get(name, {}) != {}:
                try:
                    values[name] = fields[name].run_validation(values[name])
                except RefusedBody as error:
                    for path, message in flatten_errors(error.detail):
                        self.add_error(name, f"{path}: {message}" if path else message)


@admin.register(AgentConfig)
class AgentConfigAdmin(SealingAdmin):
    form = AgentConfigForm
    list_display = ("agent", "tenant", "max_concurrency", "adapter", "endpoint", "enabled", "paused")
    list_filter = ("adapter", "enabled", "paused")
    search_fields = ("agent__role",)
    autocomplete_fields = ("agent",)
    readonly_fields: tuple[str, ...] = ("stored_auth", "version")
    fixed_fields = ("tenant", "agent")  # because the credentials are encrypted for them
    counts_changes = True
    is_deletable = True  # without it, the registry's settings apply
    fieldsets = (
        (None, {"fields": ("tenant", "agent", "enabled", "paused", "hears_of_failures", "may_hold")}),
        (
            "Limits",
            {
                "fields": (
                    "max_concurrency",
                    "max_concurrency_per_group",
                    "timeout_seconds",
                    "retry",
                    "rate",
                    "backlog",
                )
            },
        ),
        ("Connection", {"fields": ("adapter", "endpoint", "model")}),
        ("Instructions", {"fields": ("instructions",)}),
        ("Credentials", {"fields": ("stored_auth", "auth", "forget_auth", "version")}),
    )

    def save_model(self, request: HttpRequest, obj: AgentConfig, form: SealingForm, change: bool) -> None:
        form.seal(credentials.config_context(obj.tenant_id, obj.agent_id))
        super().save_model(request, obj, form, change)


@admin.register(AgentSession)
class AgentSessionAdmin(RecordAdmin):
    list_display = ("agent", "tenant", "deliverable_id", "external_session_id", "updated_at", "situation")
    list_filter = (("ended_at", EmptyFieldListFilter), "end_reason")
    search_fields = ("external_session_id",)
    fields = (
        "id", "tenant", "agent", "deliverable_id", "external_session_id", "situation", "briefing", "state", "created_at", "updated_at",
        "ended_at",
    )  # fmt: skip

    @display(description="State")
    def situation(self, session: AgentSession) -> SafeString:
        return badge(session.end_reason or "live", "" if session.ended_at else "success")


@admin.register(Skill)
class SkillAdmin(PlatformAdmin):
    list_display = ("key", "tenant", "name", "kind", "roles_in_words", "enabled", "version", "updated_at")
    list_filter = ("kind", "enabled")
    search_fields = ("key", "name")
    readonly_fields: tuple[str, ...] = ("version", "created_at", "updated_at")
    fixed_fields = ("tenant", "key")  # because agents refer to it by its key
    fieldsets = (
        (None, {"fields": ("tenant", "key", "name", "kind", "enabled", "roles")}),
        ("Content", {"fields": ("description", "content")}),
        ("History", {"fields": ("version", "created_at", "updated_at")}),
    )

    @display(description="Roles")
    def roles_in_words(self, skill: Skill) -> str:
        return ", ".join(skill.roles) or "all"

    def save_model(self, request: HttpRequest, obj: Skill, form: forms.ModelForm, change: bool) -> None:
        if change and not form.changed_data:
            return
        if change:
            # The database increments, so that two concurrent saves make two versions.
            obj.version, obj.updated_at = F("version") + 1, Now()
        super().save_model(request, obj, form, change)
        obj.refresh_from_db()
