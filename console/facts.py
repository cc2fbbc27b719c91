"""What is known of an item beside its texts: who asks, and facts by their names."""

from __future__ import annotations

from typing import Any

from activities.models import ActivityEvent, DeadLetter
from activities.states import LinkKind
from console.wording import dollars

OPEN = ("created", "in_progress")


def asking_actor(row: Any, approval: Any | None) -> str | None:
    if approval is not None:
        return str(approval.requested_by)
    events = ActivityEvent.objects.for_tenant(row.tenant_id).filter(activity_id=row.pk, seq=1)
    actor: str | None = events.values_list("actor", flat=True).first()
    return actor


def letter_of(row: Any) -> Any | None:
    if row.link_kind != LinkKind.ESCALATION or row.parent_id is None:
        return None
    letters = DeadLetter.objects.for_tenant(row.tenant_id).filter(
        activity_id=row.parent_id, escalation_id=row.pk
    )
    return letters.order_by("-pk").first()


def facts_of(row: Any, approval: Any | None, letter: Any | None) -> list[tuple[str, str]]:
    """What is known beside the texts, by its name."""
    metadata = row.metadata or {}
    facts = {
        "Type": approval.type if approval else metadata.get("blocker_type"),
        "Handed over because": metadata.get("reassign_reason"),
        "Error": letter.error.get("code") if letter else None,
        "Workers lost": letter.stalls if letter and letter.stalls else None,
        "Cost until then": dollars(letter.cost_usd) if letter and letter.cost_usd else None,
        "Sent back with": row.reviewer_notes if row.status in OPEN else None,
    }
    return [(name, str(value)) for name, value in facts.items() if value not in (None, "")]
