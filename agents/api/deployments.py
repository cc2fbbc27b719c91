"""Deployments of a role: read by everybody; deployed, promoted and rolled back by platform admins, each as one action."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from agents import configuration, deployments
from agents.api.channels import NothingSerializer
from agents.api.registry import NewDeploymentSerializer, refuse_unusable
from agents.models import Agent, AgentVersionDeployment
from tenants.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from tenants.api.etags import Versioned, etag_of
from tenants.api.filters import FlagFilter, StrictFilterSet
from tenants.api.permissions import PlatformPermission
from tenants.api.serializers import ResponseSerializer, read
from tenants.api.views import TenantViewSet
from tenants.models import Role


class DeploymentSerializer(ResponseSerializer):
    """A version of an agent in an environment, now or formerly."""

    id = serializers.UUIDField()
    version = serializers.CharField()
    environment = serializers.CharField(help_text="production, staging or development")
    deployed_at = serializers.DateTimeField()
    deployed_by = serializers.CharField()
    replaced_at = serializers.DateTimeField(allow_null=True, help_text="null: it is there now.")
    replaced_by = serializers.CharField()
    promoted_from = serializers.UUIDField(
        source="promoted_from_id", allow_null=True, help_text="The deployment whose version was brought here."
    )
    previous = serializers.UUIDField(
        source="previous_id", allow_null=True, help_text="In production before; what rolling back restores."
    )


class PlatformDeploymentSerializer(DeploymentSerializer):
    """A deployment as platform admins see it."""

    endpoint = serializers.CharField(help_text="Empty: the agent's own endpoint.")


class DeploymentFilter(StrictFilterSet):
    environment = django_filters.ChoiceFilter(choices=AgentVersionDeployment.Environment.choices)
    current = FlagFilter(field_name="replaced_at", lookup_expr="isnull")


INTO_PRODUCTION: dict[str, Any] = {
    "request": NothingSerializer,
    "answer": PlatformDeploymentSerializer,
    "refusals": (404, 409),
    "parameters": (IDEMPOTENCY_KEY, IF_MATCH),
}


class DeploymentViewSet(Versioned, TenantViewSet):
    """An If-Match is held against the ETag of the agent: what is deployed is part of what it is."""

    queryset = AgentVersionDeployment.objects
    serializer_class = DeploymentSerializer
    permission_classes = (PlatformPermission,)
    filterset_class = DeploymentFilter
    ordering = ("-deployed_at", "-id")
    scope = "agents"
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(("create", "promote", "roll_back"), Role.ADMIN)

    def get_queryset(self) -> QuerySet[Any]:
        return AgentVersionDeployment.objects.filter(agent_id=self.kwargs.get("agent_role", ""))

    @operation(
        "The versions of a role, newest first", answer=DeploymentSerializer(many=True), refusals=(400, 404)
    )
    def list(self, request: Request, agent_role: str) -> Response:
        if not Agent.objects.filter(role=agent_role).exists():
            raise NotFound
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        kind = PlatformDeploymentSerializer if self.principal.is_platform_admin else DeploymentSerializer
        return self.get_paginated_response(kind(page, many=True).data)

    @operation(
        "Deploy a version of a role",
        request=NewDeploymentSerializer,
        answer=PlatformDeploymentSerializer,
        status=201,
        refusals=(404, 409),
        parameters=(IDEMPOTENCY_KEY, IF_MATCH),
    )
    def create(self, request: Request, agent_role: str) -> Response:
        """In production it replaces the version there; elsewhere, an earlier deployment of the same version."""
        agent = self._agent(agent_role)
        body = read(NewDeploymentSerializer, request.data)
        refuse_unusable(agent.adapter, {"endpoint": body.get("endpoint")})
        made = deployments.deploy(agent_role, **body, actor=self.principal.actor)
        return self._shown(made, status=201)

    @operation("Bring a version into production", **INTO_PRODUCTION)
    def promote(self, request: Request, agent_role: str, pk: UUID) -> Response:
        """The version there becomes history. Of two who promote at once one gets 409 and nothing of theirs is done."""
        read(NothingSerializer, request.data)
        self._agent(agent_role)
        return self._shown(deployments.promote(agent_role, pk, actor=self.principal.actor))

    @operation("Bring back the version that was in production before", **INTO_PRODUCTION)
    def roll_back(self, request: Request, agent_role: str) -> Response:
        """Again, and the one before that comes back. 409 when there was none."""
        read(NothingSerializer, request.data)
        self._agent(agent_role)
        return self._shown(deployments.roll_back(agent_role, actor=self.principal.actor))

    def _agent(self, role: str) -> Agent:
        agent = Agent.objects.filter(role=role).first()
        if agent is None:
            raise NotFound
        self.check_if_match(agent.revision)
        return agent

    def _shown(self, made: AgentVersionDeployment, status: int = 200) -> Response:
        configuration.forget()
        revision = Agent.objects.values_list("revision", flat=True).get(role=made.agent_id)
        shown = PlatformDeploymentSerializer(made).data
        return Response(shown, status=status, headers={"ETag": etag_of(revision)})
