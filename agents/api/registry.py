"""The platform's registry of roles. Tenants can read it; platform admins can change it, and also see addresses."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from agents import configuration, credentials, deployments, health, input_schemas, registry, semantic_versions
from agents.api.configurations import (
    ADAPTERS,
    DAY,
    LONGEST_INSTRUCTIONS,
    MOST_AT_ONCE,
    AuthSerializer,
    BacklogSerializer,
    RetrySerializer,
    error_of_address,
    seal_auth,
)
from agents.exceptions import AlreadyExists, ConfigurationError
from agents.models import Agent, AgentConfig, AgentVersionDeployment, role_validator
from agents.response_parser import MAX_TOKENS
from agents.routing import queue_of
from tenants.api.channels import NothingSerializer
from tenants.api.documentation import change, command, creation, operation, posting, removal
from tenants.api.etags import Versioned, etag_of
from tenants.api.filters import FlagFilter, StrictFilterSet
from tenants.api.permissions import PlatformPermission
from tenants.api.problems import InvalidRequest
from tenants.api.serializers import (
    OPTIONAL,
    Amount,
    Computed,
    Flag,
    Member,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    Whole,
    read,
)
from tenants.api.views import TenantView, TenantViewSet, VersionedResource, describe_resource, require_found
from tenants.exceptions import TenantError
from tenants.models import Role


class SharedOptionsSerializer(serializers.Serializer[Any]):
    """The options that do not depend on the adapter. Each adapter reads further ones."""

    estimate_usd = Amount(most=Decimal(MAX_TOKENS), **OPTIONAL)
    estimate_tokens = Amount(most=Decimal(MAX_TOKENS), **OPTIONAL)
    starts_per_minute = Whole(min_value=0, **OPTIONAL)
    signed_callbacks = Flag(**OPTIONAL)


class AgentChangeSerializer(StrictSerializer):
    """Changes to an agent. Omitted members stay as they are; null resets a member to its default."""

    name = Text(max_length=100, **OPTIONAL)
    description = Text(max_length=10_000, allow_blank=True, **OPTIONAL)
    adapter = OneOf(choices=list(ADAPTERS), **OPTIONAL)
    endpoint = Text(
        allow_blank=True,
        max_length=500,
        help_text="A URL for http; package.module:function for inline.",
        **OPTIONAL,
    )
    auth = AuthSerializer(**OPTIONAL)
    model = Text(allow_blank=True, max_length=100, **OPTIONAL)
    options = Member(help_text="Options of the adapter.", **OPTIONAL)
    instructions = Text(
        allow_blank=True,
        max_length=LONGEST_INSTRUCTIONS,
        trim_whitespace=False,
        help_text="What the agent is and how it works; sent with every task. A change starts new sessions.",
        **OPTIONAL,
    )
    input_schema = Member(help_text="JSON Schema that `params` must satisfy.", **OPTIONAL)
    tenant_concurrency = Whole(
        min_value=1,
        max_value=MOST_AT_ONCE,
        help_text="How many activities of each tenant may run at once. Default: 5.",
        **OPTIONAL,
    )
    max_concurrency = Whole(
        min_value=1,
        max_value=MOST_AT_ONCE,
        help_text="How many activities of all tenants together may run at once.",
        **OPTIONAL,
    )
    timeout_seconds = Whole(min_value=1, max_value=DAY, **OPTIONAL)
    retry = RetrySerializer(**OPTIONAL)
    backlog = BacklogSerializer(**OPTIONAL)
    health_url = Text(
        allow_blank=True,
        max_length=500,
        help_text="Requested with GET; a 2xx answer means healthy. Without it, any answer of the endpoint means healthy.",
        **OPTIONAL,
    )
    enabled = Flag(**OPTIONAL)
    paused = Flag(**OPTIONAL)

    def validate_input_schema(self, schema: Any) -> Any:
        if schema and (error := input_schemas.error_of(schema)):
            raise serializers.ValidationError(error)
        return schema

    def validate_options(self, options: dict[str, Any]) -> dict[str, Any]:
        shared = SharedOptionsSerializer(data=options)
        if not shared.is_valid():
            raise serializers.ValidationError(shared.errors)
        return options


class AgentBodySerializer(AgentChangeSerializer):
    """A complete agent. Omitted members get their defaults."""

    name = Text(max_length=100)


class NewAgentSerializer(AgentBodySerializer):
    """A new agent. Its role can never be changed, because queues, rows and encrypted credentials are named after it."""

    role = Text(max_length=63, help_text="Lower-case letters, digits and single hyphens.")

    def validate_role(self, role: str) -> str:
        role_validator(role)
        return role


class NewDeploymentSerializer(StrictSerializer):
    """A version of an agent, and the environment to deploy it to."""

    version = Text(max_length=64, help_text="A semantic version, such as 1.4.0 or 2.0.0-rc.1.")
    environment = OneOf(choices=list(AgentVersionDeployment.Environment.values))
    endpoint = Text(max_length=500, help_text="Default: the agent's own endpoint.", **OPTIONAL)

    def validate_version(self, version: str) -> str:
        if error := semantic_versions.error_of(version):
            raise serializers.ValidationError(error)
        return version


def refuse_bad_addresses(adapter: str, addresses: Mapping[str, str | None]) -> None:
    """Raise `InvalidRequest` with an error for each address that could not be called. May resolve names."""
    errors = [
        (member, error)
        for member, address in addresses.items()
        if address and (error := error_of_address("http" if member == "health_url" else adapter, address))
    ]
    if errors:
        raise InvalidRequest(errors)


def defaults() -> dict[str, Any]:
    """Return the defaults of an agent's members, by name."""
    empty = Agent()
    return {name: getattr(empty, name) for name in PLAIN}


#: The members that are stored in columns of the same name. Credentials are encrypted instead.
PLAIN: tuple[str, ...] = tuple(str(name) for name in AgentChangeSerializer._declared_fields if name != "auth")


class AgentSerializer(ResponseSerializer):
    """A role of the registry, with the values that apply where a tenant sets none. Only platform admins see endpoints; credentials are
    never returned."""

    role = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    adapter = serializers.CharField()
    model = serializers.CharField()
    queue = Computed(
        str,
        lambda agent: queue_of(agent.role),
        help_text="The name of the queue for `celery -A orchestrator worker -Q`.",
    )
    version = serializers.CharField(allow_null=True, help_text="The current version in production.")
    input_schema = serializers.DictField(allow_null=True, help_text="JSON Schema of an activity's `params`.")
    tenant_concurrency = serializers.IntegerField(
        help_text="How many activities of one tenant may run at once."
    )
    max_concurrency = serializers.IntegerField(
        allow_null=True, help_text="How many activities of all tenants together may run at once."
    )
    timeout_seconds = serializers.IntegerField(allow_null=True)
    retry = serializers.DictField()
    backlog = serializers.DictField(help_text="What happens if too much work waits, or waits too long.")
    enabled = serializers.BooleanField()
    paused = serializers.BooleanField()
    health = serializers.CharField(
        help_text="unknown, healthy or unhealthy. For information only: work is sent in any case."
    )
    health_checked_at = serializers.DateTimeField(allow_null=True)
    revision = serializers.IntegerField(help_text="Increases with every change; the ETag begins with it.")
    created_at = serializers.DateTimeField()


class PlatformAgentSerializer(AgentSerializer):
    """A role of the registry as platform admins see it."""

    endpoint = serializers.CharField()
    auth = Computed(
        {"type": "object", "properties": {"set": {"type": "boolean"}}},
        lambda agent: {"set": bool(agent.auth_sealed)},
        help_text="Whether credentials are stored. They are never returned.",
    )
    options = serializers.DictField()
    instructions = serializers.CharField()
    health_url = serializers.CharField()
    health_detail = serializers.CharField()
    health_failures = serializers.IntegerField(help_text="Number of failed checks in a row.")
    warnings = Computed(
        {"type": "array", "items": {"type": "string"}},
        lambda agent: (
            []
            if agent.enabled
            else [f"still needed by {each}" for each in registry.references_to(agent.role)]
        ),
        help_text="What still needs this agent although it is disabled.",
    )


ADDRESS = "/api/v1/agents/"
ADDRESSES = ("endpoint", "health_url")
KEEP: Any = object()  # instead of credentials: keep the stored ones


@describe_resource(many="The roles of the registry")
class AgentViewSet(VersionedResource):
    """The registry belongs to no tenant: everybody can read it, and only platform admins can change it."""

    queryset = Agent.objects
    serializer_class = AgentSerializer
    address = ADDRESS
    permission_classes = (PlatformPermission,)
    filterset_fields = ("enabled", "paused", "adapter", "health")
    search_fields = ("role", "name", "description")
    ordering_fields = ("role",)
    ordering = ("role",)
    lookup_field = "role"
    version_field = "revision"
    volatile = (
        "version",
        "health",
        "health_checked_at",
        "health_detail",
        "health_failures",
        "warnings",
    )
    scope = "agents"
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(
        ("create", "update", "partial_update", "destroy", "check"), Role.ADMIN
    )

    def get_queryset(self) -> QuerySet[Any]:
        return Agent.objects.annotate(version=deployments.of_row_in_production().values("version"))

    @operation("One role", answer=AgentSerializer, refusals=(404,))
    def retrieve(self, request: Request, role: str) -> Response:
        return self._render(role)

    @creation("Add a role to the registry", NewAgentSerializer, PlatformAgentSerializer)
    def create(self, request: Request) -> Response:
        """Takes effect within two seconds. Workers without `-Q` serve the new role without a restart."""
        body = read(NewAgentSerializer, request.data)
        agent = Agent(role=body["role"], revision=0)
        if Agent.objects.filter(role=agent.role).exists():
            raise AlreadyExists("agent", agent.role, "PUT or PATCH changes it")
        self._write(agent, {**defaults(), **body}, body.get("auth"))
        return self.answer_created(agent, self._render(agent.role).data)

    @change("Replace a role", AgentBodySerializer, PlatformAgentSerializer)
    def update(self, request: Request, role: str) -> Response:
        """Omitted members, including credentials, are reset to their defaults. Takes effect within two seconds."""
        agent = self.lock_row()
        auth_stays = self._auth_stays(agent)
        body = self.read_change(AgentBodySerializer)
        self._write(agent, {**defaults(), **body}, KEEP if auth_stays else body.get("auth"))
        return self._render(role)

    @change("Change a role", AgentChangeSerializer, PlatformAgentSerializer)
    def partial_update(self, request: Request, role: str) -> Response:
        """Omitted members stay as they are. A role can be disabled although something still needs it; `warnings` then says what."""
        agent = self.lock_row()
        auth_stays = self._auth_stays(agent)
        body = self.read_change(AgentChangeSerializer)
        sent: Any = request.data
        emptied = {name for name, value in sent.items() if value is None}
        standard = {name: value for name, value in defaults().items() if name in emptied}
        present = {name: getattr(agent, name) for name in PLAIN}
        auth = body.get("auth") if "auth" in request.data and not auth_stays else KEEP
        self._write(agent, {**present, **standard, **body}, auth)
        return self._render(role)

    @removal("Remove a role", refusals=(404, 409))
    def destroy(self, request: Request, role: str) -> Response:
        """Refused while enabled schedules, pipelines or open activities need the role. The tenants' settings of the role are deleted,
        too."""
        # Not locked here: the database role that sees every tenant deletes it, and only if its revision is still the same.
        agent = require_found(Agent.objects.filter(role=role).first())
        self.check_if_match(agent.revision)
        registry.remove(role, revision=agent.revision)
        configuration.forget()
        return Response(status=204)

    @posting(
        "Check the health of an agent's endpoint",
        NothingSerializer,
        PlatformAgentSerializer,
        refusals=(404,),
        status=202,
    )
    @action(detail=True, methods=["post"])
    def check(self, request: Request, role: str) -> Response:
        """A worker checks it within seconds; `health` and `health_checked_at` then contain the result."""
        self.lock_row()
        health.request_check(role)
        answer = self._render(role)
        answer.status_code = 202
        return answer

    def _auth_stays(self, agent: Agent) -> bool:
        """Whether the body has `auth` as a GET has returned it, which is then removed."""
        body: Any = self.request.data
        stays = isinstance(body, dict) and body.get("auth") == {"set": bool(agent.auth_sealed)}
        if stays:
            del body["auth"]
        return stays

    def rows_to_lock(self) -> Any:
        return Agent.objects  # which belong to no tenant

    def _write(self, agent: Agent, members: Mapping[str, Any], auth: Any) -> None:
        addresses = {name: members[name] for name in ADDRESSES if members[name] != getattr(agent, name)}
        if members["adapter"] != agent.adapter:
            addresses["endpoint"] = members["endpoint"]
        refuse_bad_addresses(members["adapter"], addresses)
        if auth is not KEEP:
            agent.auth_sealed = seal_auth(
                agent.auth_sealed, auth, context=credentials.agent_context(agent.role)
            )
        is_new, address_changed = agent.revision == 0, bool(addresses)
        for name in PLAIN:
            setattr(agent, name, members[name])
        agent.revision += 1
        if address_changed:
            registry.reset_health(agent)
        columns = None if is_new else registry.columns_to_save(address_changed=address_changed)
        agent.save(force_insert=is_new, update_fields=columns)
        configuration.forget()

    def _render(self, role: str) -> Response:
        # Not `get_object`, which would compare If-Match with the new state.
        return Response(self.show(require_found(AgentViewSet.get_queryset(self).filter(role=role).first())))

    def show(self, rows: Any, *, many: bool = False) -> Any:
        kind = PlatformAgentSerializer if self.principal.is_platform_admin else AgentSerializer
        return kind(rows, many=many).data


# A new secret to sign jobs and reports between the orchestrator and a tenant's agent: `POST /agent-configs/{role}/rotate-secret/`.


class NewSecretSerializer(serializers.Serializer[Any]):
    """A secret. It is returned only once."""

    role = serializers.CharField()
    secret = serializers.CharField(
        allow_null=True,
        help_text="`whsec_` and base64, as defined by Standard Webhooks. Null in a repeated answer.",
    )
    in_force = serializers.IntegerField(
        help_text="Number of secrets that sign now: this one and, if there is one, the previous one."
    )
    version = serializers.IntegerField()


class RotateSecret(Versioned, TenantView):
    queryset = AgentConfig.objects
    serializer_class = NewSecretSerializer
    scope = "agents"
    required_role: ClassVar[Role] = Role.ADMIN

    @command("Rotate the signing secret of a role's agent", NothingSerializer, NewSecretSerializer)
    def post(self, request: Request, role: str) -> Response:
        """Until the next rotation, jobs are also signed with the previous secret, and reports signed with it are accepted. Rotate twice if
        a secret has leaked. Takes effect within two seconds. The answer contains the secret only once: a repetition with the same
        `Idempotency-Key` does not contain it."""
        agent = require_found(Agent.objects.filter(role=role).first())
        own = AgentConfig.objects.for_tenant(self.tenant_id).select_for_update()
        config = own.filter(agent_id=role).first() or AgentConfig(
            tenant_id=self.tenant_id, agent=agent, version=0
        )
        self.check_if_match(config.version)
        try:
            secret = credentials.renew_signing_secret(config)
        except ConfigurationError as error:
            raise TenantError(
                f"The secrets of {role} cannot be read any more: {error}", code="secret_unreadable"
            ) from error
        config.version += 1
        config.save(force_insert=config.version == 1)
        configuration.forget()
        in_force = len(credentials.signing_secrets_in_force(config))
        return Response({"role": role, "secret": secret, "in_force": in_force, "version": config.version})


# Deployments of a role. Everybody can read them; only platform admins deploy, promote and roll back.


class DeploymentSerializer(ResponseSerializer):
    """A current or former deployment of an agent's version to an environment."""

    id = serializers.UUIDField()
    version = serializers.CharField()
    environment = serializers.CharField(help_text="production, staging or development")
    deployed_at = serializers.DateTimeField()
    deployed_by = serializers.CharField()
    replaced_at = serializers.DateTimeField(
        allow_null=True, help_text="Null while it is the current deployment."
    )
    replaced_by = serializers.CharField()
    promoted_from = serializers.UUIDField(
        source="promoted_from_id", allow_null=True, help_text="The deployment that was promoted."
    )
    previous = serializers.UUIDField(
        source="previous_id",
        allow_null=True,
        help_text="The deployment that was in production before; a rollback restores it.",
    )


class PlatformDeploymentSerializer(DeploymentSerializer):
    """A deployment as platform admins see it."""

    endpoint = serializers.CharField(help_text="If empty, the agent's own endpoint is used.")


class DeploymentFilter(StrictFilterSet):
    environment = django_filters.ChoiceFilter(choices=AgentVersionDeployment.Environment.choices)
    current = FlagFilter(field_name="replaced_at", lookup_expr="isnull")


class DeploymentViewSet(Versioned, TenantViewSet):
    """`If-Match` is compared with the ETag of the agent, because its deployments are part of its state."""

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
        kind = PlatformDeploymentSerializer if self.principal.is_platform_admin else DeploymentSerializer
        return self.answer_page(self.get_queryset(), kind)

    @command("Deploy a version of a role", NewDeploymentSerializer, PlatformDeploymentSerializer, status=201)
    def create(self, request: Request, agent_role: str) -> Response:
        """In production, it replaces the current version; in other environments, only an earlier deployment of the same version."""
        agent = self._agent(agent_role)
        body = read(NewDeploymentSerializer, request.data)
        refuse_bad_addresses(agent.adapter, {"endpoint": body.get("endpoint")})
        deployment = deployments.deploy(agent_role, **body, actor=self.principal.actor)
        return self._render(deployment, status=201)

    @command("Promote a version to production", NothingSerializer, PlatformDeploymentSerializer)
    def promote(self, request: Request, agent_role: str, pk: UUID) -> Response:
        """It replaces the current version. If two callers promote at the same time, one gets 409 and changes nothing."""
        self._agent(agent_role)
        return self._render(deployments.promote(agent_role, pk, actor=self.principal.actor))

    @command("Roll back to the previous production version", NothingSerializer, PlatformDeploymentSerializer)
    def roll_back(self, request: Request, agent_role: str) -> Response:
        """Each further call goes back one more version. 409 if there is none."""
        self._agent(agent_role)
        return self._render(deployments.roll_back(agent_role, actor=self.principal.actor))

    def _agent(self, role: str) -> Agent:
        agent = require_found(Agent.objects.filter(role=role).first())
        self.check_if_match(agent.revision)
        return agent

    def _render(self, deployment: AgentVersionDeployment, status: int = 200) -> Response:
        configuration.forget()
        revision = Agent.objects.values_list("revision", flat=True).get(role=deployment.agent_id)
        body = PlatformDeploymentSerializer(deployment).data
        return Response(body, status=status, headers={"ETag": etag_of(revision)})
