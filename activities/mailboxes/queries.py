"""How mailboxes and their items stand. An agent's item stands as its wake does until its activity has ended."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import (
    Case,
    CharField,
    Count,
    Exists,
    F,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Coalesce

from activities.mailboxes.producer import NewItem, post
from activities.models import Activity, ApprovalLink, Mailbox, MailboxBatch, MailboxItem, Wake
from activities.models.mailbox import BatchState, ItemKind, ItemSource, ItemState
from activities.models.run import is_carried
from activities.states import LinkKind, Status, WakeState

EMPTY = {"pending": 0, "claimed": 0, "failed": 0, "oldest_pending_at": None}


def items_of(tenant_id: UUID, mailbox: Mailbox) -> QuerySet[Any]:
    """With `stands`, how each stands, and `run_id`, the run that hears or has heard of it, for an agent's."""
    return _standing(tenant_id).filter(mailbox_id=mailbox.pk)


def item_with_id(tenant_id: UUID, item_id: UUID) -> Any:
    return _standing(tenant_id).get(pk=item_id)


def figures(tenant_id: UUID, mailboxes: Iterable[Mailbox]) -> dict[UUID, dict[str, Any]]:
    """Of each mailbox: how many items are pending, claimed and failed, and since when the oldest pending one waits."""
    ids = [mailbox.pk for mailbox in mailboxes]
    counted = (
        _standing(tenant_id)
        .filter(mailbox_id__in=ids, state__in=(ItemState.PENDING, ItemState.CLAIMED, ItemState.FAILED))
        .order_by()
        .values("mailbox_id")
        .annotate(
            pending=Count("pk", filter=Q(stands=ItemState.PENDING)),
            claimed=Count("pk", filter=Q(stands=ItemState.CLAIMED)),
            failed=Count("pk", filter=Q(stands=ItemState.FAILED)),
            oldest_pending_at=Min("created_at", filter=Q(stands=ItemState.PENDING)),
        )
    )
    found = {row.pop("mailbox_id"): row for row in counted}
    return {mailbox_id: found.get(mailbox_id, EMPTY) for mailbox_id in ids}


def consumers_of(tenant_id: UUID, mailbox: Mailbox) -> list[dict[str, Any]]:
    """Who has items of it at this moment: how many, since when, and until when at least. First who has them longest."""
    held = MailboxBatch.objects.for_tenant(tenant_id).filter(mailbox_id=mailbox.pk, state=BatchState.OPEN)
    found: Iterable[Any] = (
        held.order_by()
        .values("consumer")
        .annotate(claimed=Sum("size"), since=Min("created_at"), until=Min("leased_until"))
    )
    return sorted(found, key=lambda row: (row["since"], row["consumer"]))


def waited(since: datetime | None, now: datetime) -> float | None:
    """Seconds since then."""
    return None if since is None else round(max(0.0, (now - since).total_seconds()), 3)


def _standing(tenant_id: UUID) -> QuerySet[Any]:
    wakes = Wake.objects.for_tenant(tenant_id).filter(pk=OuterRef("pk"))
    rows: QuerySet[Any] = MailboxItem.objects.for_tenant(tenant_id)
    told = Activity.objects.for_tenant(tenant_id).filter(pk=OuterRef("activity_id"))
    return rows.annotate(
        tries=Coalesce(Subquery(told.values("attempts")[:1]), F("attempts")),
        run_id=Subquery(wakes.values("run_id")[:1]),
        stands=Case(
            When(~Q(state=ItemState.PENDING) | Q(agent_role=None), then=F("state")),
            When(Exists(wakes.filter(is_carried(tenant_id))), then=Value(ItemState.CLAIMED.value)),
            When(Exists(wakes.exclude(state=WakeState.PENDING)), then=Value(ItemState.DONE.value)),
            default=F("state"),
            output_field=CharField(),
        ),
    )


# People have decided something about work of a session: the session's mailbox is told, in the transaction of the decision.
#
# A mailbox that is consumed outside hears of every decision. An agent that waits for an answer, or whose result is sent back, is started
# again with it anyway; in its mailbox it only finds that its result was approved.


_QUESTIONS = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.APPROVAL)
_ANSWERS = (Status.APPROVED, Status.REJECTED, Status.DONE)


def tell_decision(ended: Any) -> None:
    """`ended` is a `transitions.Moved`; only what people were asked is news."""
    if ended.link_kind not in _QUESTIONS or ended.status not in _ANSWERS:
        return
    concerned = _concerned(ended)
    found = Mailbox.objects.for_tenant(ended.tenant_id).filter(pk__in={box for _, box in concerned})
    for mailbox in found.order_by("pk"):
        if mailbox.agent_role and (ended.link_kind != LinkKind.GATE or ended.status != Status.APPROVED):
            continue
        about = [activity for activity, box in concerned if box == mailbox.pk and activity is not None]
        post(ended.tenant_id, mailbox.key, _result(ended, about), actor="engine", bounded=False)


def _concerned(ended: Any) -> list[tuple[UUID | None, UUID]]:
    """The activities that the decision is about, each with its mailbox."""
    own = [(ended.parent_id, ended.mailbox_id)] if ended.mailbox_id else []
    if ended.link_kind != LinkKind.APPROVAL:
        return own
    linked = ApprovalLink.objects.for_tenant(ended.tenant_id).filter(approval_id=ended.id)
    rows = Activity.objects.for_tenant(ended.tenant_id).filter(
        pk__in=linked.values("activity_id"), mailbox_id__isnull=False
    )
    pairs = [*own, *rows.order_by("pk").values_list("pk", "mailbox_id")]
    return list(dict.fromkeys(pairs))


def _result(ended: Any, about: Iterable[UUID]) -> NewItem:
    told = {
        "decision": ended.status, "question": ended.name, "kind": ended.link_kind, "id": str(ended.id),
        "activities": sorted({str(activity) for activity in about}), "notes": ended.reviewer_notes,
        "chosen_option": ended.chosen_option, "decided_by": ended.decided_by,
    }  # fmt: skip
    notes = f" {ended.reviewer_notes}" if ended.reviewer_notes else ""
    return NewItem(
        kind=ItemKind.APPROVAL_RESULT,
        source=ItemSource.ENGINE,
        content=told,
        text=f"{ended.name}: {ended.status}.{notes}",
        client_message_id=f"decision:{ended.id}",
    )
