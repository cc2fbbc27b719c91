"""Rows that are kept in Redis for a while, one value per dataset: they may be gone at any moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import orjson
import redis
from django.conf import settings

from pipelines import keys
from pipelines.exceptions import SourceUnavailable
from tenants import redis as connections


def kept(tenant_id: UUID, name: str) -> list[dict[str, Any]] | None:
    """The rows, or None when there are none any more. Raises `SourceUnavailable`."""
    try:
        found: Any = connections.client().get(keys.rows_of(tenant_id, name))
    except redis.RedisError as error:
        raise _silent(name) from error
    if found is None:
        return None
    rows: list[dict[str, Any]] = orjson.loads(found)
    return rows


def keep(tenant_id: UUID, name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Instead of what was there, for ORCHESTRATOR_DATASET_CACHE_SECONDS from now. Raises `SourceUnavailable`."""
    seconds = int(settings.ORCHESTRATOR_DATASET_CACHE_SECONDS)
    try:
        connections.client().set(keys.rows_of(tenant_id, name), orjson.dumps(list(rows)), ex=seconds)
    except redis.RedisError as error:
        raise _silent(name) from error


def drop(tenant_id: UUID, name: str) -> None:
    try:
        connections.client().delete(keys.rows_of(tenant_id, name))
    except redis.RedisError as error:
        raise _silent(name) from error


def _silent(name: str) -> SourceUnavailable:
    return SourceUnavailable(f"cache:{name}: Redis does not answer.")
