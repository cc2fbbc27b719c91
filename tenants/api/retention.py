"""The retention of a tenant's rows, by kind: the period in force, whether the tenant has set it, and the numbers of deleted rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import retention
from tenants.api.documentation import change, operation
from tenants.api.etags import DigestEtag
from tenants.api.problems import InvalidRequest
from tenants.api.serializers import Member, StrictSerializer, read
from tenants.api.views import TenantView
from tenants.models import Role
from tenants.models.retention import LONGEST_DAYS, RetentionPolicy, RetentionTally
from tenants.retention import all_kinds


@extend_schema_field({"oneOf": [{"type": "number"}, {"type": "string", "enum": [retention.NEVER]}]})
class DaysField(serializers.Field[Any, Any, Any, Any]):
    """A number of days, or "never"."""

    def to_representation(self, value: Any) -> Any:
        return value


class RetentionKindSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField()
    title = serializers.CharField()
    days = DaysField(help_text='The effective period: days after the end of a row, or "never".')
    default_days = DaysField(help_text="The platform's default.")
    own = serializers.BooleanField(help_text="Whether the tenant has set it.")
    deleted = serializers.IntegerField(help_text="Number of rows deleted so far.")
    last_deleted = serializers.IntegerField(
        help_text="Number of rows deleted the last time that there were any."
    )
    last_at = serializers.DateTimeField(allow_null=True)


class RetentionShownSerializer(serializers.Serializer[Any]):
    """The retention of every kind of rows."""

    kinds = RetentionKindSerializer(many=True)


class RetentionSerializer(StrictSerializer):
    """The tenant's own policies. Omitted kinds are reset to the platform's defaults."""

    kinds = Member(help_text=f'The periods by kind: whole days from 1 to {LONGEST_DAYS}, or "never".')


class RetentionView(DigestEtag, TenantView):
    queryset = RetentionPolicy.objects
    scope = "retention"
    required_role: ClassVar[dict[str, Role]] = {"get": Role.ADMIN, "put": Role.ADMIN}

    @operation("How long rows of each kind are kept", answer=RetentionShownSerializer)
    def get(self, request: Request) -> Response:
        return Response(_render_policies(self.tenant_id))

    @change(
        "Replace how long rows of each kind are kept",
        RetentionSerializer,
        RetentionShownSerializer,
        refusals=(),
    )
    def put(self, request: Request) -> Response:
        """Rows that are older than the new periods are deleted within about an hour. They cannot be restored."""
        kinds = read(RetentionSerializer, request.data)["kinds"]
        retention.lock_policies(self.tenant_id)
        self.refuse_changed(_render_policies(self.tenant_id))
        try:
            retention.replace_policies(self.tenant_id, kinds, actor=self.principal.actor)
        except retention.RetentionInvalid as error:
            raise InvalidRequest([(f"kinds.{path}", message) for path, message in error.errors]) from error
        return Response(_render_policies(self.tenant_id))

    def audited_state(self) -> Mapping[str, Any]:
        return {kind: _days_or_never(days) for kind, days in retention.days_of(self.tenant_id).items()}

    def state_of(self, representation: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return only the periods, because the numbers of deleted rows change by themselves."""
        return {each["kind"]: (each["days"], each["own"]) for each in representation["kinds"]}


def _render_policies(tenant_id: UUID) -> dict[str, Any]:
    own, days = retention.own_days_of(tenant_id), retention.days_of(tenant_id)
    tallies = {row.kind: row for row in RetentionTally.objects.for_tenant(tenant_id)}
    return {
        "kinds": [
            {
                "kind": name,
                "title": kind.title,
                "days": _days_or_never(days[name]),
                "default_days": _days_or_never(kind.default_days),
                "own": name in own,
                "deleted": tallies[name].deleted if name in tallies else 0,
                "last_deleted": tallies[name].last_deleted if name in tallies else 0,
                "last_at": tallies[name].last_at if name in tallies else None,
            }
            for name, kind in all_kinds().items()
        ]
    }


def _days_or_never(days: float | None) -> float | str:
    return retention.NEVER if days is None else days
