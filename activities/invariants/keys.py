"""Where the outcome of a check is kept in Redis."""

from __future__ import annotations

from django.conf import settings


def outcome() -> str:
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}invariants"
