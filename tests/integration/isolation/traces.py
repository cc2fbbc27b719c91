"""Digests of a tenant's data: its rows in every table, its documents in MongoDB and its keys in Redis."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.db import connections

from activities import outputs
from tenants.context import SYSTEM
from tenants.redis import client

NO_EXPIRY = -1  # what Redis returns for a key that does not expire
TABLES = """
    SELECT c.relname FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace
    ORDER BY 1
"""


@lru_cache(maxsize=1)
def tables() -> list[str]:
    """Return every table with rows of tenants, from PostgreSQL's catalogue."""
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(TABLES)
        return [name for (name,) in cursor.fetchall()]


def digests(tenant_id: UUID) -> dict[str, Any]:
    """Return a digest of the tenant's data for each place. Equal results mean that nothing has changed."""
    return {**_rows(tenant_id), "MongoDB": _documents(tenant_id), "Redis": _keys(tenant_id)}


def _rows(tenant_id: UUID) -> dict[str, Any]:
    """Use a prepared statement, because planning a query about a hundred tables takes longer than running it."""
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute("SELECT FROM pg_prepared_statements WHERE name = 'traces'")
        if not cursor.rowcount:
            digest = "SELECT '{0}', md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {0} t WHERE {1} = $1"
            parts = [digest.format(table, "tenant_id") for table in tables()]
            parts.append(digest.format("tenants_tenant", "id"))
            cursor.execute(f"PREPARE traces (uuid) AS {' UNION ALL '.join(parts)}")
        cursor.execute("EXECUTE traces (%s)", [tenant_id])
        return dict(cursor.fetchall())


def _documents(tenant_id: UUID) -> str:
    documents = outputs.collection().find({"tenant_id": str(tenant_id)}).sort("_id")
    return hashlib.sha256(repr(list(documents)).encode()).hexdigest()


def _keys(tenant_id: UUID) -> dict[bytes, str]:
    """Return digests of the keys with the tenant's id that do not expire."""
    redis = client()
    names = sorted(
        {key for form in (str(tenant_id), tenant_id.hex) for key in redis.scan_iter(f"*{form}*", 1000)}
    )
    dumps = {name: redis.dump(name) for name in names if redis.pttl(name) == NO_EXPIRY}
    return {name: hashlib.sha256(value).hexdigest() for name, value in dumps.items() if value is not None}
