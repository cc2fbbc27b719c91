"""Retention: the beginning of a chain may go when its time is over, and a whole chain with its tenant. What goes is named in the chain that
goes on: its own from there, or the platform's.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from uuid import UUID

from django.db import connections, transaction

from tenants.audit.recording import record
from tenants.context import SYSTEM, system_scope
from tenants.sql import Statement

from .recording import Actor

_CHAINS = Statement.load(Path(__file__).resolve().parent.parent / "sql" / "audit", "chains")

PURGED, FORGOTTEN = "audit.purged", "audit.forgotten"


def purge(chain: UUID, before: datetime, *, actor: Actor) -> int:
    """Delete the entries of a chain from before a moment, but never its last one; how many. One transaction."""
    with system_scope(), transaction.atomic(using=SYSTEM):
        with connections[SYSTEM].cursor() as cursor:
            cursor.execute("SELECT deleted, up_to, last_hash FROM audit_purge(%s, %s)", [chain, before])
            deleted, up_to, last_hash = cursor.fetchone()
        if deleted:
            detail = {
                "up_to": up_to,
                "last_hash": last_hash,
                "entries": deleted,
                "before": before.isoformat(),
            }
            record(
                PURGED,
                actor=actor,
                tenant_id=chain if chain.int else None,
                about=("audit", chain),
                detail=detail,
            )
    return int(deleted or 0)


def forget(chain: UUID, slug: str, *, actor: Actor) -> int:
    """Delete the chain of a tenant that has left; how many entries it had. One transaction, and the platform's chain says how it ended."""
    with system_scope(), transaction.atomic(using=SYSTEM):
        with connections[SYSTEM].cursor() as cursor:
            cursor.execute("SELECT deleted, up_to, last_hash FROM audit_forget(%s)", [chain])
            deleted, up_to, last_hash = cursor.fetchone()
        if deleted:
            detail = {"slug": slug, "up_to": up_to, "last_hash": last_hash, "entries": deleted}
            record(FORGOTTEN, actor=actor, tenant_id=None, about=("audit", ""), detail=detail)
    return int(deleted or 0)


def chains() -> list[UUID]:
    """All chains that have entries. Costs what there are chains, not what they hold."""
    return [row.chain for row in _CHAINS.run({}, using=SYSTEM)]
