"""Where pipelines keep what in Redis. Nothing of it is the truth: it may be gone at any moment."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings


def rows_of(tenant_id: UUID, dataset: str) -> str:
    """The rows of a dataset of the source `cache`, as one JSON value."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}rows:{tenant_id}:{dataset}"


def file_of(owner: str, handle: str) -> str:
    """A file that somebody has looked at in the admin and not stored yet."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}upload:{owner}:{handle}"
