"""The audit trail and the broken glass in the admin: looked at only."""

from __future__ import annotations

from django.contrib import admin
from unfold.decorators import display

from tenants.admin.bases import NOTHING, RecordAdmin, TenantFilter
from tenants.models.audit import AuditEntry, BreakGlass


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
