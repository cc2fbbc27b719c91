"""The platform's registry: which roles there are. Tenants read it; platform admins change it and see addresses as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import OuterRef, QuerySet, Subquery
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from agents import configuration, health, registry, removal
from agents.api.channels import NothingSerializer
from agents.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from agents.api.registry_bodies import (
    PLAIN,
    AgentBodySerializer,
    AgentChangeSerializer,
    NewAgentSerializer,
    defaults,
    refuse_unusable,
)
from agents.api.registry_shown import AgentSerializer, PlatformAgentSerializer
from agents.api.sealing import sealed
from agents.api.strict import read
from agents.exceptions import AgentExists
from agents.models import Agent, AgentVersionDeployment
from tenants.api.permissions import PlatformPermission
from tenants.api.versions import Versioned
from tenants.api.views import TenantViewSet
from tenants.models import Role

ADDRESS = "/api/v1/agents/"
ADDRESSES = ("endpoint", "health_url")
PRODUCTION = AgentVersionDeployment.Environment.PRODUCTION
KEEP: Any = object()  # of credentials: leave what is stored


CHANGE: dict[str, Any] = {"answer": PlatformAgentSerializer, "refusals": (404,)}


class AgentViewSet(Versioned, TenantViewSet):  # type: ignore[misc]  # `request` is the view's
    """Read by everybody, changed by platform admins: the registry belongs to no tenant."""

    queryset = Agent.objects
    serializer_class = AgentSerializer
    permission_classes = (PlatformPermission,)
    filterset_fields = ("enabled", "paused", "adapter", "health")
    search_fields = ("role", "name", "description")
    ordering_fields = ("role",)
    ordering = ("role",)
    lookup_field = "role"
    version_field = "revision"
    reject_duplicate_keys = True
    scope = "agents"
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(
        ("create", "update", "partial_update", "destroy", "check"), Role.ADMIN
    )

    def get_queryset(self) -> QuerySet[Any]:
        production = AgentVersionDeployment.objects.filter(
            agent=OuterRef("role"), environment=PRODUCTION, replaced_at__isnull=True
        )
        return Agent.objects.annotate(version=Subquery(production.values("version")[:1]))

    @operation("The roles that there are", answer=AgentSerializer(many=True), refusals=(400,))
    def list(self, request: Request) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response([self._as_seen(agent) for agent in page])

    @operation("One role", answer=AgentSerializer, refusals=(404,))
    def retrieve(self, request: Request, role: str) -> Response:
        return self._shown(role)

    @operation(
        "Add a role to the registry",
        request=NewAgentSerializer,
        answer=PlatformAgentSerializer,
        status=201,
        refusals=(409,),
        parameters=(IDEMPOTENCY_KEY,),
    )
    def create(self, request: Request) -> Response:
        """In force within two seconds. Workers that were started for all roles serve it after their next start."""
        body = read(NewAgentSerializer, request.data)
        agent = Agent(role=body["role"], revision=0)
        if Agent.objects.filter(role=agent.role).exists():
            raise AgentExists(f"There is an agent {agent.role!r} already; PUT or PATCH changes it.")
        self._write(agent, {**defaults(), **body}, body.get("auth"))
        answer = self._shown(agent.role)
        answer.status_code = 201
        answer.headers["Location"] = f"{ADDRESS}{agent.role}/"
        return answer

    @operation("Replace a role", request=AgentBodySerializer, parameters=(IF_MATCH,), **CHANGE)
    def update(self, request: Request, role: str) -> Response:
        """What is left out has its default again, credentials included. In force within two seconds."""
        agent = self._locked(role)
        body = read(AgentBodySerializer, request.data)
        self._write(agent, {**defaults(), **body}, body.get("auth"))
        return self._shown(role)

    @operation("Change a role", request=AgentChangeSerializer, parameters=(IF_MATCH,), **CHANGE)
    def partial_update(self, request: Request, role: str) -> Response:
        """What is left out stays. Switching off what is needed is done, and answered with `warnings`."""
        agent = self._locked(role)
        body = read(AgentChangeSerializer, request.data)
        given: Any = request.data
        emptied = {name for name, value in given.items() if value is None}
        standard = {name: value for name, value in defaults().items() if name in emptied}
        present = {name: getattr(agent, name) for name in PLAIN}
        kept = body.get("auth") if "auth" in request.data else KEEP
        self._write(agent, {**present, **standard, **body}, kept)
        return self._shown(role)

    @operation("Remove a role", answer=None, status=204, refusals=(404, 409), parameters=(IF_MATCH,))
    def destroy(self, request: Request, role: str) -> Response:
        """Refused while enabled schedules, pipelines or open activities need it. Settings of tenants go with it."""
        # Not locked here: it is deleted by the role that sees every tenant, as it was seen here or not at all.
        agent = Agent.objects.filter(role=role).first()
        if agent is None:
            raise NotFound
        self.check_if_match(agent.revision)
        removal.remove(role, revision=agent.revision)
        configuration.forget()
        return Response(status=204)

    @operation(
        "Have an agent's endpoint looked at",
        request=NothingSerializer,
        answer=PlatformAgentSerializer,
        status=202,
        refusals=(404,),
        parameters=(IDEMPOTENCY_KEY,),
    )
    @action(detail=True, methods=["post"])
    def check(self, request: Request, role: str) -> Response:
        """A worker does it within seconds; `health` and `health_checked_at` then say what came of it."""
        read(NothingSerializer, request.data)
        self._locked(role)
        health.ask(role)
        answer = self._shown(role)
        answer.status_code = 202
        return answer

    def _locked(self, role: str) -> Agent:
        agent = Agent.objects.select_for_update().filter(role=role).first()
        if agent is None:
            raise NotFound
        self.check_if_match(agent.revision)
        return agent

    def _write(self, agent: Agent, members: Mapping[str, Any], auth: Any) -> None:
        addresses = {name: members[name] for name in ADDRESSES if members[name] != getattr(agent, name)}
        if members["adapter"] != agent.adapter:
            addresses["endpoint"] = members["endpoint"]
        refuse_unusable(members["adapter"], addresses)
        if auth is not KEEP:
            agent.auth_sealed = sealed(agent, auth)
        is_new, moved = agent.revision == 0, bool(addresses)
        for name in PLAIN:
            setattr(agent, name, members[name])
        agent.revision += 1
        if moved:
            registry.forget_health(agent)
        agent.save(
            force_insert=is_new, update_fields=None if is_new else registry.columns_to_save(moved=moved)
        )
        configuration.forget()

    def _shown(self, role: str) -> Response:
        # Not `get_object`: that would hold an If-Match against the state that was just made.
        agent = AgentViewSet.get_queryset(self).filter(role=role).first()
        if agent is None:
            raise NotFound
        return Response(self._as_seen(agent))

    def _as_seen(self, agent: Agent) -> dict[str, Any]:
        kind = PlatformAgentSerializer if self.principal.is_platform_admin else AgentSerializer
        return dict(kind(agent).data)
