"""What is shown of a role of the registry: to tenants, and to platform admins."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from agents import references
from agents.api.shown import Shown
from agents.models import Agent
from agents.routing import queue_of


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
    backlog = serializers.DictField(help_text="What happens to work that waits too long or is too much.")
    enabled = serializers.BooleanField()
    paused = serializers.BooleanField()
    health = serializers.CharField(
        help_text="unknown, healthy or unhealthy; information, work is sent all the same."
    )
    health_checked_at = serializers.DateTimeField(allow_null=True)
    revision = serializers.IntegerField(help_text="Raised by every change; the ETag.")
    created_at = serializers.DateTimeField()

    def get_queue(self, agent: Agent) -> str:
        return queue_of(agent.role)


class PlatformAgentSerializer(AgentSerializer):
    """A role of the registry as platform admins see it."""

    endpoint = serializers.CharField()
    auth = serializers.SerializerMethodField(
        help_text="Whether credentials are stored. They are never shown."
    )
    options = serializers.DictField()
    instructions = serializers.CharField()
    health_url = serializers.CharField()
    health_detail = serializers.CharField()
    health_failures = serializers.IntegerField(help_text="In a row.")
    warnings = serializers.SerializerMethodField(
        help_text="What needs this agent although it is switched off."
    )

    @extend_schema_field({"type": "object", "properties": {"set": {"type": "boolean"}}})
    def get_auth(self, agent: Agent) -> dict[str, bool]:
        return {"set": bool(agent.auth_sealed)}

    @extend_schema_field({"type": "array", "items": {"type": "string"}})
    def get_warnings(self, agent: Agent) -> list[str]:
        return [] if agent.enabled else [f"still needed by {found}" for found in references.to(agent.role)]
