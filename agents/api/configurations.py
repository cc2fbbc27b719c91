"""A tenant's own settings of the roles: everything that is in force, and what of it is the tenant's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from agents import configuration, credentials, outbound, scheduler_settings
from agents.api.documentation import IF_MATCH, operation
from agents.api.settings_bodies import AgentSettingsSerializer, fault_of_inline
from agents.api.strict import read
from agents.exceptions import ConfigurationError, OutboundRefused
from agents.governor import providers
from agents.models import Agent, AgentConfig
from tenants.api.faults import InvalidRequest
from tenants.api.versions import Versioned
from tenants.api.views import TenantViewSet
from tenants.context import tenant_scope
from tenants.models import Role

#: What a PUT replaces as a whole. Pausing has its own address.
PLAIN = (
    "max_concurrency",
    "max_concurrency_per_group",
    "adapter",
    "endpoint",
    "model",
    "instructions",
    "timeout_seconds",
    "retry",
    "rate",
    "backlog",
)


class AuthShownSerializer(serializers.Serializer[Any]):
    type = serializers.CharField()
    set = serializers.BooleanField()


class AgentConfigSerializer(serializers.Serializer[Any]):
    """What is in force for a role at this tenant. `own` names the members that the tenant has set."""

    role = serializers.CharField()
    adapter = serializers.CharField()
    endpoint = serializers.CharField(allow_null=True, help_text="null: the platform's own, if it has one.")
    auth = AuthShownSerializer(allow_null=True, help_text="null: the platform's own, if it has one.")
    model = serializers.CharField(allow_null=True)
    instructions = serializers.CharField(allow_null=True)
    max_concurrency = serializers.IntegerField()
    max_concurrency_per_group = serializers.IntegerField()
    timeout_seconds = serializers.IntegerField()
    retry = serializers.DictField()
    rate = serializers.DictField(allow_null=True)
    backlog = serializers.DictField(
        help_text="max_waiting, when_full and expire_after_seconds, where they are not the platform's own."
    )
    enabled = serializers.BooleanField()
    paused = serializers.BooleanField()
    own = serializers.ListField(child=serializers.CharField())
    version = serializers.IntegerField(help_text="Raised by every change; 0 while nothing is set.")


class AgentConfigViewSet(Versioned, TenantViewSet):  # type: ignore[misc]  # `request` is the view's
    queryset = AgentConfig.objects
    serializer_class = AgentConfigSerializer
    ordering_fields = ("role",)
    ordering = ("role",)
    lookup_field = "role"
    reject_duplicate_keys = True
    # An endpoint's name is looked up before anything is locked.
    in_one_transaction = False
    scope = "agents"
    required_role: ClassVar[dict[str, Role]] = {"update": Role.ADMIN}

    def get_queryset(self) -> QuerySet[Any]:
        return Agent.objects.filter()

    @operation(
        "The settings in force, for every role", answer=AgentConfigSerializer(many=True), refusals=(400,)
    )
    def list(self, request: Request) -> Response:
        with tenant_scope(self.tenant_id):
            page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
            rows = AgentConfig.objects.for_tenant(self.tenant_id).filter(
                agent_id__in=[agent.role for agent in page]
            )
            own = {config.agent_id: config for config in rows}
        return self.get_paginated_response([self._shown(agent, own.get(agent.role)) for agent in page])

    @operation("The settings in force for one role", answer=AgentConfigSerializer, refusals=(404,))
    def retrieve(self, request: Request, role: str) -> Response:
        with tenant_scope(self.tenant_id):
            agent = self._agent(role)
            return Response(self._shown(agent, self._own(role).first()))

    @operation(
        "Replace the tenant's own settings of a role",
        request=AgentSettingsSerializer,
        answer=AgentConfigSerializer,
        refusals=(400, 404, 409, 412),
        parameters=(IF_MATCH,),
    )
    def update(self, request: Request, role: str) -> Response:
        """In force within two seconds. What is left out comes from the registry again."""
        with tenant_scope(self.tenant_id):
            agent = self._agent(role)
        body = read(AgentSettingsSerializer, request.data)
        refuse_unusable(agent, body)
        with tenant_scope(self.tenant_id):
            config = self._own(role).select_for_update().first()
            self.check_if_match(config.version if config else 0)
            config = self._replaced(
                config or AgentConfig(tenant_id=self.tenant_id, agent=agent, version=0), body
            )
        configuration.forget()
        return Response(self._shown(agent, config))

    def _replaced(self, config: AgentConfig, body: Mapping[str, Any]) -> AgentConfig:
        empty = AgentConfig()
        for name in PLAIN:
            setattr(config, name, body.get(name, getattr(empty, name)))
        config.enabled = body.get("enabled", True)
        config.auth_sealed = self._sealed(config, body.get("auth"))
        config.version += 1
        config.save(force_insert=config.version == 1)
        return config

    def _sealed(self, config: AgentConfig, auth: Mapping[str, Any] | None) -> str:
        if auth is None:
            return ""
        context = credentials.config_context(self.tenant_id, config.agent_id)
        if auth.get("set"):
            if _type_of(config) != auth["type"]:
                raise InvalidRequest(
                    [("auth.set", f"there are no credentials of the type {auth['type']} to keep")]
                )
            return config.auth_sealed
        return credentials.seal(
            {name: value for name, value in auth.items() if name != "set"}, context=context
        )

    def _agent(self, role: str) -> Agent:
        agent = Agent.objects.filter(role=role).first()
        if agent is None:
            raise NotFound
        return agent

    def _own(self, role: str) -> QuerySet[Any]:
        rows: QuerySet[Any] = AgentConfig.objects.for_tenant(self.tenant_id).filter(agent_id=role)
        return rows

    def _shown(self, agent: Agent, config: AgentConfig | None) -> dict[str, Any]:
        own = config or AgentConfig(tenant_id=self.tenant_id, agent=agent, version=0)
        kind, platform = _type_of(own), scheduler_settings.current()
        return {
            "role": agent.role,
            "adapter": own.adapter or agent.adapter,
            "endpoint": own.endpoint or None,
            "auth": {"type": kind, "set": True} if kind else None,
            "model": own.model or agent.model or None,
            "instructions": own.instructions or agent.instructions or None,
            "max_concurrency": own.max_concurrency or agent.tenant_concurrency,
            "max_concurrency_per_group": own.max_concurrency_per_group or 1,
            "timeout_seconds": own.timeout_seconds
            or agent.timeout_seconds
            or configuration.default_timeout(platform),
            "retry": {**platform.retry, **agent.retry, **own.retry},
            "rate": own.rate or None,
            "backlog": {**agent.backlog, **own.backlog},
            "enabled": agent.enabled and own.enabled,
            "paused": agent.paused or own.paused,
            "own": _own_names(own),
            "version": own.version,
        }


def refuse_unusable(agent: Agent, body: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` for an endpoint that could not be called. May ask the name service: not inside a transaction."""
    adapter, endpoint = body.get("adapter") or agent.adapter, body.get("endpoint")
    if adapter == "cli":
        _refuse_own_program(agent, endpoint)
        return
    if endpoint is None:
        if adapter != agent.adapter and adapter not in providers.NAMES:
            raise InvalidRequest(
                [("endpoint", f"is required, since the registry's is for the adapter {agent.adapter}")]
            )
        return
    if adapter == "inline":
        fault = fault_of_inline(endpoint)
        if fault:
            raise InvalidRequest([("endpoint", fault)])
        return
    try:
        outbound.check_url(endpoint)
    except OutboundRefused as error:
        raise InvalidRequest([("endpoint", str(error))]) from error


def _refuse_own_program(agent: Agent, endpoint: str | None) -> None:
    """Which program is run on our machines is for the platform's operators alone."""
    if agent.adapter != "cli":
        raise InvalidRequest([("adapter", "cli can only be chosen where the registry says so")])
    if endpoint is not None:
        raise InvalidRequest([("endpoint", "is not for command-line agents: the registry says what is run")])


def _type_of(config: AgentConfig) -> str | None:
    if not config.auth_sealed:
        return None
    context = credentials.config_context(config.tenant_id, config.agent_id)
    try:
        return credentials.unseal(config.auth_sealed, context=context).get("type")
    except ConfigurationError:
        return "unreadable"  # The key is gone; the settings can still be seen and replaced.


def _own_names(config: AgentConfig) -> Sequence[str]:
    names = [name for name in PLAIN if getattr(config, name)]
    names += ["auth"] if config.auth_sealed else []
    return names + (["enabled"] if not config.enabled else [])
