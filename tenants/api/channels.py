"""Channels: the tenant's external connections that its agents need, and whether they are still valid."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import channels
from tenants.api.documentation import change, command, creation, removal
from tenants.api.filters import StrictFilterSet
from tenants.api.serializers import (
    OPTIONAL,
    EmptySerializer,
    Member,
    Moment,
    ResponseSerializer,
    StrictSerializer,
    Text,
    read,
)
from tenants.api.views import VersionedResource, describe_resource, require_found
from tenants.channels import STANDING
from tenants.exceptions import AlreadyExists
from tenants.models import Channel, ChannelStatus, Role


class ChannelSerializer(ResponseSerializer):
    """A connection to an external service that agents need, such as an advertising account."""

    id = serializers.UUIDField()
    kind = serializers.CharField()
    name = serializers.CharField()
    status = serializers.CharField(source="standing", help_text="active, expired or disabled")
    status_since = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True, help_text="When it expires.")
    details = serializers.DictField()
    version = serializers.IntegerField(help_text="Increases with every change; the ETag begins with it.")
    created_at = serializers.DateTimeField()


class ChannelBodySerializer(StrictSerializer):
    """A complete channel. Its status is changed by `expire`, `reactivate` and `disable`."""

    kind = Text(max_length=63, help_text="For example google-ads.")
    name = Text(max_length=200)
    expires_at = Moment(**OPTIONAL)
    details = Member(help_text="Data for agents, such as account numbers. No secrets.", **OPTIONAL)


class ReactivationSerializer(StrictSerializer):
    """When the channel expires, if that is known."""

    expires_at = Moment(**OPTIONAL)


class NothingSerializer(EmptySerializer):
    """A body without members, or none at all."""


class ChannelFilter(StrictFilterSet):
    kind = django_filters.CharFilter()
    status = django_filters.ChoiceFilter(field_name="standing", choices=ChannelStatus.choices)


@describe_resource(many="The channels", one="One channel")
class ChannelViewSet(VersionedResource):
    queryset = Channel.objects
    serializer_class = ChannelSerializer
    address = "/api/v1/channels/"
    filterset_class = ChannelFilter
    search_fields = ("kind", "name")
    ordering_fields = ("name", "created_at", "expires_at")
    scope = "channels"
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(
        ("create", "update", "destroy", "expire", "reactivate", "disable"), Role.ADMIN
    )

    def get_queryset(self) -> QuerySet[Any]:
        return super().get_queryset().annotate(standing=STANDING)

    @creation("Create a channel", ChannelBodySerializer, ChannelSerializer)
    def create(self, request: Request) -> Response:
        body = read(ChannelBodySerializer, request.data)
        self._refuse_taken(body)
        channel = Channel.objects.create(tenant_id=self.tenant_id, **body)
        return self.answer_created(channel, self._render(channel.pk).data)

    @change("Change a channel", ChannelBodySerializer, ChannelSerializer, refusals=(404, 409))
    def update(self, request: Request, pk: UUID) -> Response:
        """Omitted members are cleared. An expired channel stays expired until it is reactivated."""
        channel = self.lock_row()
        body = self.read_change(ChannelBodySerializer)
        self._refuse_taken(body, but=channel)
        own = Channel.objects.for_tenant(self.tenant_id).filter(pk=pk)
        own.update(**{"expires_at": None, "details": {}, **body}, version=channel.version + 1)
        return self._render(pk)

    @removal("Remove a channel")
    def destroy(self, request: Request, pk: UUID) -> Response:
        self.lock_row().delete()
        return Response(status=204)

    @command("Mark a channel as expired", NothingSerializer, ChannelSerializer)
    @action(detail=True, methods=["post"])
    def expire(self, request: Request, pk: UUID) -> Response:
        """Raises one alert. If the channel has already expired or is disabled, nothing changes."""
        self.lock_row()
        channels.expire(self.tenant_id, pk)
        return self._render(pk)

    @command("Reactivate a channel", ReactivationSerializer, ChannelSerializer)
    @action(detail=True, methods=["post"])
    def reactivate(self, request: Request, pk: UUID) -> Response:
        """Without `expires_at`, an expiry in the past is removed."""
        body = read(ReactivationSerializer, request.data)
        self.lock_row()
        channels.reactivate(self.tenant_id, pk, expires_at=body.get("expires_at"))
        return self._render(pk)

    @command("Disable a channel", NothingSerializer, ChannelSerializer)
    @action(detail=True, methods=["post"])
    def disable(self, request: Request, pk: UUID) -> Response:
        self.lock_row()
        channels.disable(self.tenant_id, pk)
        return self._render(pk)

    def _refuse_taken(self, body: dict[str, Any], but: Channel | None = None) -> None:
        named = Channel.objects.for_tenant(self.tenant_id).filter(kind=body["kind"], name=body["name"])
        if (named.exclude(pk=but.pk) if but else named).exists():
            raise AlreadyExists(f"{body['kind']} channel", body["name"])

    def _render(self, pk: UUID) -> Response:
        own = Channel.objects.for_tenant(self.tenant_id).annotate(standing=STANDING)
        return Response(ChannelSerializer(require_found(own.filter(pk=pk).first())).data)
