"""How long what is about agents is kept: sessions that have ended, and transcripts, which are files of each machine."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from uuid import UUID

from agents.command_line import transcripts
from tenants.retention.kinds import Kind, Rows, register

_SESSIONS = Rows("agents_agentsession", Path(__file__).parent / "sql", "retention_of_sessions")


def connect() -> None:
    register(
        Kind("agent_sessions", "Sessions with agents that have ended", _SESSIONS.portion, _SESSIONS.count),
        Kind("transcripts", "What command-line agents printed", _forget_transcripts, _count_transcripts),
    )


def _forget_transcripts(tenant_id: UUID, before: datetime, most: int) -> int:
    """Of this machine; the workers of the others do the same there."""
    return transcripts.forget_of(tenant_id, before.timestamp(), most=most)


def _count_transcripts(tenant_id: UUID, before: datetime) -> int:
    return len(transcripts.older(tenant_id, before.timestamp()))
