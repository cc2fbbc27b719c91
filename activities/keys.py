"""Where activities keep what in Redis, beside admission. Nothing of it is the truth: it may be gone at any moment."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings


def lines_missed(tenant_id: UUID, run_id: UUID) -> str:
    """How many lines of a run's log could not be written since the last one that could."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}lines_missed:{tenant_id}:{run_id}"


def report(tenant_id: UUID, role: str, hashed_id: str) -> str:
    """That a signed report has come under this id, with the digest of what it said."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}report:{tenant_id}:{role}:{hashed_id}"


# Where the outcome of a check is kept in Redis.


def invariants_outcome() -> str:
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}invariants"
