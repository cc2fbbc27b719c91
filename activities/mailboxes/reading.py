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
    Value,
    When,
)

from activities.models import Mailbox, MailboxItem, Wake
from activities.models.mailbox import ItemState
from activities.states import WakeState

EMPTY = {"pending": 0, "claimed": 0, "failed": 0, "oldest_pending_at": None}


def items_of(tenant_id: UUID, mailbox: Mailbox) -> QuerySet[Any]:
    """With `stands`, how each stands, and `run_id`, the run that hears or has heard of it, for an agent's."""
    return _standing(tenant_id).filter(mailbox_id=mailbox.pk)


def item(tenant_id: UUID, item_id: UUID) -> Any:
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


def waited(since: datetime | None, now: datetime) -> float | None:
    """Seconds since then."""
    return None if since is None else round(max(0.0, (now - since).total_seconds()), 3)


def _standing(tenant_id: UUID) -> QuerySet[Any]:
    wakes = Wake.objects.for_tenant(tenant_id).filter(pk=OuterRef("pk"))
    rows: QuerySet[Any] = MailboxItem.objects.for_tenant(tenant_id)
    return rows.annotate(
        run_id=Subquery(wakes.values("run_id")[:1]),
        stands=Case(
            When(~Q(state=ItemState.PENDING) | Q(agent_role=None), then=F("state")),
            When(Exists(wakes.filter(state=WakeState.TAKEN)), then=Value(ItemState.CLAIMED.value)),
            When(Exists(wakes.filter(state=WakeState.CONSUMED)), then=Value(ItemState.DONE.value)),
            default=F("state"),
            output_field=CharField(),
        ),
    )
