"""Webhooks: where a tenant's events are sent. A secret is shown once."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.conf import settings
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from activities.api.decisions import EmptySerializer
from activities.api.webhook_bodies import (
    WebhookBodySerializer,
    WebhookDeliverySerializer,
    WebhookSerializer,
    WebhookWithSecretSerializer,
)
from activities.exceptions import ActivityError
from activities.webhooks import repeating, signing
from agents import outbound
from agents.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from agents.api.strict import read
from agents.exceptions import OutboundRefused
from tenants.api import idempotency
from tenants.api.faults import InvalidRequest
from tenants.api.filters import FlagFilter
from tenants.api.versions import Versioned
from tenants.api.views import TenantViewSet
from tenants.events.models import WebhookEndpoint
from tenants.models import Role

ADDRESS = "/api/v1/webhooks/"


class TooManyWebhooks(ActivityError):
    """Every event may go to each of them, so there may be only so many."""

    code = "too_many_webhooks"


class WebhookFilter(django_filters.FilterSet):
    enabled = FlagFilter()

    class Meta:
        model = WebhookEndpoint
        fields: tuple[str, ...] = ()


class WebhookViewSet(Versioned, TenantViewSet):  # type: ignore[misc]  # `request` is the view's
    queryset = WebhookEndpoint.objects
    serializer_class = WebhookSerializer
    filterset_class = WebhookFilter
    search_fields = ("url", "description")
    ordering_fields = ("created_at",)
    lookup_value_converter = "uuid"
    reject_duplicate_keys = True
    scope = "webhooks"
    required_role: ClassVar[Role] = Role.ADMIN  # an address may hold what only its owner should know

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.action in ("create", "update"):
            self.body = read(WebhookBodySerializer, request.data)
            # Before the transaction, since a name is looked up.
            if not idempotency.is_repetition(request, self.principal):
                _refuse_address(self.body["url"])

    @operation("The webhooks", answer=WebhookSerializer(many=True), refusals=(400,))
    def list(self, request: Request) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(WebhookSerializer(page, many=True).data)

    @operation("One webhook", answer=WebhookSerializer, refusals=(404,))
    def retrieve(self, request: Request, pk: UUID) -> Response:
        return Response(WebhookSerializer(self.get_object()).data)

    @operation(
        "Make a webhook",
        request=WebhookBodySerializer,
        answer=WebhookWithSecretSerializer,
        status=201,
        refusals=(409,),
        parameters=(IDEMPOTENCY_KEY,),
    )
    def create(self, request: Request) -> Response:
        """It gets what happens from now on. The answer holds the secret, once: a repetition with the same `Idempotency-Key` comes
        without it.
        """
        most = settings.ORCHESTRATOR_WEBHOOKS_PER_TENANT
        if WebhookEndpoint.objects.for_tenant(self.tenant_id).count() >= most:
            raise TooManyWebhooks(f"There are {most} webhooks; remove one first.")
        webhook = WebhookEndpoint(tenant_id=self.tenant_id)
        self._put(webhook)
        secret = signing.renew(webhook)
        webhook.save(force_insert=True)
        webhook.refresh_from_db()
        place = {"Location": f"{ADDRESS}{webhook.pk}/"}
        return Response(_with_secret(webhook, secret), status=201, headers=place)

    @operation(
        "Change a webhook",
        request=WebhookBodySerializer,
        answer=WebhookSerializer,
        refusals=(404,),
        parameters=(IF_MATCH,),
    )
    def update(self, request: Request, pk: UUID) -> Response:
        """It keeps its secret. Changing one that the system has switched off switches it on, unless `enabled` is false."""
        webhook = self._locked(pk)
        self._put(webhook)
        webhook.off_reason, webhook.failures = "", 0
        webhook.failing_since = webhook.paused_until = None
        self._save(webhook)
        return Response(WebhookSerializer(webhook).data)

    @operation("Remove a webhook", answer=None, status=204, refusals=(404,), parameters=(IF_MATCH,))
    def destroy(self, request: Request, pk: UUID) -> Response:
        """What is still on its way there is not sent any more, and the log of its deliveries goes with it."""
        self._locked(pk).delete()
        return Response(status=204)

    @operation(
        "Give a webhook a new secret",
        request=EmptySerializer,
        answer=WebhookWithSecretSerializer,
        refusals=(404,),
        parameters=(IDEMPOTENCY_KEY, IF_MATCH),
    )
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, pk: UUID) -> Response:
        """The one before signs as well for 24 hours."""
        read(EmptySerializer, request.data)
        webhook = self._locked(pk)
        secret = signing.renew(webhook)
        self._save(webhook)
        return Response(_with_secret(webhook, secret))

    @operation(
        "Send a test to a webhook",
        request=EmptySerializer,
        answer=WebhookDeliverySerializer,
        status=202,
        refusals=(404, 409),
        parameters=(IDEMPOTENCY_KEY,),
    )
    @action(detail=True, methods=["post"])
    def test(self, request: Request, pk: UUID) -> Response:
        """A message of type `webhook.test`. Look at the deliveries to see what became of it."""
        read(EmptySerializer, request.data)
        delivery = repeating.test(self.get_object())
        delivery.refresh_from_db()
        return Response(WebhookDeliverySerializer(delivery).data, status=202)

    def _locked(self, pk: UUID) -> WebhookEndpoint:
        own = WebhookEndpoint.objects.for_tenant(self.tenant_id).select_for_update()
        webhook: WebhookEndpoint | None = own.filter(pk=pk).first()
        if webhook is None:
            raise NotFound
        self.check_if_match(webhook.version)
        return webhook

    def _put(self, webhook: WebhookEndpoint) -> None:
        webhook.url = self.body["url"]
        webhook.description = self.body.get("description", "")
        webhook.kinds = self.body.get("kinds", [])
        webhook.enabled = self.body.get("enabled", True)

    def _save(self, webhook: WebhookEndpoint) -> None:
        webhook.version += 1
        webhook.save()


def _refuse_address(url: str) -> None:
    try:
        outbound.check_url(url)
    except OutboundRefused as refusal:
        raise InvalidRequest([("url", str(refusal))]) from refusal


def _with_secret(webhook: WebhookEndpoint, secret: str) -> dict[str, Any]:
    return {**WebhookSerializer(webhook).data, "secret": secret}
