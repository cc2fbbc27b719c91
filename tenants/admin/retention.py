"""The admin of retention: tenants' policies, the leader's passes, numbers of deleted rows, and departed tenants."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminSelectWidget

from tenants.admin.bases import PlatformAdmin, RecordAdmin, actor_of
from tenants.models import DepartedTenant, RetentionPass, RetentionPolicy, RetentionTally, UsageTotal
from tenants.models.retention import ForgottenOutput
from tenants.retention import all_kinds


@admin.register(RetentionPolicy)
class RetentionPolicyAdmin(PlatformAdmin):
    list_display = ("kind", "tenant", "days", "updated_by", "updated_at")
    list_filter = ("kind",)
    search_fields = ("kind",)
    fields = ("tenant", "kind", "days", "updated_by", "updated_at", "version")
    readonly_fields = ("updated_by", "updated_at", "version")
    counts_changes = True

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "kind":
            known = [(name, kind.title) for name, kind in all_kinds().items()]
            return forms.ChoiceField(choices=known, widget=UnfoldAdminSelectWidget)
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: RetentionPolicy, form: Any, change: bool) -> None:
        obj.updated_by = actor_of(request)
        super().save_model(request, obj, form, change)


@admin.register(RetentionPass)
class RetentionPassAdmin(RecordAdmin):
    list_display = ("kind", "began_at", "ended_at", "rows", "total", "due_at")
    ordering = ("kind",)
    search_fields = ("kind",)


@admin.register(RetentionTally)
class RetentionTallyAdmin(RecordAdmin):
    list_display = ("kind", "tenant", "deleted", "last_deleted", "last_at")
    list_filter = ("kind",)
    search_fields = ("kind",)


@admin.register(UsageTotal)
class UsageTotalAdmin(RecordAdmin):
    list_display = (
        "month",
        "tenant",
        "agent_role",
        "model",
        "input_tokens",
        "output_tokens",
        "dollars",
        "runs",
    )
    search_fields = ("agent_role",)


@admin.register(DepartedTenant)
class DepartedTenantAdmin(RecordAdmin):
    list_display = ("slug", "id", "began_at", "erased_at")
    search_fields = ("slug",)


@admin.register(ForgottenOutput)
class ForgottenOutputAdmin(RecordAdmin):
    """Outputs that must be deleted from MongoDB, and may still be there."""

    list_display = ("id", "tenant", "at")
