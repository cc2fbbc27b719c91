"""The retention of ended sessions, and of transcripts, which are files on each machine."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from uuid import UUID

from django.conf import settings

from agents.command_line import transcripts
from tenants.retention import Kind, Rows, list_departed_tenants, overrides, register

KIND = "transcripts"
DAY = 86_400.0
MOST = 10_000  # files of a tenant in one turn

_SESSIONS = Rows("agents_agentsession", Path(__file__).parent / "sql", "retention_of_sessions")


def connect() -> None:
    register(
        Kind.of("agent_sessions", "Sessions with agents that have ended", _SESSIONS),
        Kind(KIND, "What command-line agents printed", _delete_transcripts, _count_transcripts),
    )


def delete_old_transcripts(*, now: float | None = None) -> int:
    """Delete the expired transcripts of each tenant, and all of departed tenants, on this machine. Return how many files."""
    own, departed, deleted = overrides(KIND), list_departed_tenants(), 0
    for tenant_id in transcripts.list_tenants():
        if tenant_id in departed:
            deleted += transcripts.delete_all(tenant_id)
            continue
        days = own.get(tenant_id, settings.ORCHESTRATOR_RETENTION_DAYS[KIND])
        if days is not None:
            before = (time.time() if now is None else now) - days * DAY
            deleted += transcripts.delete_before(tenant_id, before, most=MOST)
    return deleted


def _delete_transcripts(tenant_id: UUID, before: datetime, most: int) -> int:
    """Delete expired transcripts on this machine. Other machines have their own workers."""
    return transcripts.delete_before(tenant_id, before.timestamp(), most=most)


def _count_transcripts(tenant_id: UUID, before: datetime) -> int:
    return len(transcripts.list_before(tenant_id, before.timestamp()))
