"""Alerts as notices: listed, looked at with what became of their deliveries, acknowledged."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.db.models import Prefetch, QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities.alerts import acknowledge
from activities.api.decisions import EmptySerializer
from activities.models import Alert, AlertDelivery
from activities.models.alert import AlertKind, Severity
from tenants.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from tenants.api.etags import DigestEtag
from tenants.api.filters import FlagFilter, StrictFilterSet
from tenants.api.resources import Resource, described
from tenants.api.serializers import ResponseSerializer, read
from tenants.models import Role


class DeliverySerializer(ResponseSerializer):
    """An alert on its way to one of the tenant's channels."""

    id = serializers.UUIDField(help_text="The `webhook-id` of a webhook.")
    channel = serializers.UUIDField(source="channel_id")
    kind = serializers.CharField(source="channel_kind")
    name = serializers.CharField(source="channel_name", help_text="The channel's name at that time.")
    state = serializers.CharField(
        help_text="pending, sending, sent, failed, or unknown: it may have arrived and is not repeated."
    )
    attempts = serializers.IntegerField()
    next_attempt_at = serializers.SerializerMethodField()
    last_error = serializers.CharField()
    sent_at = serializers.DateTimeField(allow_null=True)

    def get_next_attempt_at(self, delivery: AlertDelivery) -> Any:
        return delivery.next_attempt_at if delivery.state == "pending" else None


class AlertSerializer(ResponseSerializer):
    """Something that people must know."""

    id = serializers.UUIDField()
    kind = serializers.CharField()
    severity = serializers.CharField(help_text="info, warning or critical")
    title = serializers.CharField()
    body = serializers.CharField()
    activity = serializers.UUIDField(source="activity_id", allow_null=True)
    facts = serializers.DictField()
    created_at = serializers.DateTimeField()
    acknowledged_at = serializers.DateTimeField(allow_null=True)
    acknowledged_by = serializers.SerializerMethodField()
    deliveries = serializers.SerializerMethodField()

    def get_acknowledged_by(self, alert: Alert) -> str | None:
        return alert.acknowledged_by or None

    def get_deliveries(self, alert: Alert) -> list[dict[str, Any]]:
        return [DeliverySerializer(delivery).data for delivery in alert.deliveries.all()]


class AlertFilter(StrictFilterSet):
    kind = django_filters.ChoiceFilter(choices=AlertKind.choices)
    severity = django_filters.ChoiceFilter(choices=Severity.choices)
    activity = django_filters.UUIDFilter(field_name="activity_id")
    acknowledged = FlagFilter(field_name="acknowledged_at", lookup_expr="isnull", exclude=True)
    created_after = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")
    created_before = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="lt")

    class Meta:
        model = Alert
        fields: tuple[str, ...] = ()


@described(many="Alerts, newest first", one="One alert")
class AlertViewSet(DigestEtag, Resource):
    queryset = Alert.objects
    serializer_class = AlertSerializer
    filterset_class = AlertFilter
    search_fields = ("title", "body")
    ordering_fields = ("created_at",)
    lookup_value_converter = "uuid"
    scope = "alerts"
    required_role: ClassVar[dict[str, Role]] = {"acknowledge": Role.REVIEWER}

    def get_queryset(self) -> QuerySet[Any]:
        # Those to the platform's own channels are none of a tenant's business.
        own = AlertDelivery.objects.filter(channel_id__isnull=False).order_by("pk")
        return super().get_queryset().prefetch_related(Prefetch("deliveries", own))

    @operation(
        "Say that somebody has seen it",
        request=EmptySerializer,
        answer=AlertSerializer,
        refusals=(400, 404),
        parameters=(IDEMPOTENCY_KEY, IF_MATCH),
    )
    @action(detail=True, methods=["post"])
    def acknowledge(self, request: Request, pk: UUID) -> Response:
        """The first to say so is named; others change nothing."""
        read(EmptySerializer, request.data)
        self.refuse_changed(AlertSerializer(self.get_object()).data)
        acknowledge(self.tenant_id, pk, actor=self.principal.actor)
        return Response(AlertSerializer(self.get_object()).data)
