"""Alerts with their deliveries, and the notification channels that they are sent to."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.db.models import Prefetch, QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities.alerts import acknowledge, try_channel
from activities.exceptions import ActivityError, AlreadyExists
from activities.models import Alert, AlertDelivery, NotificationChannel
from activities.models.alert import AlertKind, ChannelKind, Digest, Severity, Weekday
from activities.notifications import backends, digests
from activities.notifications.backends import InvalidTarget
from agents.exceptions import ConfigurationError
from tenants.api import idempotency
from tenants.api.documentation import change, command, creation, posting, removal
from tenants.api.etags import DigestEtag
from tenants.api.filters import FlagFilter, MomentFilter, StrictFilterSet
from tenants.api.serializers import (
    OPTIONAL,
    Computed,
    EmptySerializer,
    Flag,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    Whole,
    read,
)
from tenants.api.views import Resource, VersionedResource, describe_resource, put_members, require_found
from tenants.context import tenant_scope
from tenants.models import Role, Tenant


class DeliverySerializer(ResponseSerializer):
    """The delivery of an alert to one of the tenant's channels."""

    id = serializers.UUIDField(help_text="The `webhook-id` of a webhook.")
    channel = serializers.UUIDField(source="channel_id")
    kind = serializers.CharField(source="channel_kind")
    name = serializers.CharField(
        source="channel_name", help_text="The channel's name when the alert was raised."
    )
    state = serializers.CharField(
        help_text="pending, sending, sent, failed, or unknown (it may have arrived, and is not repeated)."
    )
    attempts = serializers.IntegerField()
    next_attempt_at = Computed(
        {}, lambda delivery: delivery.next_attempt_at if delivery.state == "pending" else None
    )
    last_error = serializers.CharField()
    sent_at = serializers.DateTimeField(allow_null=True)


class AlertSerializer(ResponseSerializer):
    """A message to people about a problem or a decision."""

    id = serializers.UUIDField()
    kind = serializers.CharField()
    severity = serializers.CharField(help_text="info, warning or critical")
    title = serializers.CharField()
    body = serializers.CharField()
    activity = serializers.UUIDField(source="activity_id", allow_null=True)
    facts = serializers.DictField()
    created_at = serializers.DateTimeField()
    acknowledged_at = serializers.DateTimeField(allow_null=True)
    acknowledged_by = Computed(str | None, lambda alert: alert.acknowledged_by or None)
    deliveries = Computed(
        list[dict[str, Any]],
        lambda alert: [DeliverySerializer(delivery).data for delivery in alert.deliveries.all()],
    )


class AlertFilter(StrictFilterSet):
    kind = django_filters.ChoiceFilter(choices=AlertKind.choices)
    severity = django_filters.ChoiceFilter(choices=Severity.choices)
    activity = django_filters.UUIDFilter(field_name="activity_id")
    acknowledged = FlagFilter(field_name="acknowledged_at", lookup_expr="isnull", exclude=True)
    created_after = MomentFilter(field_name="created_at", lookup_expr="gte")
    created_before = MomentFilter(field_name="created_at", lookup_expr="lt")


@describe_resource(many="Alerts, newest first", one="One alert")
class AlertViewSet(DigestEtag, Resource):
    queryset = Alert.objects
    serializer_class = AlertSerializer
    filterset_class = AlertFilter
    search_fields = ("title", "body")
    ordering_fields = ("created_at",)
    scope = "alerts"
    required_role: ClassVar[dict[str, Role]] = {"acknowledge": Role.REVIEWER}

    def get_queryset(self) -> QuerySet[Any]:
        # Deliveries to the platform's own channels are hidden from tenants.
        own = AlertDelivery.objects.filter(channel_id__isnull=False).order_by("pk")
        return super().get_queryset().prefetch_related(Prefetch("deliveries", own))

    @command("Acknowledge an alert", EmptySerializer, AlertSerializer)
    @action(detail=True, methods=["post"])
    def acknowledge(self, request: Request, pk: UUID) -> Response:
        """The first acknowledgement is recorded; later ones change nothing."""
        self.refuse_changed(AlertSerializer(self.get_object()).data)
        acknowledge(self.tenant_id, pk, actor=self.principal.actor)
        return Response(AlertSerializer(self.get_object()).data)


# Notification channels. A target can be written but never read; a webhook's secret is returned only once.


ABOUT_TARGETS = "A URL for slack and webhook; addresses separated by commas for email. It is never returned."


class NotificationChannelSerializer(ResponseSerializer):
    """A channel for notifications. `target` contains only enough to recognize it: the host of a URL, or the first letters of addresses."""

    id = serializers.UUIDField()
    kind = serializers.CharField()
    name = serializers.CharField()
    target = serializers.CharField(source="target_shown")
    kinds = serializers.ListField(
        child=serializers.CharField(), help_text="The kinds of alerts to send. If empty: all."
    )
    enabled = serializers.BooleanField()
    digest = serializers.CharField(help_text="off, daily or weekly.")
    digest_hour = serializers.IntegerField(
        allow_null=True,
        help_text="Null for the platform's setting, which is 7 for daily and 9 for weekly digests unless it was changed.",
    )
    digest_day = Computed(
        str | None,
        lambda channel: channel.digest_day or None,
        help_text="For weekly digests. Null for Monday.",
    )
    digest_roles = serializers.ListField(child=serializers.CharField())
    version = serializers.IntegerField(help_text="Increases with every change; the ETag begins with it.")
    created_at = serializers.DateTimeField()


class NotificationChannelWithSecretSerializer(NotificationChannelSerializer):
    secret = serializers.CharField(
        allow_null=True,
        help_text="Verifies the messages to a webhook. It is returned only here; null for other kinds, and in a repeated answer.",
    )


class ChangedChannelSerializer(StrictSerializer):
    """A complete channel, without its kind. An omitted target stays as it is."""

    name = Text(max_length=100)
    target = Text(max_length=2_000, help_text=ABOUT_TARGETS, **OPTIONAL)
    kinds = serializers.ListField(
        child=OneOf(choices=AlertKind.values),
        help_text="The kinds of alerts to send. Default, or if empty: all.",
        **OPTIONAL,
    )
    enabled = Flag(**OPTIONAL)
    digest = OneOf(
        choices=Digest.values,
        help_text="A daily or weekly summary, only for email. Default: off.",
        **OPTIONAL,
    )
    digest_hour = Whole(
        min_value=0,
        max_value=23,
        help_text="The hour in which it is sent, in the tenant's time zone. Default: the platform's setting, usually 7 "
        "for daily and 9 for weekly digests.",
        **OPTIONAL,
    )
    digest_day = OneOf(
        choices=Weekday.values,
        help_text="The day on which weekly digests are sent. Default: monday.",
        **OPTIONAL,
    )
    digest_roles = serializers.ListField(
        child=Text(max_length=63),
        max_length=50,
        help_text="The human roles whose waiting items the digest contains. Default, or if empty: all.",
        **OPTIONAL,
    )

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        """With `checks_target` in the context it may resolve a host name, so it must not run in a transaction."""
        errors: dict[str, Any] = {}
        if (kind := attrs.get("kind") or self.context.get("kind_before")) is None:
            return errors
        if kind != ChannelKind.EMAIL and attrs.get("digest", Digest.OFF) != Digest.OFF:
            errors["digest"] = ["digests go to channels of the kind email"]
        if self.context.get("checks_target") and "target" in attrs:
            try:
                backends.check_target(kind, attrs["target"])
            except InvalidTarget as error:
                errors["target"] = [str(error)]
        return errors


class NewChannelSerializer(ChangedChannelSerializer):
    """A new channel for notifications."""

    kind = OneOf(choices=ChannelKind.values)
    target = Text(max_length=2_000, help_text=ABOUT_TARGETS)


MOST_CHANNELS = 50  # of a tenant
CHANGEABLE = ("name", "kinds", "enabled", "digest", "digest_hour", "digest_day", "digest_roles")


@describe_resource(many="The channels", one="One channel")
class NotificationChannelViewSet(VersionedResource):
    queryset = NotificationChannel.objects
    serializer_class = NotificationChannelSerializer
    address = "/api/v1/notification-channels/"
    filterset_fields = ("kind", "enabled")
    search_fields = ("name",)
    ordering_fields = ("name", "created_at")
    scope = "notification-channels"
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(
        ("create", "update", "destroy", "test", "renew_secret"), Role.ADMIN
    )

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.action in ("create", "update"):
            checks_target = not idempotency.is_repetition(request, self.principal)
            self.body = (
                read(NewChannelSerializer, request.data, checks_target=checks_target)
                if self.action == "create"
                else self._read_change(checks_target)
            )

    @creation("Create a notification channel", NewChannelSerializer, NotificationChannelWithSecretSerializer)
    def create(self, request: Request) -> Response:
        """For a webhook, the answer contains the secret only once: a repetition with the same `Idempotency-Key` does not contain it."""
        self._refuse_taken(self.body["name"])
        if NotificationChannel.objects.for_tenant(self.tenant_id).count() >= MOST_CHANNELS:
            raise ActivityError(
                f"There are {MOST_CHANNELS} channels, which is the maximum; remove one first.",
                code="too_many_notification_channels",
            )
        channel = NotificationChannel(tenant_id=self.tenant_id, kind=self.body["kind"])
        self._put(channel)
        channel.save(force_insert=True)
        channel.refresh_from_db()
        secret = next(iter(backends.open_target(channel).secrets), None)
        return self.answer_created(channel, {**self.show(channel), "secret": secret})

    @change("Change a channel", ChangedChannelSerializer, NotificationChannelSerializer, refusals=(404, 409))
    def update(self, request: Request, pk: UUID) -> Response:
        """Omitted members are cleared, except the target. A webhook keeps its secret."""
        channel = self.lock_row()
        self._refuse_taken(self.body["name"], except_for=channel)
        self._put(channel)
        self.save_changed(channel)
        return Response(self.show(channel))

    @removal("Remove a channel")
    def destroy(self, request: Request, pk: UUID) -> Response:
        """Pending messages to it are not sent any more."""
        self.lock_row().delete()
        return Response(status=204)

    @posting(
        "Send a test to this channel only", EmptySerializer, AlertSerializer, refusals=(404,), status=202
    )
    @action(detail=True, methods=["post"])
    def test(self, request: Request, pk: UUID) -> Response:
        """Returns the alert. Read it again to see the result of its delivery."""
        channel = self.get_object()
        if not channel.enabled:
            raise ActivityError(
                f"The channel {channel.name} is switched off.", code="notification_channel_off"
            )
        alert = try_channel(channel, actor=self.principal.actor)
        alert.refresh_from_db()
        return Response(AlertSerializer(alert).data, status=202)

    @command(
        "Rotate the secret of a webhook channel", EmptySerializer, NotificationChannelWithSecretSerializer
    )
    @action(detail=True, methods=["post"], url_path="renew-secret")
    def renew_secret(self, request: Request, pk: UUID) -> Response:
        """Until the next rotation, messages are also signed with the previous secret."""
        channel = self.lock_row()
        if channel.kind != ChannelKind.WEBHOOK:
            raise ActivityError(
                f"{channel.name} is not a webhook, so it has no secret.", code="not_a_webhook"
            )
        try:
            secret = backends.renew_secret(channel)
        except ConfigurationError as error:
            raise ActivityError(
                "The target can no longer be decrypted. Set it again first.", code="target_unreadable"
            ) from error
        self.save_changed(channel)
        return Response({**self.show(channel), "secret": secret})

    def _read_change(self, checks_target: bool) -> dict[str, Any]:
        with tenant_scope(self.tenant_id):
            own = NotificationChannel.objects.for_tenant(self.tenant_id).filter(pk=self.kwargs["pk"])
            channel = require_found(own.only("kind", "target_shown").first())
        body: Any = self.request.data
        if isinstance(body, dict) and body.get("target") == channel.target_shown:
            del body["target"]  # as a GET has returned it
        return self.read_change(
            ChangedChannelSerializer, kind_before=channel.kind, checks_target=checks_target
        )

    def _refuse_taken(self, name: str, except_for: NotificationChannel | None = None) -> None:
        same_name = NotificationChannel.objects.for_tenant(self.tenant_id).filter(name=name)
        if (same_name.exclude(pk=except_for.pk) if except_for else same_name).exists():
            raise AlreadyExists("channel", name)

    def _put(self, channel: NotificationChannel) -> None:
        put_members(channel, self.body, CHANGEABLE)
        digests.plan_digest(channel, Tenant.objects.get(pk=self.tenant_id).timezone)
        if "target" in self.body:
            backends.put_target(channel, self.body["target"])
