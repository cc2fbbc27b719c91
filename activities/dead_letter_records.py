"""Creates dead letters in the transaction of the failure, and closes them when people have resolved the failure.

The consequences of a dead letter (an escalation, an alert) follow later in `dead_letters`, so they cannot make this transaction fail.
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
from activities.signals import activity_dead_lettered
from tenants.context import APP
from tenants.identifiers import uuid7
from tenants.sql import Statement

_RECORD = Statement.load(Path(__file__).parent / "sql", "record_dead_letter")

# The variable parts of similar failures: ids, numbers, addresses. Quoted text stays, because it is what an agent or a server reported.
_VARIABLE = re.compile(
    r"https?://[^\s\"']+|\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b|\d+(?:[.,]\d+)*",
    re.IGNORECASE,
)
# Characters of a message before and after its variable parts are removed. The second is cut later, so their length does not matter.
MOST_READ = 4_000
MOST_FINGERPRINTED = 500


def record_dead_letter(
    activity: Any, *, reason: str, run_id: UUID | None, error: Mapping[str, Any]
) -> UUID | None:
    """Create the dead letter of an activity that has just failed permanently. Returns its id, or None if it has an open one already.

    `activity` is its row after the move. Must run inside `tenant_scope`, in the transaction of that move.
    """
    rows = _RECORD.run(
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
    activity_dead_lettered.send(sender=Activity, activity=activity, dead_letter_id=dead_letter_id)
    return dead_letter_id


def record_dead_item(item: MailboxItem, mailbox_key: str, *, reason: str, error: Mapping[str, Any]) -> None:
    """Create the dead letter of a mailbox item that has just failed permanently. In the transaction of the failure."""
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
    """Return a digest that is equal for errors of one role that differ only in numbers, ids and addresses."""
    message = _VARIABLE.sub("_", str(error.get("message", ""))[:MOST_READ]).casefold()
    text = "\x00".join((role, str(error.get("code", "")), " ".join(message.split())[:MOST_FINGERPRINTED]))
    return hashlib.sha256(text.encode()).hexdigest()


def close(tenant_id: UUID, state: str, *, actor: str, **conditions: Any) -> list[UUID]:
    """Close the open dead letters that meet these conditions. Returns the activities that ask people about them. Idempotent."""
    letters = DeadLetter.objects.for_tenant(tenant_id).filter(**conditions, state=DeadLetterState.OPEN)
    found = list(letters.order_by("pk").select_for_update().values_list("pk", "escalation_id"))
    if found:
        closed = DeadLetter.objects.filter(pk__in=[pk for pk, _ in found])
        closed.update(state=state, closed_at=Now(), closed_by=actor)
    return [escalation_id for _, escalation_id in found if escalation_id is not None]
