"""The deliveries of a webhook: what became of each event, and sending one again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import django_filters
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from activities.api.decisions import EmptySerializer
from activities.api.webhook_bodies import WebhookDeliverySerializer
from activities.webhooks import repeating
from agents.api.documentation import IDEMPOTENCY_KEY, operation
from agents.api.strict import read
from tenants.api.views import TenantView
from tenants.events.models import WebhookDelivery, WebhookDeliveryState, WebhookEndpoint
from tenants.models import Role


class WebhookDeliveryFilter(django_filters.FilterSet):
    state = django_filters.MultipleChoiceFilter(choices=WebhookDeliveryState.choices)
    event = django_filters.NumberFilter(field_name="event_number", min_value=1, max_value=2**63 - 1)

    class Meta:
        model = WebhookDelivery
        fields: tuple[str, ...] = ()


class WebhookPart(TenantView):
    """Something of the webhook that `webhook_id` of the address names."""

    queryset: Any = WebhookDelivery.objects
    scope = "webhooks"
    required_role = Role.ADMIN

    def webhook(self, webhook_id: UUID) -> WebhookEndpoint:
        found: WebhookEndpoint | None = (
            WebhookEndpoint.objects.for_tenant(self.tenant_id).filter(pk=webhook_id).first()
        )
        if found is None:
            raise NotFound
        return found


class WebhookDeliveries(ViewSetMixin, WebhookPart):
    """Ended ones are kept for as long as events are."""

    serializer_class = WebhookDeliverySerializer
    filterset_class = WebhookDeliveryFilter
    ordering = ("-created_at", "-id")

    @operation(
        "What became of each event, newest first",
        answer=WebhookDeliverySerializer(many=True),
        refusals=(400, 404),
    )
    def list(self, request: Request, webhook_id: UUID) -> Response:
        rows = self.get_queryset().filter(endpoint=self.webhook(webhook_id))
        page = self.paginate_queryset(self.filter_queryset(rows)) or []
        return self.get_paginated_response(WebhookDeliverySerializer(page, many=True).data)


class WebhookRedelivery(WebhookPart):
    @operation(
        "Send a delivery that has ended again",
        request=EmptySerializer,
        answer=WebhookDeliverySerializer,
        status=202,
        refusals=(404, 409, 410),
        notes={410: "The event is no longer kept."},
        parameters=(IDEMPOTENCY_KEY,),
    )
    def post(self, request: Request, webhook_id: UUID, delivery_id: UUID) -> Response:
        """It has the same `webhook-id` as before, and all its attempts again."""
        read(EmptySerializer, request.data)
        delivery = repeating.send_again(self.webhook(webhook_id), delivery_id)
        return Response(WebhookDeliverySerializer(delivery).data, status=202)
