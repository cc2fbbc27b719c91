"""Dismissing: nobody wants this work any more. Its activities are cancelled, with everything that still hangs on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Now

from activities import cancellation, families, transitions
from activities.deadletters import choosing
from activities.models import Activity, ApprovalLink, DeadLetter, MailboxItem
from activities.models.dead_letter import DeadLetterState
from activities.models.decision import LinkState
from activities.models.mailbox import ItemState
from activities.states import LinkKind


@dataclass(frozen=True, slots=True)
class Dismissed:
    """What a dismissal has done, or would do."""

    count: int
    skipped: int  # chosen, but dealt with before


def dismiss(
    tenant_id: UUID, chosen: QuerySet[DeadLetter], *, actor: str, reason: str, dry_run: bool = False
) -> Dismissed:
    """Cancel the activities and items of open dead letters. In the caller's `tenant_scope`."""
    total = chosen.count()
    ids = choosing.activities_of(tenant_id, chosen, lock=not dry_run)
    items = choosing.items_of(tenant_id, chosen, lock=not dry_run)
    if dry_run:
        return Dismissed(len(ids) + len(items), total - len(ids) - len(items))
    count = len(items)
    _cancel_items(tenant_id, items, actor)
    for portion in choosing.portions(ids):
        moved = transitions.apply_many(
            portion, "cancel", actor=actor, detail={"reason": reason, "dismissed": True}, cancel_reason=reason or None
        )  # fmt: skip
        _let_go(tenant_id, [activity.id for activity in moved], actor)
        count += len(moved)
    return Dismissed(count, total - count)


def cancel_item(tenant_id: UUID, item_id: UUID, *, actor: str) -> bool:
    """Nobody shall take this item of a mailbox; whether it waited or had failed. In the caller's `tenant_scope`."""
    idle = MailboxItem.objects.for_tenant(tenant_id).filter(
        pk=item_id, state__in=(ItemState.PENDING, ItemState.FAILED), agent_role=None
    )
    found = list(idle.select_for_update().values_list("pk", flat=True))
    _cancel_items(tenant_id, found, actor)
    return bool(found)


def _cancel_items(tenant_id: UUID, ids: Sequence[UUID], actor: str) -> None:
    rows = MailboxItem.objects.for_tenant(tenant_id).filter(pk__in=ids)
    rows.update(state=ItemState.CANCELLED, done_at=Now())
    letters = DeadLetter.objects.for_tenant(tenant_id).filter(
        mailbox_item_id__in=ids, state=DeadLetterState.OPEN
    )
    letters.update(state=DeadLetterState.CLOSED, closed_at=Now(), closed_by=actor)


def _let_go(tenant_id: UUID, cancelled: Sequence[UUID], actor: str) -> None:
    """What has failed runs no more and holds no slot. Most have nothing left but the question to a person, which all share a statement."""
    letters = DeadLetter.objects.for_tenant(tenant_id).filter(
        activity_id__in=cancelled, state=DeadLetterState.OPEN
    )
    escalations = choosing.escalations_of(letters)
    letters.update(state=DeadLetterState.CLOSED, closed_at=Now(), closed_by=actor)
    transitions.apply_many(
        escalations,
        "cancel",
        actor=actor,
        detail={"reason": cancellation.OBSOLETE},
        cancel_reason=cancellation.OBSOLETE,
    )
    for activity_id in sorted(_with_more(tenant_id, cancelled)):
        cancellation.let_go(tenant_id, activity_id, actor=actor)


def _with_more(tenant_id: UUID, cancelled: Sequence[UUID]) -> set[UUID]:
    children = (
        Activity.objects.for_tenant(tenant_id)
        .filter(
            parent_id__in=cancelled, link_kind__in=[LinkKind.SUBTASK, LinkKind.REVIEW, LinkKind.RESOLUTION]
        )
        .exclude(status__in=families.ENDED)
    )
    links = ApprovalLink.objects.for_tenant(tenant_id).filter(
        activity_id__in=cancelled, state=LinkState.WAITING
    )
    return set(children.values_list("parent_id", flat=True)) | set(
        links.values_list("activity_id", flat=True)
    )
