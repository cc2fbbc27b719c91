"""Channels: what tenants' agents need outside. The status is changed by buttons, as over the API."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.decorators import display

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
    path="expire",
    icon="link_off",
    do=lambda request, channel, notes: channels.expire(channel.tenant_id, channel.pk),
)
REACTIVATE = Action(
    "reactivate_selected",
    "Reactivate",
    "Reactivated",
    "Somebody has signed in there again: agents may rely on these channels. An expiry that is over is forgotten.",
    (TenantError,),
    path="reactivate",
    icon="link",
    do=lambda request, channel, notes: channels.reactivate(channel.tenant_id, channel.pk),
)
DISABLE = Action(
    "disable_selected",
    "Switch off",
    "Switched off",
    "Agents cannot use these channels until they are reactivated. Nobody is alerted.",
    (TenantError,),
    danger=True,
    path="disable",
    icon="block",
    do=lambda request, channel, notes: channels.disable(channel.tenant_id, channel.pk),
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
    row_actions = (EXPIRE, REACTIVATE, DISABLE)

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
