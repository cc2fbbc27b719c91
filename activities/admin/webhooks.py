"""Webhooks and what became of their deliveries. Shown only: tenants change them over the API, and nobody sees a secret."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString
from unfold.decorators import display

from activities.admin import labels
from tenants.admin.bases import RecordAdmin, TenantFilter, badge, link_to
from tenants.models.events import WebhookDelivery, WebhookEndpoint


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(RecordAdmin):
    list_display = ("url", "tenant", "description", "enabled", "off_reason", "failures", "failing_since")
    list_filter = (TenantFilter, "enabled", "off_reason")
    search_fields = ("url", "description", "tenant__slug")
    fields = (
        "id", "tenant", "url", "description", "kinds", "enabled", "off_reason", "failures", "failing_since", "paused_until",
        "previous_until", "version", "created_at",
    )  # fmt: skip


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(RecordAdmin):
    list_display = (
        "created_at",
        "webhook",
        "tenant",
        "kind",
        "situation",
        "attempts",
        "response_status",
        "error",
    )
    list_filter = (TenantFilter, "state", "kind")
    list_select_related = ("endpoint",)
    search_fields = ("endpoint__url", "tenant__slug")
    ordering = ("-created_at",)
    stands_for = {"situation": "state", "webhook": "endpoint_id"}
    fields = (
        "id", "webhook", "tenant", "event_number", "kind", "situation", "attempts", "next_attempt_at", "response_status",
        "duration_ms", "error", "created_at", "ended_at",
    )  # fmt: skip

    @display(description="State")
    def situation(self, delivery: WebhookDelivery) -> SafeString:
        return badge(delivery.state, labels.WEBHOOK_DELIVERY.get(delivery.state, ""))

    @display(description="Webhook")
    def webhook(self, delivery: WebhookDelivery) -> SafeString:
        return link_to(WebhookEndpoint, delivery.endpoint_id, delivery.endpoint)
