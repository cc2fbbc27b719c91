"""A new secret for what goes between us and a tenant's agent: `POST /agent-configs/{role}/rotate-secret/`."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from agents import configuration, signing_secrets
from agents.api.channels import NothingSerializer
from agents.exceptions import ConfigurationError
from agents.models import Agent, AgentConfig
from tenants.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from tenants.api.etags import Versioned
from tenants.api.strict import read
from tenants.api.views import TenantView
from tenants.exceptions import TenantError
from tenants.models import Role


class SecretUnreadable(TenantError):
    """The key that sealed the secrets of this agent is gone."""

    code = "secret_unreadable"
    status = 409


class NewSecretSerializer(serializers.Serializer[Any]):
    """A secret, which is told this once."""

    role = serializers.CharField()
    secret = serializers.CharField(
        allow_null=True,
        help_text="`whsec_` and base64, as the Standard Webhooks scheme has it. null when told before.",
    )
    in_force = serializers.IntegerField(help_text="How many sign now: this one, and the one before it.")
    version = serializers.IntegerField()


class RotateSecret(Versioned, TenantView):
    queryset = AgentConfig.objects
    serializer_class = NewSecretSerializer
    scope = "agents"
    required_role: ClassVar[Role] = Role.ADMIN

    @operation(
        "Give a role's agent a new secret",
        request=NothingSerializer,
        answer=NewSecretSerializer,
        refusals=(400, 404, 409, 412),
        parameters=(IDEMPOTENCY_KEY, IF_MATCH),
    )
    def post(self, request: Request, role: str) -> Response:
        """Jobs are signed with the one before as well, and reports signed with it are taken, until the next renewal. Renew twice when
        it has become known. In force within two seconds. The answer holds the secret once: a repetition with the same
        `Idempotency-Key` comes without it."""
        read(NothingSerializer, request.data)
        agent = Agent.objects.filter(role=role).first()
        if agent is None:
            raise NotFound
        own = AgentConfig.objects.for_tenant(self.tenant_id).select_for_update()
        config = own.filter(agent_id=role).first() or AgentConfig(
            tenant_id=self.tenant_id, agent=agent, version=0
        )
        self.check_if_match(config.version)
        try:
            secret = signing_secrets.renew(config)
        except ConfigurationError as error:
            raise SecretUnreadable(f"The secrets of {role} cannot be read any more: {error}") from error
        config.version += 1
        config.save(force_insert=config.version == 1)
        configuration.forget()
        in_force = len(signing_secrets.in_force(config))
        return Response({"role": role, "secret": secret, "in_force": in_force, "version": config.version})
