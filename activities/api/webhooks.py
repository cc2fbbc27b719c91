"""Webhooks that receive a tenant's events, and their deliveries. A secret is returned only once."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.conf import settings
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from activities.exceptions import ActivityError
from activities.notifications import webhooks
from agents import outbound
from agents.exceptions import OutboundRefused
from tenants.api import idempotency
from tenants.api.documentation import change, command, creation, operation, posting, removal
from tenants.api.filters import StrictFilterSet, WholeNumberFilter
from tenants.api.serializers import (
    OPTIONAL,
    Computed,
    EmptySerializer,
    Flag,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    read,
)
from tenants.api.views import TenantView, VersionedResource, describe_resource, put_members, require_found
from tenants.events import log
from tenants.models import Role
from tenants.models.events import KINDS, OffReason, WebhookDelivery, WebhookDeliveryState, WebhookEndpoint


class WebhookSerializer(ResponseSerializer):
    """An address that events are sent to."""

    id = serializers.UUIDField()
    url = serializers.CharField()
    description = serializers.CharField()
    kinds = serializers.ListField(
        child=serializers.CharField(), help_text="The kinds of events to send. If empty: all."
    )
    enabled = serializers.BooleanField()
    off_reason = serializers.ChoiceField(
        choices=[*OffReason.choices, ("", "")],
        help_text="Why the system disabled it: gone (the receiver answered 410) or failing (nothing was delivered for days).",
    )
    failing_since = serializers.DateTimeField(
        allow_null=True, help_text="The time of the first failure since the last success."
    )
    previous_secret_until = serializers.DateTimeField(
        source="previous_until",
        allow_null=True,
        help_text="Until when messages are also signed with the previous secret.",
    )
    version = serializers.IntegerField(help_text="Increases with every change; the ETag begins with it.")
    created_at = serializers.DateTimeField()


class WebhookWithSecretSerializer(WebhookSerializer):
    secret = serializers.CharField(
        allow_null=True,
        help_text="Verifies the messages. It is returned only here; null in a repeated answer.",
    )


class WebhookBodySerializer(StrictSerializer):
    """A complete webhook. Omitted members are cleared; `enabled` is true by default."""

    url = Text(max_length=2_000)
    description = Text(allow_blank=True, max_length=200, **OPTIONAL)
    kinds = serializers.ListField(
        child=OneOf(choices=list(KINDS)),
        help_text="The kinds of events to send. Default, or if empty: all.",
        **OPTIONAL,
    )
    enabled = Flag(**OPTIONAL)

    def validate_url(self, url: str) -> str:
        if self.context["checks_address"]:
            try:
                outbound.check_url(url, purpose=outbound.WEBHOOKS)
            except OutboundRefused as refusal:
                raise serializers.ValidationError(str(refusal)) from refusal
        return url


class WebhookDeliverySerializer(ResponseSerializer):
    """The delivery of one event to the webhook, with the result of its last attempt."""

    id = serializers.UUIDField(help_text="The `webhook-id` of every attempt.")
    event = serializers.IntegerField(source="event_number", allow_null=True, help_text="Null for a test.")
    kind = serializers.CharField()
    state = serializers.ChoiceField(
        choices=WebhookDeliveryState.choices,
        help_text="dropped means that the webhook was disabled before the delivery.",
    )
    attempts = serializers.IntegerField(help_text="Attempts since it was created or redelivered.")
    response_status = serializers.IntegerField(allow_null=True, help_text="Null if there was no answer.")
    duration_ms = serializers.IntegerField(allow_null=True)
    error = serializers.CharField(help_text="The error, with the beginning of the receiver's answer.")
    next_attempt_at = Computed(
        {},
        lambda delivery: delivery.next_attempt_at if delivery.state == WebhookDeliveryState.PENDING else None,
    )
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)


@describe_resource(many="The webhooks", one="One webhook")
class WebhookViewSet(VersionedResource):
    queryset = WebhookEndpoint.objects
    serializer_class = WebhookSerializer
    address = "/api/v1/webhooks/"
    volatile = ("off_reason", "failing_since")
    filterset_fields = ("enabled",)
    search_fields = ("url", "description")
    ordering_fields = ("created_at",)
    scope = "webhooks"
    required_role: ClassVar[Role] = Role.ADMIN  # because a URL may contain secrets

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.action in ("create", "update"):
            # Before the transaction, because it resolves a host name, which may fail in a repetition.
            is_repetition = idempotency.is_repetition(request, self.principal)
            checks_address = not is_repetition
            self.body = (
                read(WebhookBodySerializer, request.data, checks_address=checks_address)
                if self.action == "create"
                else self.read_change(WebhookBodySerializer, checks_address=checks_address)
            )

    @creation("Create a webhook", WebhookBodySerializer, WebhookWithSecretSerializer)
    def create(self, request: Request) -> Response:
        """It receives the events that happen from now on. The answer contains the secret only once: a repetition with the same
        `Idempotency-Key` does not contain it.
        """
        most = settings.ORCHESTRATOR_WEBHOOKS_PER_TENANT
        if WebhookEndpoint.objects.for_tenant(self.tenant_id).count() >= most:
            raise ActivityError(
                f"There are {most} webhooks, which is the maximum; remove one first.",
                code="too_many_webhooks",
            )
        webhook = WebhookEndpoint(tenant_id=self.tenant_id)
        self._number_earlier_events()
        put_members(webhook, self.body, WebhookBodySerializer().fields)
        secret = webhooks.renew_secret(webhook)
        webhook.save(force_insert=True)
        webhook.refresh_from_db()
        return self.answer_created(webhook, {**self.show(webhook), "secret": secret})

    @change("Change a webhook", WebhookBodySerializer, WebhookSerializer)
    def update(self, request: Request, pk: UUID) -> Response:
        """It keeps its secret. If the system has disabled it, a change enables it again, unless `enabled` is false."""
        if self.rows_to_lock().filter(pk=pk, enabled=False).exists():
            self._number_earlier_events()
        webhook = self.lock_row()
        put_members(webhook, self.body, WebhookBodySerializer().fields)
        webhook.off_reason, webhook.failures = "", 0
        webhook.failing_since = webhook.paused_until = None
        self.save_changed(webhook)
        return Response(self.show(webhook))

    @removal("Remove a webhook")
    def destroy(self, request: Request, pk: UUID) -> Response:
        """Pending deliveries are not sent any more, and the log of its deliveries is deleted."""
        self.lock_row().delete()
        return Response(status=204)

    @command("Rotate the secret of a webhook", EmptySerializer, WebhookWithSecretSerializer)
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, pk: UUID) -> Response:
        """For 24 hours, messages are also signed with the previous secret."""
        webhook = self.lock_row()
        secret = webhooks.renew_secret(webhook)
        self.save_changed(webhook)
        return Response({**self.show(webhook), "secret": secret})

    @posting(
        "Send a test to a webhook", EmptySerializer, WebhookDeliverySerializer, refusals=(404,), status=202
    )
    @action(detail=True, methods=["post"])
    def test(self, request: Request, pk: UUID) -> Response:
        """Sends a message of the type `webhook.test`. Its delivery shows the result."""
        delivery = webhooks.send_test(self.lock_row())  # so that it cannot be deleted or disabled meanwhile
        delivery.refresh_from_db()
        return Response(WebhookDeliverySerializer(delivery).data, status=202)

    def _number_earlier_events(self) -> None:
        """Number all events until now, so that a webhook that is switched on does not receive them.

        Call it before any row is locked, because the log is always locked before its webhooks."""
        log.number_unread(self.tenant_id)


class WebhookDeliveryFilter(StrictFilterSet):
    state = django_filters.MultipleChoiceFilter(choices=WebhookDeliveryState.choices)
    event = WholeNumberFilter(field_name="event_number", min_value=1, max_value=2**63 - 1)


class WebhookPart(TenantView):
    """Base of the views below one webhook."""

    queryset: Any = WebhookDelivery.objects
    scope = "webhooks"
    required_role = Role.ADMIN

    def find_address(self) -> QuerySet[WebhookEndpoint]:
        return WebhookEndpoint.objects.for_tenant(self.tenant_id).filter(pk=self.kwargs["webhook_id"])

    def webhook(self) -> WebhookEndpoint:
        return require_found(self.find_address().first())


class WebhookDeliveries(ViewSetMixin, WebhookPart):
    """Deliveries that have ended are stored as long as events."""

    serializer_class = WebhookDeliverySerializer
    filterset_class = WebhookDeliveryFilter
    ordering = ("-created_at", "-id")

    @operation(
        "The deliveries of a webhook, newest first",
        answer=WebhookDeliverySerializer(many=True),
        refusals=(400, 404),
    )
    def list(self, request: Request, webhook_id: UUID) -> Response:
        rows = self.get_queryset().filter(endpoint=self.webhook())
        return self.answer_page(rows, WebhookDeliverySerializer)


class WebhookRedelivery(WebhookPart):
    @posting(
        "Redeliver a delivery that has ended",
        EmptySerializer,
        WebhookDeliverySerializer,
        refusals=(404, 410),
        status=202,
        notes={410: "The event is no longer stored."},
    )
    def post(self, request: Request, webhook_id: UUID, delivery_id: UUID) -> Response:
        """It keeps its `webhook-id`, and gets its full number of attempts."""
        delivery = webhooks.send_again(self.webhook(), delivery_id)
        return Response(WebhookDeliverySerializer(delivery).data, status=202)
