"""Dead letters come into being here, in the transaction of the failure, and end here when people have dealt with it.

What a dead letter sets going (an escalation, an alert) is done afterwards by `deadletters`, so that a failure never fails for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db.models.functions import Now
from psycopg.types.json import Jsonb

from activities.models import Activity, DeadLetter, MailboxItem
from activities.models.dead_letter import DeadLetterState
from activities.signals import activity_buried
from tenants.context import APP
from tenants.identifiers import uuid7
from tenants.sql import Statement

_BURY = Statement.load(Path(__file__).parent / "sql", "bury")

# What differs between failures that look alike: ids, numbers, addresses. Quoted texts stay: they tell what an agent or a server has said.
_VARIABLE = re.compile(
    r"https?://[^\s\"']+|\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b|\d+(?:[.,]\d+)*",
    re.IGNORECASE,
)
LOOKED_AT = 4_000  # characters of the message; what varies is taken out before it is cut, so that its length does not matter
FINGERPRINTED = 500


def record_dead_letter(
    activity: Any, *, reason: str, run_id: UUID | None, error: Mapping[str, Any]
) -> UUID | None:
    """Put an activity that has just failed for good among the dead letters; None when it lies there already.

    `activity` is its row after the move. Must run inside `tenant_scope`, in the transaction of that move.
    """
    rows = _BURY.run(
        {
            "id": uuid7(),
            "tenant": activity.tenant_id,
            "activity": activity.id,
            "run": run_id,
            "role": activity.agent_role,
            "reason": reason,
            "fingerprint": fingerprint_of(activity.agent_role, error),
            "error": Jsonb(dict(error)),
            "attempts": activity.attempts,
            "stalls": activity.stalls,
            "pipeline_run": activity.pipeline_run_id,
        },
        using=APP,
    )
    if not rows:
        return None
    dead_letter_id: UUID = rows[0].id
    activity_buried.send(sender=Activity, activity=activity, dead_letter_id=dead_letter_id)
    return dead_letter_id


def record_dead_item(item: MailboxItem, mailbox_key: str, *, reason: str, error: Mapping[str, Any]) -> None:
    """Put an item of a mailbox among the dead letters, which has just failed for good. In the transaction of that."""
    DeadLetter.objects.bulk_create(
        [
            DeadLetter(
                tenant_id=item.tenant_id,
                mailbox_item_id=item.pk,
                mailbox_key=mailbox_key,
                agent_role="",
                reason=reason,
                fingerprint=fingerprint_of("", error),
                error=dict(error),
                attempts=item.attempts,
            )
        ],
        ignore_conflicts=True,
    )


def fingerprint_of(role: str, error: Mapping[str, Any]) -> str:
    """Equal for errors of one role that differ in nothing but numbers, ids and addresses."""
    message = _VARIABLE.sub("_", str(error.get("message", ""))[:LOOKED_AT]).casefold()
    text = "\x00".join((role, str(error.get("code", "")), " ".join(message.split())[:FINGERPRINTED]))
    return hashlib.sha256(text.encode()).hexdigest()


def close(tenant_id: UUID, activity_id: UUID, state: str, *, actor: str) -> UUID | None:
    """Close the dead letter, since people have dealt with the failure. Returns the escalation that asked them, if one did. Idempotent."""
    letter = (
        DeadLetter.objects.for_tenant(tenant_id)
        .filter(activity_id=activity_id, state=DeadLetterState.OPEN)
        .select_for_update()
        .first()
    )
    if letter is None:
        return None
    DeadLetter.objects.filter(pk=letter.pk).update(state=state, closed_at=Now(), closed_by=actor)
    escalation: UUID | None = letter.escalation_id
    return escalation
