"""How long what is about agents is kept: sessions that have ended, and transcripts, which are files of each machine."""

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
        Kind("agent_sessions", "Sessions with agents that have ended", _SESSIONS.portion, _SESSIONS.count),
        Kind(KIND, "What command-line agents printed", _forget_transcripts, _count_transcripts),
    )


def forget_old_transcripts(*, now: float | None = None) -> int:
    """Delete what each tenant does not want kept any longer, and all of tenants that are gone; returns how many files."""
    own, gone, deleted = overrides(KIND), list_departed_tenants(), 0
    for tenant_id in transcripts.owners():
        if tenant_id in gone:
            deleted += transcripts.forget_all_of(tenant_id)
            continue
        days = own.get(tenant_id, settings.ORCHESTRATOR_RETENTION_DAYS[KIND])
        if days is not None:
            before = (time.time() if now is None else now) - days * DAY
            deleted += transcripts.forget_of(tenant_id, before, most=MOST)
    return deleted


def _forget_transcripts(tenant_id: UUID, before: datetime, most: int) -> int:
    """Of this machine; the workers of the others do the same there."""
    return transcripts.forget_of(tenant_id, before.timestamp(), most=most)


def _count_transcripts(tenant_id: UUID, before: datetime) -> int:
    return len(transcripts.older(tenant_id, before.timestamp()))
