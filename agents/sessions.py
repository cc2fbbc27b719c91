"""Sessions: an agent's conversation for (tenant, deliverable, role), which revisions and wakes continue.

At most one is live. It ends for a recorded reason: its agent's instructions have changed, the agent does not know it any more, or
has begun another one. All functions must run in a `tenant_scope`, are idempotent, and lock sessions after all other rows.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from django.db.models import QuerySet
from django.db.models.functions import Now

from agents.models import AgentSession, EndReason
from tenants.identifiers import uuid7
from tenants.sql import Statement

logger = logging.getLogger(__name__)

_BEGIN = Statement.load(Path(__file__).parent / "sql", "begin_session")


def briefing_of(*parts: object) -> str:
    """Return a digest of an agent's instructions and settings, independent of the deliverable. Another digest begins another session."""
    return hashlib.sha256(orjson.dumps(parts)).hexdigest()


def briefing_with(briefing: str, more: Iterable[str]) -> str:
    """Return the digest with additional parts, or the same digest if there are none."""
    added = tuple(more)
    return briefing_of(briefing, added) if added else briefing


def begin(tenant_id: UUID, deliverable_id: UUID, role: str, external_id: str, *, briefing: str = "") -> None:
    """Make this session the live one. A session that was live before ends as replaced."""
    facts = {
        "id": uuid7(), "tenant": tenant_id, "deliverable": deliverable_id, "role": role, "external_id": external_id,
        "briefing": briefing,
    }  # fmt: skip
    if _BEGIN.run(facts):
        return
    # The refused insert has locked the other session's row, so no third session can begin between these two statements.
    _end(_live(tenant_id, deliverable_id, role), EndReason.REPLACED)
    _BEGIN.run(facts)


def continue_session(
    tenant_id: UUID, deliverable_id: UUID, role: str, external_id: str, *, briefing: str = ""
) -> None:
    """Record that a run has continued this session. A session that has ended meanwhile stays ended."""
    continued = _live(tenant_id, deliverable_id, role).filter(external_session_id=external_id)
    changes = {"briefing": briefing} if briefing else {}
    continued.update(updated_at=Now(), **changes)


def end(tenant_id: UUID, deliverable_id: UUID, role: str, external_id: str, reason: EndReason) -> bool:
    """End this session. Return False if it has ended before."""
    ended = _end(_live(tenant_id, deliverable_id, role).filter(external_session_id=external_id), reason)
    if ended:
        facts = {"action": "session_ended", "tenant": str(tenant_id), "role": role, "reason": reason.value}
        logger.info("Session ended", extra=facts)
    return ended


def _live(tenant_id: UUID, deliverable_id: UUID, role: str) -> QuerySet[Any]:
    return AgentSession.objects.for_tenant(tenant_id).filter(
        deliverable_id=deliverable_id, agent_id=role, ended_at=None
    )


def _end(rows: QuerySet[Any], reason: EndReason) -> bool:
    return bool(rows.update(ended_at=Now(), updated_at=Now(), end_reason=reason))
