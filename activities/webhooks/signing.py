"""What a webhook is signed with. Sealed at rest, opened only to sign, shown once."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from agents import credentials, webhook_signing
from tenants import clock
from tenants.events.models import WebhookEndpoint

OVERLAP = timedelta(hours=24)  # in which the receiver may take up the new secret


def renew(endpoint: WebhookEndpoint) -> str:
    """Give the webhook a new secret, without saving it, and return it. The one before, if any, signs as well for a day."""
    new = webhook_signing.new_secret()
    previous = (
        _opened(endpoint.tenant_id, endpoint.pk, endpoint.secret_sealed)[:1] if endpoint.secret_sealed else ()
    )
    kept = {"secrets": " ".join((new, *previous))}
    endpoint.secret_sealed = credentials.seal(kept, context=context_of(endpoint.tenant_id, endpoint.pk))
    endpoint.previous_until = clock.now() + OVERLAP if previous else None
    return new


def in_force(
    tenant_id: UUID, endpoint_id: UUID, sealed: str, previous_until: datetime | None
) -> tuple[str, ...]:
    """The secrets that sign now, newest first. Raises `agents.exceptions.ConfigurationError` when the key that sealed them is gone."""
    secrets = _opened(tenant_id, endpoint_id, sealed)
    return secrets if previous_until is not None and previous_until > clock.now() else secrets[:1]


def context_of(tenant_id: UUID, endpoint_id: UUID) -> str:
    return f"webhook:{tenant_id}:{endpoint_id}:secrets"


def _opened(tenant_id: UUID, endpoint_id: UUID, sealed: str) -> tuple[str, ...]:
    return tuple(credentials.unseal(sealed, context=context_of(tenant_id, endpoint_id))["secrets"].split())
