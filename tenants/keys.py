"""Builds the keys and channels of tenants in Redis, for the limiter and for streams of events. No other module does."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from django.conf import settings

if TYPE_CHECKING:
    from tenants.principals import Principal


def bucket(name: str) -> str:
    """Return the key of the token bucket of a name such as `api:<tenant id>`. Braces keep it on one node with its markers."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}bucket:{{{name}}}"


def take(name: str, take_id: UUID | str) -> str:
    """Return the key of the marker of one take from that bucket."""
    return f"{bucket(name)}:take:{take_id}"


def places(name: str) -> str:
    """Return the key of the holders of the places of this name."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}places:{name}"


def seats_of_tenant(tenant_id: UUID) -> str:
    """Return the key of a tenant's seats. Braces keep them on one node with those of its callers."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}streams:{{{tenant_id}}}"


def seats_of_caller(principal: Principal) -> str:
    """Return the key of the seats of one token or person."""
    return f"{seats_of_tenant(principal.tenant_id)}:{principal.credential}"


def displaced_seats(tenant_id: UUID) -> str:
    """Return the key of a tenant's displaced seats, whose streams may not have ended yet."""
    return f"{seats_of_tenant(tenant_id)}:displaced"


def announcements(tenant_id: UUID) -> str:
    """Return the channel of announcements to the followers of a tenant."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}announcements:{tenant_id}"
