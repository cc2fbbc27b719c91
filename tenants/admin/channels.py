"""Channels: what tenants' agents need outside. The status is changed by buttons, as over the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from unfold.decorators import action, display

from tenants import channels
from tenants.admin.bases import TenantFilter, badge
from tenants.exceptions import TenantError
from tenants.models import Channel

from .actions import Action, ActionsAdmin

COLOURS = {"active": "success", "expired": "danger"}

EXPIRE = Action(
    "expire_selected",
    "Mark as expired",
    "Marked as expired",
    "Agents are told that they cannot use these channels, and people are alerted.",
    (TenantError,),
    danger=True,
)
REACTIVATE = Action(
    "reactivate_selected",
    "Reactivate",
    "Reactivated",
    "Somebody has signed in there again: agents may rely on these channels. An expiry that is over is forgotten.",
    (TenantError,),
)
DISABLE = Action(
    "disable_selected",
    "Switch off",
    "Switched off",
    "Agents cannot use these channels until they are reactivated. Nobody is alerted.",
    (TenantError,),
    danger=True,
)


@admin.register(Channel)
class ChannelAdmin(ActionsAdmin):
    list_display = ("name", "kind", "tenant", "standing", "expires_at", "status_since")
    list_filter = (TenantFilter, "status")
    list_select_related = ("tenant",)
    search_fields = ("name", "kind", "tenant__slug")
    autocomplete_fields = ("tenant",)
    fields = ("tenant", "kind", "name", "standing", "status_since", "expires_at", "details", "version")
    readonly_fields: tuple[str, ...] = ("standing", "status_since", "version")
    actions = ("expire_selected", "reactivate_selected", "disable_selected")
    actions_detail = ("expire", "reactivate", "disable")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Channel]:
        rows: QuerySet[Channel] = super().get_queryset(request)
        return rows.annotate(standing=channels.STANDING)

    def get_readonly_fields(self, request: HttpRequest, obj: Channel | None = None) -> tuple[str, ...]:
        return (*self.readonly_fields, "tenant") if obj else self.readonly_fields

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_change_permission(request, obj)  # Nothing refers to it by a key.

    def save_model(self, request: HttpRequest, obj: Channel, form: Any, change: bool) -> None:
        obj.version += change
        super().save_model(request, obj, form, change)

    @display(description="Status")
    def standing(self, channel: Channel) -> SafeString:
        status = getattr(channel, "standing", channel.status)
        return badge(status, COLOURS.get(status, ""))

    @admin.action(description="Mark as expired", permissions=["view"])
    def expire_selected(self, request: HttpRequest, queryset: QuerySet[Channel]) -> HttpResponse | None:
        return self.perform(request, queryset, EXPIRE, _each(channels.expire))

    @admin.action(description="Reactivate", permissions=["view"])
    def reactivate_selected(self, request: HttpRequest, queryset: QuerySet[Channel]) -> HttpResponse | None:
        return self.perform(request, queryset, REACTIVATE, _each(channels.reactivate))

    @admin.action(description="Switch off", permissions=["view"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Channel]) -> HttpResponse | None:
        return self.perform(request, queryset, DISABLE, _each(channels.disable))

    @action(description="Mark as expired", url_path="expire", icon="link_off", permissions=["view"])
    def expire(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.perform_one(request, object_id, self.expire_selected)

    @action(description="Reactivate", url_path="reactivate", icon="link", permissions=["view"])
    def reactivate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.perform_one(request, object_id, self.reactivate_selected)

    @action(description="Switch off", url_path="disable", icon="block", permissions=["view"])
    def disable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.perform_one(request, object_id, self.disable_selected)


def _each(act: Callable[..., object]) -> Callable[[Channel, str], object]:
    return lambda channel, notes: act(channel.tenant_id, channel.pk)
