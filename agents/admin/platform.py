"""The admin of the platform's scheduling settings: one field per key, empty for the default, with changes in the history.

Also the page of model providers, for superusers.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectMultipleWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from agents import scheduler_settings
from agents.governor import overview
from agents.models import PlatformConfig
from agents.scheduler_settings import (
    BACKOFFS,
    CHANNELS,
    KEY,
    KEYS,
    Key,
    SchedulerSettings,
    SettingsInvalid,
    member,
    put,
)
from tenants.admin.bases import UndeletableAdmin, actor_of

DEFAULTS = SchedulerSettings()
NONE_OF_THEM = "none"
TRUTHS = {"true": True, "false": False}


def _field(key: Key) -> forms.Field:
    """Return the form field of a key. An empty field means the default."""
    default = getattr(DEFAULTS, key.attribute)
    default_text = (
        ", ".join(default)
        if isinstance(default, tuple)
        else str(default).lower()
        if isinstance(default, bool)
        else default
    )
    shared: dict[str, Any] = {
        "required": False,
        "label": key.path,
        "help_text": f"{key.meaning} Default: {default_text}.",
    }
    empty = ("", f"default ({default_text})")
    if isinstance(default, bool):
        choices = [empty, *((text, text) for text in TRUTHS)]
        return forms.TypedChoiceField(
            choices=choices,
            coerce=TRUTHS.__getitem__,
            empty_value=None,
            widget=UnfoldAdminSelectWidget,
            **shared,
        )
    if isinstance(default, tuple):
        choices = [*((name, name) for name in CHANNELS), (NONE_OF_THEM, "none of them")]
        return forms.MultipleChoiceField(choices=choices, widget=UnfoldAdminSelectMultipleWidget, **shared)
    if default in BACKOFFS:
        choices = [empty, *((name, name) for name in BACKOFFS)]
        return forms.ChoiceField(choices=choices, widget=UnfoldAdminSelectWidget, **shared)
    if isinstance(default, int):
        return forms.IntegerField(widget=UnfoldAdminIntegerFieldWidget, **shared)
    return forms.CharField(
        max_length=100, widget=UnfoldAdminTextInputWidget(attrs={"placeholder": default_text}), **shared
    )


class SchedulerSettingsForm(forms.ModelForm):
    """A flat form of the nested settings."""

    seen = forms.IntegerField(widget=forms.HiddenInput)

    class Meta:
        model = PlatformConfig
        fields: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields |= {key.attribute: _field(key) for key in KEYS}
        self.initial["seen"] = self.instance.version
        for key in KEYS:
            value = member(self.instance.value, key.parts)
            if isinstance(value, bool):
                value = str(value).lower()
            self.initial[key.attribute] = [NONE_OF_THEM] if value == [] else value

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if values.get("seen") != scheduler_settings.row().version:
            raise ValidationError(
                "Somebody else has changed the settings meanwhile. Reload the page and make your changes again."
            )
        tree: dict[str, Any] = {}
        for key in KEYS:
            if (value := _read_value(values.get(key.attribute))) is not None:
                put(tree, key.parts, value)
        try:
            values["new_settings"] = scheduler_settings.read(tree)
        except SettingsInvalid as error:
            attributes = {key.path: key.attribute for key in KEYS}
            for path, message in error.errors:
                self.add_error(attributes.get(path), message)
        return values


def _read_value(value: Any) -> Any:
    if value in ("", None, []):
        return None
    if isinstance(value, list):
        return [name for name in value if name != NONE_OF_THEM]
    return value


@admin.register(PlatformConfig)
class PlatformConfigAdmin(UndeletableAdmin):
    """The admin of the only row, which is created when it is first saved. Reading it writes nothing."""

    form = SchedulerSettingsForm
    fieldsets = (
        (None, {"fields": ("seen", "enabled", "timezone", "check_interval_ms")}),
        (
            "HTTP client",
            {
                "fields": (
                    "http_timeout_ms",
                    "max_concurrent_requests",
                    "max_retries",
                    "backoff",
                    "backoff_delay_ms",
                    "max_sockets",
                    "keep_alive",
                )
            },
        ),
        ("Batches", {"fields": ("batch_size", "stagger_delay_ms")}),
        ("Monitoring", {"fields": ("monitoring_enabled", "notify_on_failure", "notification_channels")}),
        ("Last change", {"fields": ("version", "updated_at", "updated_by")}),
    )
    readonly_fields = ("version", "updated_at", "updated_by")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        return self.form  # its fields are not fields of the model

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        return redirect("admin:agents_platformconfig_change", KEY)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        return scheduler_settings.row() if object_id == KEY else None

    def save_model(self, request: HttpRequest, obj: PlatformConfig, form: Any, change: bool) -> None:
        saved = scheduler_settings.save(
            form.cleaned_data["new_settings"],
            actor=actor_of(request),
            expected_version=form.cleaned_data["seen"],
        )
        obj.version = saved.version


def providers_page(request: HttpRequest) -> TemplateResponse:
    """Display all providers that were called within two days."""
    if not request.user.is_superuser:
        raise PermissionDenied
    context = {
        **admin.site.each_context(request),
        "title": "Model providers",
        "providers": overview.of_platform(),
    }
    return TemplateResponse(request, "admin/providers.html", context)
