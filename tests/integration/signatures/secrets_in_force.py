"""Signing secrets in force, and the address that renews them."""

from __future__ import annotations

from agents import configuration
from tenants.models import Tenant

CONFIGS = "/api/v1/agent-configs/"


def secrets_of(tenant: Tenant, role: str = "qa") -> tuple[str, ...]:
    configuration.forget()
    return tuple(configuration.settings_for(tenant.pk, role).adapter.signing_secrets)
