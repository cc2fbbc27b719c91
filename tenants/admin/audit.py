"""The audit trail and the broken glass in the admin: looked at only."""

from __future__ import annotations

from django.contrib import admin
from unfold.decorators import display

from tenants.admin.bases import NOTHING, RecordAdmin, TenantFilter
from tenants.models.audit import AuditEntry, BreakGlass
from tenants.models.events import Event, EventLog, FreshEvent


@admin.register(AuditEntry)
class AuditEntryAdmin(RecordAdmin):
    """Superusers see the platform's own entries as well."""

    list_display = (
        "at",
        "number",
        "actor_in_words",
        "operation",
        "object_in_words",
        "outcome",
        "tenant",
        "ip",
    )
    list_filter = (TenantFilter, "outcome", "actor_kind")
    list_select_related = ("tenant",)
    search_fields = ("actor_name", "operation", "object_id", "request_id", "tenant__slug")
    fields = (
        "number", "at", "tenant", "actor_in_words", "actor_id", "operation", "outcome", "object_kind", "object_id", "changes", "detail",
        "request_id", "ip", "break_glass_id", "id", "previous_hash", "hash",
    )  # fmt: skip
    readonly_fields = fields

    @display(description="Who")
    def actor_in_words(self, entry: AuditEntry) -> str:
        return f"{entry.actor_kind} {entry.actor_name or entry.actor_id}".strip()

    @display(description="Object")
    def object_in_words(self, entry: AuditEntry) -> str:
        return f"{entry.object_kind} {entry.object_id}".strip() or NOTHING


@admin.register(BreakGlass)
class BreakGlassAdmin(RecordAdmin):
    """Whose, why and until when. For superusers: it belongs to the platform."""

    list_display = ("opened_at", "user", "seen", "reason", "expires_at", "ended_at")
    list_select_related = ("user",)
    search_fields = ("slug", "reason", "user__username")
    fields = ("id", "user", "seen", "reason", "opened_at", "expires_at", "ended_at")
    readonly_fields = fields

    @display(description="Tenant")
    def seen(self, glass: BreakGlass) -> str:
        return glass.slug or "all tenants"


# The log of events, as programs see it, and how far it is numbered.


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
    list_display = ("id", "tenant", "activity_id", "first_seq", "last_seq", "kind", "at", "pipeline_run_id")
    list_filter = (TenantFilter,)
    list_select_related = ("tenant",)
    search_fields = ("tenant__slug",)
    fields = ("tenant", "activity_id", "first_seq", "last_seq", "kind", "at", "pipeline_run_id", "data")
    readonly_fields = fields


@admin.register(EventLog)
class EventLogAdmin(RecordAdmin):
    list_display = ("tenant", "last_number", "listened_until")
    list_select_related = ("tenant",)
    search_fields = ("tenant__slug",)
    fields = ("tenant", "last_number", "listened_until")
    readonly_fields = fields
