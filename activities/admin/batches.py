"""Batches of model providers, and the work in them. Shown, never changed."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.decorators import display

from activities.admin import labels
from activities.admin.records import PartAdmin
from activities.models import BatchItem, ProviderBatch
from activities.provider_batches import items
from tenants.admin.bases import RecordAdmin, TenantFilter, badge, link_to


@admin.register(ProviderBatch)
class ProviderBatchAdmin(RecordAdmin):
    list_display = ("created_at", "tenant", "place", "model", "situation", "size", "sendings", "ended_at")
    list_filter = (TenantFilter, "state", "model")
    search_fields = ("external_id", "tenant__slug")
    stands_for = {"place": "provider", "situation": "state"}
    fields = (
        "id", "tenant", "place", "model", "agent_role", "situation", "size", "sent", "sendings", "external_id", "not_ours", "error",
        "due_at", "created_at", "sent_at", "ended_at",
    )  # fmt: skip

    @display(description="Provider")
    def place(self, batch: ProviderBatch) -> str:
        return items.provider_name(batch.provider)

    @display(description="State")
    def situation(self, batch: ProviderBatch) -> SafeString:
        return badge(batch.state, labels.BATCH.get(batch.state, ""))


@admin.register(BatchItem)
class BatchItemAdmin(PartAdmin):
    list_display = ("created_at", "activity_link", "tenant", "agent_role", "model", "situation", "batch_link")
    list_filter = (TenantFilter, "state", "model")
    list_select_related = ("activity", "batch")
    stands_for = {"run_link": "run_id", "situation": "state", "batch_link": "batch_id", "place": "provider"}
    fields = (
        "id", "activity_link", "tenant", "run_link", "fence", "batch_link", "agent_role", "place", "model", "situation", "bytes",
        "leave_at", "created_at", "closed_at", "body", "begun",
    )  # fmt: skip

    @display(description="Provider")
    def place(self, item: BatchItem) -> str:
        return items.provider_name(item.provider)

    @display(description="State")
    def situation(self, item: BatchItem) -> SafeString:
        return badge(item.state, labels.BATCH_ITEM.get(item.state, ""))

    @display(description="Batch")
    def batch_link(self, item: BatchItem) -> SafeString:
        return link_to(ProviderBatch, item.batch_id, item.batch)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        # A list needs none of the prompts.
        alone = request.resolver_match and "object_id" in request.resolver_match.kwargs
        return rows if alone else rows.defer("body", "begun")
