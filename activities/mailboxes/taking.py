"""Batches for consumers outside: items are taken together, under a lease that another taker respects until it runs out.

The row of the mailbox is locked, so of two takers at once the later one finds what the earlier has left. The first item that is due
decides: one that comes alone is taken alone, one that may be told with others is taken with all of these that are due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import F, Q, QuerySet

from activities.exceptions import MailboxNotFound, OtherConsumer
from activities.mailboxes import ending
from activities.models import Mailbox, MailboxBatch, MailboxItem
from activities.models.mailbox import BatchState, ItemState
from tenants import clock
from tenants.context import tenant_scope
from tenants.identifiers import uuid7

WAITING_ROOM = 1000  # of the items that are looked at for a batch, first to last


@dataclass(frozen=True, slots=True)
class Taken:
    """A batch, its items in the order in which they came, and how many are due beside it."""

    batch: MailboxBatch
    items: Sequence[MailboxItem]
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Who takes, for how long, how many at most, and how long after the first of them others may still join."""

    consumer: str
    lease: timedelta
    window: timedelta
    limit: int


def take(
    tenant_id: UUID,
    key: str,
    wish: Wish,
    *,
    now: Callable[[], datetime] = clock.now,
    pause: Callable[[float], None] = time.sleep,
) -> Taken | None:
    """Take a batch; None when nothing is due. Waits until the window of a young first item is over, before it locks anything.

    Raises `MailboxNotFound`, `OtherConsumer`.
    """
    with tenant_scope(tenant_id):
        first = _first_due(_mailbox(tenant_id, key), now())
    if (
        first is not None
        and first.is_coalescable
        and (rest := (first.created_at + wish.window - now()).total_seconds()) > 0
    ):
        pause(min(rest, wish.window.total_seconds()))
    with tenant_scope(tenant_id):
        return _taken(_locked(tenant_id, key), wish, now())


def _taken(mailbox: Mailbox, wish: Wish, now: datetime) -> Taken | None:
    ending.give_back_expired(mailbox, now)
    due = list(_due(mailbox, now)[:WAITING_ROOM])
    if not due:
        return None
    chosen = [item for item in due if item.is_coalescable][: wish.limit] if due[0].is_coalescable else due[:1]
    batch = _begun(mailbox, wish, now, len(chosen))
    ids = [item.pk for item in chosen]
    items = MailboxItem.objects.for_tenant(mailbox.tenant_id).filter(pk__in=ids)
    items.update(state=ItemState.CLAIMED, batch_id=batch.pk, claimed_at=now, attempts=F("attempts") + 1)
    return Taken(batch, list(items.order_by("pk")), _due(mailbox, now).count())


def _begun(mailbox: Mailbox, wish: Wish, now: datetime, size: int) -> MailboxBatch:
    fence = mailbox.fence + 1
    Mailbox.objects.for_tenant(mailbox.tenant_id).filter(pk=mailbox.pk).update(fence=fence)
    batch: MailboxBatch = MailboxBatch.objects.create(
        id=uuid7(), tenant_id=mailbox.tenant_id, mailbox_id=mailbox.pk, consumer=wish.consumer, fence=fence,
        state=BatchState.OPEN, size=size, leased_until=now + wish.lease, created_at=now,
    )  # fmt: skip
    return batch


def _first_due(mailbox: Mailbox, now: datetime) -> MailboxItem | None:
    return _due(mailbox, now).first()


def _due(mailbox: Mailbox, now: datetime) -> QuerySet[Any]:
    """The most urgent first, then the oldest."""
    rows: QuerySet[Any] = MailboxItem.objects.for_tenant(mailbox.tenant_id).filter(
        mailbox_id=mailbox.pk, state=ItemState.PENDING
    )
    return rows.filter(Q(due_at=None) | Q(due_at__lte=now)).order_by("priority", "pk")


def _mailbox(tenant_id: UUID, key: str) -> Mailbox:
    return _for_takers(Mailbox.objects.for_tenant(tenant_id).filter(key=key), key)


def _locked(tenant_id: UUID, key: str) -> Mailbox:
    return _for_takers(Mailbox.objects.for_tenant(tenant_id).filter(key=key).select_for_update(), key)


def _for_takers(rows: QuerySet[Any], key: str) -> Mailbox:
    found: Mailbox | None = rows.first()
    if found is None:
        raise MailboxNotFound(f"There is no mailbox {key}.")
    if found.agent_role:
        raise OtherConsumer(f"The mailbox {key} is consumed by the agent {found.agent_role}.")
    return found
