"""The model providers as they stand: for a tenant those that its agents call, for the platform all of them."""

from __future__ import annotations

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agents.governor import overview
from agents.models import Agent
from tenants.api.documentation import operation
from tenants.api.filters import refuse_unknown
from tenants.api.pagination import CursorPagination
from tenants.api.serializers import ResponseSerializer
from tenants.api.views import TenantViewSet


class ProviderSerializer(ResponseSerializer):
    """A model provider under one credential, as all workers together see it."""

    adapter = serializers.CharField()
    place = serializers.CharField(help_text="Its host and port.")
    roles = serializers.ListField(
        child=serializers.CharField(), help_text="The caller's roles that call it; for the platform, empty."
    )
    state = serializers.CharField(
        help_text="ready, retry_after, breaker_open, or unknown while Redis does not answer."
    )
    retry_seconds = serializers.FloatField(
        help_text="Until it may be called again after it asked to be left alone."
    )
    breaker_seconds = serializers.FloatField(help_text="Until a call may probe it.")
    under_way = serializers.IntegerField(
        allow_null=True, help_text="null: the credential is shared with others."
    )
    slots = serializers.IntegerField(allow_null=True, help_text="How many calls may be under way at once.")
    used = serializers.DictField(
        child=serializers.IntegerField(),
        allow_null=True,
        help_text="Requests and tokens of the last minute, tokens of the last day.",
    )
    limits = serializers.DictField(child=serializers.IntegerField(allow_null=True), allow_null=True)
    counts = serializers.DictField(
        child=serializers.IntegerField(),
        allow_null=True,
        help_text="Calls by outcome: ok, limited (429), fault, other; breaker: opened.",
    )


class ProviderList(TenantViewSet):
    # Redis is asked after the transaction.
    in_one_transaction = False
    serializer_class = ProviderSerializer
    queryset = Agent.objects
    scope = "agents"

    @operation(
        "The model providers that agents call, and how they stand",
        answer=ProviderSerializer(many=True),
        refusals=(400,),
    )
    def list(self, request: Request) -> Response:
        """All in one page: there are a handful."""
        refuse_unknown(request, self)
        CursorPagination().refuse_bad_paging(request)
        platform = self.principal.is_platform_admin
        found = overview.of_platform() if platform else overview.of_tenant(self.tenant_id)
        return Response(
            {"next": None, "previous": None, "results": ProviderSerializer(found, many=True).data}
        )
