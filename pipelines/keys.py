"""The Redis keys of pipelines. None of the data is authoritative: it may be lost at any moment."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings


def rows_of(tenant_id: UUID, dataset: str) -> str:
    """The rows of a dataset of the source `cache`, as one JSON value."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}rows:{tenant_id}:{dataset}"


def file_of(owner: str, handle: str) -> str:
    """A file that was uploaded in the admin for a preview and is not stored yet."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}upload:{owner}:{handle}"
