"""A tenant's own settings of roles: the settings in force, and which of them the tenant has set."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from functools import cached_property
from typing import Any, ClassVar
from uuid import UUID

import orjson
from django.conf import settings
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agents import adapters, configuration, credentials, outbound, scheduler_settings
from agents.adapters.http import OWN_HEADERS
from agents.adapters.inline import error_of_endpoint
from agents.api.role_names import RoleName
from agents.exceptions import ConfigurationError, OutboundRefused
from agents.governor import providers
from agents.models import Agent, AgentConfig
from tenants import owned_ids
from tenants.api.documentation import change, operation
from tenants.api.etags import Versioned
from tenants.api.problems import InvalidRequest
from tenants.api.serializers import (
    OPTIONAL,
    Flag,
    Identifier,
    Number,
    OneOf,
    StrictSerializer,
    Text,
    Whole,
    read_change,
)
from tenants.api.views import TenantViewSet, put_members, require_found
from tenants.context import tenant_scope
from tenants.models import Role, Tenant
from tenants.wire_json import dumps

# A tenant's own settings of a role, as they are sent. They are validated as far as possible without calling anybody.


DAY = 86_400  # seconds
MOST_ATTEMPTS = 50
MOST_AT_ONCE = 100_000
MOST_WAITING = 10_000_000
LONGEST_INSTRUCTIONS = 50_000  # characters

#: The names of the available adapters.
ADAPTERS = tuple(adapters.names())

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_PRINTABLE = re.compile(r"[\x20-\x7e]+")

#: The members of each kind of credentials, those in parentheses optional.
AUTH_MEMBERS = {
    "bearer": ("token",),
    "header": ("name", "value"),
    "basic": ("username", "(password)"),
    "none": (),
}


class AuthSerializer(StrictSerializer):
    """Credentials for the agent's endpoint. They are never returned: answers contain `{"type": ..., "set": true}`, and sending exactly that
    keeps the stored credentials."""

    type = OneOf(choices=list(AUTH_MEMBERS))
    token = Text(max_length=4_000, trim_whitespace=False, **OPTIONAL)
    name = Text(max_length=100, **OPTIONAL)
    value = Text(max_length=4_000, trim_whitespace=False, **OPTIONAL)
    username = Text(max_length=200, trim_whitespace=False, **OPTIONAL)
    password = Text(max_length=1_000, trim_whitespace=False, **OPTIONAL)
    set = Flag(help_text="If true, the stored credentials of this type are kept.", **OPTIONAL)

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        if "type" not in attrs:
            return {}
        values = {name: value for name, value in attrs.items() if name not in ("type", "set")}
        members = AUTH_MEMBERS[attrs["type"]]
        errors = {
            name: ["is not part of this type"]
            for name in values
            if name not in members and f"({name})" not in members
        }
        if not attrs.get("set"):
            errors |= {
                name: ["is required"] for name in members if name not in values and not name.startswith("(")
            }
        elif values:
            errors["set"] = ["is for keeping what is set; leave out the credentials"]
        if "name" in values and not _HEADER.fullmatch(values["name"]):
            errors.setdefault("name", ["must be the name of a header"])
        elif values.get("name", "").lower() in OWN_HEADERS:
            errors.setdefault("name", ["is a header that the protocol itself sets"])
        errors |= {
            name: ["must be printable ASCII"]
            for name in ("token", "value")
            if name in values and name not in errors and not _PRINTABLE.fullmatch(values[name])
        }
        return errors


class RetrySerializer(StrictSerializer):
    """When to retry. Omitted members are taken from the registry, then from the defaults."""

    max_attempts = Whole(min_value=1, max_value=MOST_ATTEMPTS, **OPTIONAL)
    strategy = OneOf(choices=["exponential", "linear", "fixed"], **OPTIONAL)
    base_seconds = Number(min_value=0, max_value=DAY, **OPTIONAL)
    multiplier = Number(min_value=1, max_value=100, **OPTIONAL)
    max_seconds = Number(min_value=0, max_value=DAY, **OPTIONAL)
    jitter = Number(min_value=0, max_value=1, **OPTIONAL)

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        if attrs.get("max_seconds", DAY) < attrs.get("base_seconds", 0):
            return {"max_seconds": ["must not be below base_seconds"]}
        return {}


class RateSerializer(StrictSerializer):
    """A token bucket for starts: `capacity` starts at once, and `per_second` on average."""

    capacity = Number(min_value=1, max_value=1_000_000)
    per_second = Number(min_value=0.0001, max_value=1_000_000)


class BacklogSerializer(StrictSerializer):
    """What happens if too much work waits, or waits too long. Omitted members are taken from the registry."""

    max_waiting = Whole(
        min_value=1,
        max_value=MOST_WAITING,
        help_text="A value above the platform's own limit has no effect.",
        **OPTIONAL,
    )
    when_full = OneOf(
        choices=["reject", "drop_oldest", "evict_lowest"],
        help_text="Only background work that nobody waits for is ever cancelled to make room; otherwise, the submission "
        "is refused with 429.",
        **OPTIONAL,
    )
    expire_after_seconds = Number(
        min_value=1,
        max_value=365 * DAY,
        help_text="Applies to new background work that nobody waits for and that has no `expires_at`.",
        **OPTIONAL,
    )


MOST_GRANTED = 100


class GrantedScopeSerializer(StrictSerializer):
    """A selection of the tenant's work: everything that matches at least one of the lists."""

    everything = Flag(help_text="All work of the tenant.", **OPTIONAL)
    pipelines = serializers.ListField(
        child=Identifier(), max_length=MOST_GRANTED, help_text="Ids of pipelines.", **OPTIONAL
    )
    deliverables = serializers.ListField(
        child=Identifier(), max_length=MOST_GRANTED, help_text="Ids of deliverables.", **OPTIONAL
    )
    roles = serializers.ListField(
        child=RoleName(max_length=63), max_length=MOST_GRANTED, help_text="Roles of agents.", **OPTIONAL
    )
    groups = serializers.ListField(
        child=Text(max_length=200), max_length=MOST_GRANTED, help_text="Group keys.", **OPTIONAL
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the scope in the form in which it is stored."""
        return {
            name: value if isinstance(value, bool) else [str(one) for one in value]
            for name, value in attrs.items()
            if value
        }


class AgentSettingsSerializer(StrictSerializer):
    """A tenant's own settings of a role. Omitted members are taken from the registry."""

    max_concurrency = Whole(min_value=1, max_value=MOST_AT_ONCE, **OPTIONAL)
    max_concurrency_per_group = Whole(
        min_value=1,
        max_value=MOST_AT_ONCE,
        help_text="How many activities with the same `group_key` may run at once. Default: 1.",
        **OPTIONAL,
    )
    adapter = OneOf(choices=list(ADAPTERS), **OPTIONAL)
    endpoint = Text(
        max_length=500, help_text="A URL for http; package.module:function for inline.", **OPTIONAL
    )
    auth = AuthSerializer(**OPTIONAL)
    model = Text(max_length=100, **OPTIONAL)
    instructions = Text(
        allow_blank=True,
        max_length=LONGEST_INSTRUCTIONS,
        trim_whitespace=False,
        help_text="What the agent is and how it works; sent with every task. A change starts new sessions.",
        **OPTIONAL,
    )
    timeout_seconds = Whole(min_value=1, max_value=DAY, **OPTIONAL)
    retry = RetrySerializer(**OPTIONAL)
    rate = RateSerializer(**OPTIONAL)
    backlog = BacklogSerializer(**OPTIONAL)
    hears_of_failures = Flag(
        help_text="Whether permanent failures of other roles wake this role, so that it can plan again. Default: false.",
        **OPTIONAL,
    )
    may_hold = GrantedScopeSerializer(
        help_text="The waiting work that an approval of this role may hold, in addition to its own. Default: none.",
        **OPTIONAL,
    )
    enabled = Flag(**OPTIONAL)

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        """It needs the `agent` of the role in the context, and may resolve names, so it must not run in a transaction."""
        if "adapter" in invalid or "endpoint" in invalid:
            return {}
        return {name: [error] for name, error in errors_of_endpoint(self.context["agent"], attrs).items()}


def error_of_address(adapter: str, address: str) -> str | None:
    """Return why this address could not be called, or None if it can. May resolve names."""
    if adapter == "inline":
        return error_of_endpoint(address, settings.ORCHESTRATOR_INLINE_CALLABLES)
    try:
        outbound.check_url(address)
    except OutboundRefused as error:
        return str(error)
    return None


#: The members that are stored in columns of the same name. Credentials are encrypted instead; pausing has its own address.
PLAIN = tuple(name for name in AgentSettingsSerializer._declared_fields if name != "auth")


class AuthShownSerializer(serializers.Serializer[Any]):
    type = serializers.CharField()
    set = serializers.BooleanField()


class AgentConfigSerializer(serializers.Serializer[Any]):
    """The effective settings of a role for this tenant. `own` lists the members that the tenant has set."""

    role = serializers.CharField()
    adapter = serializers.CharField()
    endpoint = serializers.CharField(allow_null=True, help_text="Null for the platform's, if there is one.")
    auth = AuthShownSerializer(allow_null=True, help_text="Null for the platform's, if there is one.")
    model = serializers.CharField(allow_null=True)
    instructions = serializers.CharField(allow_null=True)
    max_concurrency = serializers.IntegerField()
    max_concurrency_per_group = serializers.IntegerField()
    timeout_seconds = serializers.IntegerField()
    retry = serializers.DictField()
    rate = serializers.DictField(allow_null=True)
    backlog = serializers.DictField(
        help_text="max_waiting, when_full and expire_after_seconds, as far as the registry or the tenant sets them."
    )
    hears_of_failures = serializers.BooleanField(
        help_text="Whether permanent failures of other roles wake it."
    )
    may_hold = serializers.DictField(
        help_text="The waiting work that its approvals may hold, in addition to its own: everything, pipelines, "
        "deliverables, roles, groups."
    )
    enabled = serializers.BooleanField()
    paused = serializers.BooleanField()
    own = serializers.ListField(child=serializers.CharField())
    version = serializers.IntegerField(help_text="Increases with every change; 0 if nothing was ever set.")


class AgentConfigViewSet(Versioned, TenantViewSet):
    queryset = AgentConfig.objects
    serializer_class = AgentConfigSerializer
    ordering_fields = ("role",)
    ordering = ("role",)
    lookup_field = "role"
    # The endpoint's host name is resolved before anything is locked.
    in_one_transaction = False
    scope = "agents"
    required_role: ClassVar[dict[str, Role]] = {"update": Role.ADMIN}

    def get_queryset(self) -> QuerySet[Any]:
        return Agent.objects.filter()

    @operation(
        "The effective settings of all roles", answer=AgentConfigSerializer(many=True), refusals=(400,)
    )
    def list(self, request: Request) -> Response:
        with tenant_scope(self.tenant_id):
            page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
            rows = AgentConfig.objects.for_tenant(self.tenant_id).filter(
                agent_id__in=[agent.role for agent in page]
            )
            own = {config.agent_id: config for config in rows}
            return self.get_paginated_response([self._render(agent, own.get(agent.role)) for agent in page])

    @operation("The effective settings of one role", answer=AgentConfigSerializer, refusals=(404,))
    def retrieve(self, request: Request, role: str) -> Response:
        with tenant_scope(self.tenant_id):
            agent = self._agent(role)
            return Response(self._render(agent, self._own(role).first()))

    @change(
        "Replace the tenant's own settings of a role",
        AgentSettingsSerializer,
        AgentConfigSerializer,
        refusals=(404, 409),
    )
    def update(self, request: Request, role: str) -> Response:
        """Takes effect within two seconds. Omitted members are taken from the registry again."""
        with tenant_scope(self.tenant_id):
            agent = self._agent(role)
        body = self._read_change(agent)
        with tenant_scope(self.tenant_id):
            config = self._own(role).select_for_update().first()
            self.check_if_match(config.version if config else 0)
            _refuse_unknown_scope(self.tenant_id, body.get("may_hold", {}), config.may_hold if config else {})
            config = self._replace(
                config or AgentConfig(tenant_id=self.tenant_id, agent=agent, version=0), body
            )
            answer = self._render(agent, config)
        configuration.forget()
        return Response(answer)

    def _read_change(self, agent: Agent) -> dict[str, Any]:
        """Read the body. Of what a GET has returned, values that were not the tenant's own and are unchanged stay the registry's."""
        data: Any = self.request.data
        if isinstance(data, dict) and "own" in data:
            shown = orjson.loads(dumps(self._present(agent)))
            own = data["own"] if isinstance(data["own"], list) else ()
            data = {
                name: value
                for name, value in data.items()
                if name in own or name not in PLAIN or value != shown[name]
            }
        return read_change(AgentSettingsSerializer, data, lambda: self._present(agent), ("own",), agent=agent)

    def _present(self, agent: Agent) -> dict[str, Any]:
        with tenant_scope(self.tenant_id):
            return self._render(agent, self._own(agent.role).first())

    @cached_property
    def _limits(self) -> Tenant:
        return configuration.tenant_with_plan(self.tenant_id)

    def _replace(self, config: AgentConfig, body: Mapping[str, Any]) -> AgentConfig:
        put_members(config, body, PLAIN)
        config.auth_sealed = seal_auth(config.auth_sealed, body.get("auth"), context=_context_of(config))
        config.version += 1
        config.save(force_insert=config.version == 1)
        return config

    def _agent(self, role: str) -> Agent:
        return require_found(Agent.objects.filter(role=role).first())

    def _own(self, role: str) -> QuerySet[Any]:
        return AgentConfig.objects.for_tenant(self.tenant_id).filter(agent_id=role)

    def _render(self, agent: Agent, config: AgentConfig | None) -> dict[str, Any]:
        """Must run in a `tenant_scope`."""
        own = config or AgentConfig(tenant_id=self.tenant_id, agent=agent, version=0)
        kind, platform = type_of_auth(own.auth_sealed, context=_context_of(own)), scheduler_settings.current()
        names = [name for name in PLAIN if name != "enabled" and getattr(own, name)]
        names += ["auth"] if own.auth_sealed else []
        names += [] if own.enabled else ["enabled"]
        return {
            "role": agent.role,
            "adapter": own.adapter or agent.adapter,
            "endpoint": own.endpoint or None,
            "auth": {"type": kind, "set": True} if kind else None,
            "model": own.model or agent.model or None,
            "instructions": own.instructions or agent.instructions or None,
            "max_concurrency": configuration.cap_of(self._limits, agent, own),
            "max_concurrency_per_group": own.max_concurrency_per_group or 1,
            "timeout_seconds": own.timeout_seconds
            or agent.timeout_seconds
            or configuration.default_timeout(platform),
            "retry": {**platform.retry, **agent.retry, **own.retry},
            "rate": own.rate or None,
            "backlog": {**agent.backlog, **own.backlog},
            "hears_of_failures": own.hears_of_failures,
            "may_hold": own.may_hold,
            "enabled": agent.enabled and own.enabled,
            "paused": agent.paused or own.paused,
            "own": names,
            "version": own.version,
        }


def errors_of_endpoint(agent: Agent, chosen: Mapping[str, Any]) -> dict[str, str]:
    """Return errors of an endpoint that could not be called. May resolve names, so it must not run in a transaction."""
    adapter, endpoint = chosen.get("adapter") or agent.adapter, chosen.get("endpoint")
    if adapter == "cli":  # only the platform's operators may choose what runs on its machines
        if agent.adapter != "cli":
            return {"adapter": "cli can only be chosen where the registry says so"}
        if endpoint is not None:
            return {"endpoint": "is not for command-line agents: the registry says what is run"}
        return {}
    if endpoint is None:
        if adapter != agent.adapter and adapter not in providers.NAMES:
            return {"endpoint": f"is required, since the registry's is for the adapter {agent.adapter}"}
        return {}
    error = error_of_address(adapter, endpoint)
    return {"endpoint": error} if error else {}


def _refuse_unknown_scope(tenant_id: UUID, scope: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` for unknown ids, but not for those that are granted already: what they named may have been deleted since."""
    errors = []
    for kind, name in (("pipeline", "pipelines"), ("deliverable", "deliverables")):
        granted = before.get(name, ())
        new = {
            f"may_hold.{name}[{index}]": UUID(one)
            for index, one in enumerate(scope.get(name, ()))
            if one not in granted
        }
        errors += owned_ids.errors_of(tenant_id, kind, new)
    if errors:
        raise InvalidRequest(errors)


def _context_of(config: AgentConfig) -> str:
    return credentials.config_context(config.tenant_id, config.agent_id)


def seal_auth(kept: str, auth: Mapping[str, Any] | None, *, context: str) -> str:
    """Return the encrypted credentials to store. Raises `InvalidRequest` when there are none to keep."""
    if auth is None:
        return ""
    if not auth.get("set"):
        return credentials.seal(
            {name: value for name, value in auth.items() if name != "set"}, context=context
        )
    if type_of_auth(kept, context=context) != auth["type"]:
        raise InvalidRequest([("auth.set", f"there are no credentials of the type {auth['type']} to keep")])
    return kept


def type_of_auth(sealed: str, *, context: str) -> str | None:
    """Return the type of stored credentials, None if there are none."""
    if not sealed:
        return None
    try:
        return credentials.unseal(sealed, context=context).get("type")
    except ConfigurationError:
        return "unreadable"  # The key is missing; the settings can still be read and replaced.
