"""The platform's registry as tenants see it: which roles there are, and which versions serve them. Read only here."""

from __future__ import annotations

from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from agents.api.digests import Digested
from agents.api.documentation import operation
from agents.api.shown import Shown
from agents.models import Agent, AgentVersionDeployment
from agents.routing import queue_of
from tenants.api.views import TenantViewSet

PRODUCTION = AgentVersionDeployment.Environment.PRODUCTION


class AgentSerializer(Shown):
    """A role of the registry, with what holds where a tenant sets nothing else. Endpoints and credentials are the platform's."""

    role = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    adapter = serializers.CharField()
    model = serializers.CharField()
    queue = serializers.SerializerMethodField(
        help_text="The name that `celery -A orchestrator worker -Q` takes."
    )
    version = serializers.CharField(allow_null=True, help_text="The version in production.")
    input_schema = serializers.DictField(allow_null=True, help_text="JSON Schema of an activity's `params`.")
    tenant_concurrency = serializers.IntegerField(help_text="How many may run at once for one tenant.")
    max_concurrency = serializers.IntegerField(
        allow_null=True, help_text="How many may run at once for all tenants."
    )
    timeout_seconds = serializers.IntegerField(allow_null=True)
    retry = serializers.DictField()
    enabled = serializers.BooleanField()
    paused = serializers.BooleanField()
    created_at = serializers.DateTimeField()

    def get_queue(self, agent: Agent) -> str:
        return queue_of(agent.role)


class DeploymentSerializer(Shown):
    """A version of an agent in an environment."""

    id = serializers.UUIDField()
    version = serializers.CharField()
    environment = serializers.CharField(help_text="production, staging or development")
    deployed_at = serializers.DateTimeField()
    deployed_by = serializers.CharField()


class AgentViewSet(Digested, TenantViewSet):
    queryset = Agent.objects
    serializer_class = AgentSerializer
    filterset_fields = ("enabled", "paused", "adapter")
    search_fields = ("role", "name", "description")
    ordering_fields = ("role",)
    ordering = ("role",)
    lookup_field = "role"
    scope = "agents"

    def get_queryset(self) -> QuerySet[Any]:
        production = AgentVersionDeployment.objects.filter(agent=OuterRef("role"), environment=PRODUCTION)
        return Agent.objects.annotate(version=Subquery(production.values("version")[:1]))

    @operation("The roles that there are", answer=AgentSerializer(many=True), refusals=(400,))
    def list(self, request: Request) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(AgentSerializer(page, many=True).data)

    @operation("One role", answer=AgentSerializer, refusals=(404,))
    def retrieve(self, request: Request, role: str) -> Response:
        return Response(AgentSerializer(self.get_object()).data)


class DeploymentList(TenantViewSet):
    queryset = AgentVersionDeployment.objects
    serializer_class = DeploymentSerializer
    filterset_fields = ("environment",)
    ordering = ("-deployed_at", "-id")
    scope = "agents"

    def get_queryset(self) -> QuerySet[Any]:
        return AgentVersionDeployment.objects.filter(agent_id=self.kwargs.get("agent_role", ""))

    @operation(
        "The versions of a role, newest first", answer=DeploymentSerializer(many=True), refusals=(400, 404)
    )
    def list(self, request: Request, agent_role: str) -> Response:
        if not Agent.objects.filter(role=agent_role).exists():
            raise NotFound
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(DeploymentSerializer(page, many=True).data)
