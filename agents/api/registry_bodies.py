"""An agent of the registry and its deployments, as platform admins send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from agents import input_schemas, outbound, semantic_versions
from agents.api.settings_bodies import (
    ADAPTERS,
    DAY,
    LONGEST_INSTRUCTIONS,
    MOST_AT_ONCE,
    AuthSerializer,
    BacklogSerializer,
    RetrySerializer,
    fault_of_inline,
)
from agents.api.strict import OPTIONAL, Flag, Member, OneOf, StrictSerializer, Text, Whole
from agents.exceptions import OutboundRefused
from agents.models import Agent, AgentVersionDeployment, role_validator
from tenants.api.faults import InvalidRequest


class AgentChangeSerializer(StrictSerializer):
    """What to change of an agent; what is left out stays, and null sets a member back to its default."""

    name = Text(max_length=100, **OPTIONAL)
    description = Text(max_length=10_000, allow_blank=True, **OPTIONAL)
    adapter = OneOf(choices=list(ADAPTERS), **OPTIONAL)
    endpoint = Text(
        max_length=500, help_text="A URL for http; package.module:function for inline.", **OPTIONAL
    )
    auth = AuthSerializer(**OPTIONAL)
    model = Text(max_length=100, **OPTIONAL)
    options = Member(help_text="For the adapter.", **OPTIONAL)
    instructions = Text(
        allow_blank=True,
        max_length=LONGEST_INSTRUCTIONS,
        trim_whitespace=False,
        help_text="What the agent is and how it works, told with every task. A change begins new sessions.",
        **OPTIONAL,
    )
    input_schema = Member(help_text="JSON Schema that `params` must satisfy.", **OPTIONAL)
    tenant_concurrency = Whole(
        min_value=1, max_value=MOST_AT_ONCE, help_text="For each tenant; 5 if left out.", **OPTIONAL
    )
    max_concurrency = Whole(min_value=1, max_value=MOST_AT_ONCE, help_text="Over all tenants.", **OPTIONAL)
    timeout_seconds = Whole(min_value=1, max_value=DAY, **OPTIONAL)
    retry = RetrySerializer(**OPTIONAL)
    backlog = BacklogSerializer(**OPTIONAL)
    health_url = Text(
        max_length=500,
        help_text="Asked with GET; a 2xx means healthy. Left out: any answer of the endpoint does.",
        **OPTIONAL,
    )
    enabled = Flag(**OPTIONAL)
    paused = Flag(**OPTIONAL)

    def validate_input_schema(self, schema: Any) -> Any:
        if schema and (fault := input_schemas.fault_of(schema)):
            raise serializers.ValidationError(fault)
        return schema


class AgentBodySerializer(AgentChangeSerializer):
    """An agent as a whole; what is left out has its default."""

    name = Text(max_length=100)


class NewAgentSerializer(AgentBodySerializer):
    """A new agent. Its role is its name for ever: it names queues, rows and sealed credentials."""

    role = Text(max_length=63, help_text="Lower-case letters, digits and single hyphens.")

    def validate_role(self, role: str) -> str:
        role_validator(role)
        return role


class NewDeploymentSerializer(StrictSerializer):
    """A version of an agent, and where it goes."""

    version = Text(max_length=64, help_text="A semantic version, such as 1.4.0 or 2.0.0-rc.1.")
    environment = OneOf(choices=list(AgentVersionDeployment.Environment.values))
    endpoint = Text(max_length=500, help_text="Left out: the agent's own endpoint.", **OPTIONAL)

    def validate_version(self, version: str) -> str:
        if fault := semantic_versions.fault_of(version):
            raise serializers.ValidationError(fault)
        return version


def refuse_unusable(adapter: str, addresses: Mapping[str, str | None]) -> None:
    """Raise `InvalidRequest` for each address, by its member, that could not be called. May ask the name service."""
    faults = [
        (member, fault)
        for member, address in addresses.items()
        if address and (fault := fault_of_address("http" if member == "health_url" else adapter, address))
    ]
    if faults:
        raise InvalidRequest(faults)


def fault_of_address(adapter: str, address: str) -> str | None:
    """Why this could not be called, or None."""
    if adapter == "inline":
        return fault_of_inline(address)
    try:
        outbound.check_url(address)
    except OutboundRefused as error:
        return str(error)
    return None


def defaults() -> dict[str, Any]:
    """The members of an agent that nothing is said about, by name."""
    empty = Agent()
    return {name: getattr(empty, name) for name in PLAIN}


#: The members that are columns of their own. Credentials are sealed.
PLAIN: tuple[str, ...] = tuple(str(name) for name in AgentChangeSerializer._declared_fields if name != "auth")
