"""The only place that builds the limiter's keys in Redis."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings


def bucket(name: str) -> str:
    """The token bucket of a name such as `api:<tenant id>`. Braces keep it on one node with its markers."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}bucket:{{{name}}}"


def take(name: str, take_id: UUID | str) -> str:
    """The marker of one take from that bucket."""
    return f"{bucket(name)}:take:{take_id}"


def places(name: str) -> str:
    """Who holds one of the places of this name."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}places:{name}"
