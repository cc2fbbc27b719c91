"""The audit trail of a tenant, for its admins: who did what, when and from where. Read only."""

from __future__ import annotations

from typing import Any

import django_filters
from rest_framework import serializers

from tenants.api.filters import MomentFilter, StrictFilterSet
from tenants.api.serializers import ResponseSerializer
from tenants.api.views import ListResource, describe_resource
from tenants.models import Role
from tenants.models.audit import AuditEntry

OUTCOMES = (("done", "done"), ("refused", "refused"), ("failed", "failed"))


class ActorShownSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField(help_text="user, token, run, command or nobody")
    id = serializers.CharField()
    name = serializers.CharField()


class ObjectShownSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField()
    id = serializers.CharField()


class AuditEntrySerializer(ResponseSerializer):
    """Who did what to which object. Secrets and texts of agents are never recorded."""

    id = serializers.UUIDField()
    number = serializers.IntegerField(
        help_text="The number of the tenant's entry: 1, 2, 3 and so on, without a gap."
    )
    at = serializers.DateTimeField()
    actor = ActorShownSerializer()
    operation = serializers.CharField(help_text="For example `POST /activities/{id}/approve/`.")
    outcome = serializers.CharField(help_text="done, refused or failed")
    object = ObjectShownSerializer(source="about")
    changes = serializers.DictField(help_text="The values before and after, by field.")
    detail = serializers.DictField()
    request_id = serializers.CharField()
    ip = serializers.CharField()
    break_glass = serializers.UUIDField(
        source="break_glass_id",
        allow_null=True,
        help_text="Set if a superuser of the platform acted who is not a member of the tenant.",
    )
    hash = serializers.CharField(help_text="A hash of this entry and of the previous entry's hash.")


class AuditFilter(StrictFilterSet):
    actor = django_filters.CharFilter(field_name="actor_name", help_text="The name of a person or a token.")
    actor_id = django_filters.CharFilter()
    operation = django_filters.CharFilter(
        help_text="The complete operation, such as `PUT /pipelines/{key}/`."
    )
    object = django_filters.CharFilter(field_name="object_id")
    object_kind = django_filters.CharFilter()
    outcome = django_filters.ChoiceFilter(choices=OUTCOMES)
    since = MomentFilter(field_name="at", lookup_expr="gte")
    until = MomentFilter(field_name="at", lookup_expr="lt")


@describe_resource(many="The audit trail, newest first")
class AuditList(ListResource):
    queryset = AuditEntry.objects
    serializer_class = AuditEntrySerializer
    filterset_class = AuditFilter
    ordering_fields = ("number",)
    ordering = ("-number",)
    scope = "audit"
    required_role = Role.ADMIN
