"""The only place that builds the keys and channels of streams in Redis."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings

from tenants.principals import Principal


def of_tenant(tenant_id: UUID) -> str:
    """The seats of a tenant. Braces keep them on one node with those of its callers."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}streams:{{{tenant_id}}}"


def of_caller(principal: Principal) -> str:
    """The seats of one token or person."""
    return f"{of_tenant(principal.tenant_id)}:{principal.credential}"


def of_announcements(tenant_id: UUID) -> str:
    """The channel on which the followers of a tenant are told what nobody keeps."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}announcements:{tenant_id}"


def of_displaced(tenant_id: UUID) -> str:
    """The seats of a tenant that were taken away from streams that may not know yet."""
    return f"{of_tenant(tenant_id)}:displaced"
