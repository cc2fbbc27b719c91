"""Bulk jobs in the admin: how they stand, to be looked at only."""

from __future__ import annotations

from django.contrib import admin

from activities.models import BulkItem, BulkJob
from tenants.admin.bases import RecordAdmin, TenantFilter


@admin.register(BulkJob)
class BulkJobAdmin(RecordAdmin):
    list_display = (
        "created_at",
        "tenant",
        "action",
        "status",
        "total",
        "done",
        "skipped",
        "failed",
        "created_by",
    )
    list_filter = (TenantFilter, "status", "action")
    search_fields = ("tenant__slug", "created_by")
    fields = (
        "id", "tenant", "action", "status", "filter", "arguments", "total", "done", "skipped", "failed", "created_by", "cancelled_by",
        "created_at", "started_at", "finished_at",
    )  # fmt: skip


@admin.register(BulkItem)
class BulkItemAdmin(RecordAdmin):
    list_display = ("activity_id", "job", "tenant", "state", "ended_at", "error")
    list_filter = (TenantFilter, "state")
    search_fields = ("tenant__slug",)
