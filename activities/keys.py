"""Redis keys of activities, apart from those of admission. Nothing stored under them is authoritative; it may vanish at any moment."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings


def lines_missed(tenant_id: UUID, run_id: UUID) -> str:
    """Counter of the log lines of a run that could not be written since the last one that was."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}lines_missed:{tenant_id}:{run_id}"


def report(tenant_id: UUID, role: str, hashed_id: str) -> str:
    """Marker that a signed report with this id was received, with the digest of its content."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}report:{tenant_id}:{role}:{hashed_id}"


def invariants_outcome() -> str:
    """Outcome of the last check of the invariants."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}invariants"
