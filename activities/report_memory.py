"""What signed reports have come, so that one that comes again is known. In Redis, for a while, and never the truth."""

from __future__ import annotations

import hashlib
from uuid import UUID

from activities import keys
from agents.webhook_signing import TOLERANCE_SECONDS
from tenants.redis import client

#: A message counts from five minutes before its time to five minutes after it.
REMEMBERED_SECONDS = 2 * TOLERANCE_SECONDS + 60


def first_of(tenant_id: UUID, role: str, message_id: str, digest: str) -> str | None:
    """The digest of the report that came first under this id; None when this is the first, which is remembered. Raises `RedisError`."""
    key = _key(tenant_id, role, message_id)
    connection = client()
    if connection.set(key, digest, nx=True, ex=REMEMBERED_SECONDS):
        return None
    kept = connection.get(key)
    # It may have been forgotten between the two questions; then it is too old to count again anyway.
    return kept.decode() if isinstance(kept, bytes) else digest


def _key(tenant_id: UUID, role: str, message_id: str) -> str:
    # The id is the sender's choice; hashed, it is of one length and says nothing else to Redis.
    hashed = hashlib.sha256(message_id.encode()).hexdigest()
    return keys.report(tenant_id, role, hashed)
