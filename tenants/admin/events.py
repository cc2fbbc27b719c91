"""The log of events, as programs see it, and how far it is numbered."""

from __future__ import annotations

from django.contrib import admin

from tenants.admin.bases import RecordAdmin, TenantFilter
from tenants.models.events import Event, EventLog, FreshEvent


@admin.register(Event)
class EventAdmin(RecordAdmin):
    list_display = ("at", "tenant", "number", "kind", "activity_id", "pipeline_run_id")
    list_filter = (TenantFilter,)
    list_select_related = ("tenant",)
    search_fields = ("tenant__slug",)
    fields = ("number", "tenant", "kind", "at", "activity_id", "pipeline_run_id", "data")
    readonly_fields = fields


@admin.register(FreshEvent)
class FreshEventAdmin(RecordAdmin):
    list_display = ("at", "tenant", "kind", "activity_id", "pipeline_run_id")
    list_filter = (TenantFilter,)
    list_select_related = ("tenant",)
    search_fields = ("tenant__slug",)
    fields = ("tenant", "kind", "at", "activity_id", "pipeline_run_id", "data")
    readonly_fields = fields


@admin.register(EventLog)
class EventLogAdmin(RecordAdmin):
    list_display = ("tenant", "last_number", "listened_until")
    list_select_related = ("tenant",)
    search_fields = ("tenant__slug",)
    fields = ("tenant", "last_number", "listened_until")
    readonly_fields = fields
