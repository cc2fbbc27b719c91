"""Batches for consumers outside: items are taken together, under a lease that another taker respects until it runs out.

The row of the mailbox is locked, so of two takers at once the later one finds what the earlier has left. The first item that is due
decides: one that comes alone is taken alone, one that may be told with others is taken with all of these that are due.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from activities import dead_letter_records
from activities.exceptions import LeaseLost, NotFound, OtherConsumer
from activities.models import LeaderLease, Mailbox, MailboxBatch, MailboxItem
from activities.models.dead_letter import BurialReason
from activities.models.mailbox import BatchState, ItemState
from activities.retry_delays import RetryPolicy
from tenants import clock
from tenants.context import SYSTEM, system_scope, tenant_scope
from tenants.identifiers import uuid7

logger = logging.getLogger(__name__)

WAITING_ROOM = 1000  # of the items that are looked at for a batch, first to last


@dataclass(frozen=True, slots=True)
class TakenBatch:
    """A batch, its items in the order in which they came, and how many are due beside it."""

    batch: MailboxBatch
    items: Sequence[MailboxItem]
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a consumer asks for: its name, the time of its lease, the most items, and how long after the first item others may join."""

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
) -> TakenBatch | None:
    """Take a batch; None when nothing is due. Waits until the window of a young first item is over, before it locks anything.

    Raises `NotFound`, `OtherConsumer`.
    """
    with tenant_scope(tenant_id):
        first = _list_due(_for_takers(tenant_id, key), now()).first()
    if (
        first is not None
        and first.is_coalescable
        and (rest := (first.created_at + wish.window - now()).total_seconds()) > 0
    ):
        pause(min(rest, wish.window.total_seconds()))
    with tenant_scope(tenant_id):
        return _take_batch(_for_takers(tenant_id, key, locked=True), wish, now())


def _take_batch(mailbox: Mailbox, wish: Wish, now: datetime) -> TakenBatch | None:
    give_back_expired(mailbox, now)
    due = list(_list_due(mailbox, now)[:WAITING_ROOM])
    if not due:
        return None
    first = due[0]
    together = [item for item in due if item.is_coalescable and item.scope_key == first.scope_key]
    chosen = together[: wish.limit] if first.is_coalescable else [first]
    batch = _begin_batch(mailbox, wish, now, len(chosen))
    ids = [item.pk for item in chosen]
    items = MailboxItem.objects.for_tenant(mailbox.tenant_id).filter(pk__in=ids)
    items.update(state=ItemState.CLAIMED, batch_id=batch.pk, claimed_at=now, attempts=F("attempts") + 1)
    return TakenBatch(batch, list(items.order_by("pk")), _list_due(mailbox, now).count())


def _begin_batch(mailbox: Mailbox, wish: Wish, now: datetime, size: int) -> MailboxBatch:
    fence = mailbox.fence + 1
    Mailbox.objects.for_tenant(mailbox.tenant_id).filter(pk=mailbox.pk).update(fence=fence)
    batch: MailboxBatch = MailboxBatch.objects.create(
        id=uuid7(), tenant_id=mailbox.tenant_id, mailbox_id=mailbox.pk, consumer=wish.consumer, fence=fence,
        state=BatchState.OPEN, size=size, leased_until=now + wish.lease, created_at=now,
    )  # fmt: skip
    return batch


def _list_due(mailbox: Mailbox, now: datetime) -> QuerySet[Any]:
    """The most urgent first, then the oldest."""
    rows: QuerySet[Any] = MailboxItem.objects.for_tenant(mailbox.tenant_id).filter(
        mailbox_id=mailbox.pk, state=ItemState.PENDING
    )
    return rows.filter(Q(due_at=None) | Q(due_at__lte=now)).order_by("priority", "pk")


def _for_takers(tenant_id: UUID, key: str, *, locked: bool = False) -> Mailbox:
    rows = Mailbox.objects.for_tenant(tenant_id).filter(key=key)
    found: Mailbox | None = (rows.select_for_update() if locked else rows).first()
    if found is None:
        raise NotFound("mailbox", key)
    if found.agent_role:
        raise OtherConsumer(f"The mailbox {key} is consumed by the agent {found.agent_role}.")
    return found


# What becomes of a batch: completed, failed, or given back because its lease ran out. The first end counts, and may be repeated.
#
# A failed item is due again after a delay that grows with its attempts, with some jitter, until they are used up: then it is a dead
# letter.


LEASE_OVER = {"code": "lease_expired", "message": "The consumer did not come back before its lease ended."}


def complete_batch(tenant_id: UUID, key: str, batch_id: UUID, *, result: Any, now: datetime) -> MailboxBatch:
    """Its items are done. In the caller's `tenant_scope`. Raises `LeaseLost`, `NotFound`."""
    batch = _lock_batch(tenant_id, key, batch_id)
    if batch.state == BatchState.COMPLETED:
        return batch
    _require_open(batch)
    _items_of(batch).update(state=ItemState.DONE, done_at=now, error=None)
    return _end_batch(batch, BatchState.COMPLETED, now, result=result)


def fail_batch(
    tenant_id: UUID, key: str, batch_id: UUID, *, error: Mapping[str, Any], retryable: bool, now: datetime
) -> MailboxBatch:
    """Its items are tried again later, those with attempts left, if that may help. Raises `LeaseLost`, `NotFound`."""
    batch = _lock_batch(tenant_id, key, batch_id)
    if batch.state == BatchState.FAILED:
        return batch
    _require_open(batch)
    for item in _items_of(batch):
        _try_again_or_fail(item, key, dict(error), now, retryable=retryable)
    return _end_batch(batch, BatchState.FAILED, now, error=dict(error))


def extend_batch(
    tenant_id: UUID, key: str, batch_id: UUID, *, lease: timedelta, now: datetime
) -> MailboxBatch:
    """The consumer is still at it. Raises `LeaseLost`, `NotFound`."""
    batch = _lock_batch(tenant_id, key, batch_id)
    _require_open(batch)
    batch.leased_until = max(batch.leased_until, now + lease)
    batch.save(update_fields=["leased_until"])
    return batch


def give_back_expired(mailbox: Mailbox, now: datetime) -> int:
    """End the batches whose lease is over; how many. The mailbox is locked. What was tried too often has failed for good."""
    batches = MailboxBatch.objects.for_tenant(mailbox.tenant_id).filter(
        mailbox_id=mailbox.pk, state=BatchState.OPEN, leased_until__lte=now
    )
    expired = list(batches.order_by("pk").select_for_update())
    for batch in expired:
        if _is_ended_by_outage(batch):
            again = {"state": ItemState.PENDING, "due_at": now, "error": LEASE_OVER}
            _items_of(batch).update(**again, attempts=F("attempts") - 1)
        else:
            for item in _items_of(batch):
                _try_again_or_fail(item, mailbox.key, LEASE_OVER, now, delayed=False)
        _end_batch(batch, BatchState.EXPIRED, now, error=LEASE_OVER)
    return len(expired)


def _is_ended_by_outage(batch: MailboxBatch) -> bool:
    """Whether nobody has taken the lead again since the lease ended in an outage of PostgreSQL: who does would have made it longer.

    That says nothing about the consumer, and uses up no attempt. What was taken after the last leader was gone has seen no outage.
    """
    lead = timedelta(seconds=settings.ORCHESTRATOR_LEADER_LEASE_SECONDS)
    away = Q(
        expires_at__lt=Now(), expires_at__gte=batch.created_at, expires_at__lte=batch.leased_until + lead
    )
    return LeaderLease.objects.using(SYSTEM).filter(away).exists()


def list_expired() -> QuerySet[MailboxBatch]:
    """Batches whose lease is over, of all tenants."""
    rows: QuerySet[MailboxBatch] = MailboxBatch.objects.filter(state=BatchState.OPEN, leased_until__lte=Now())
    return rows


def give_back_all(most: int = 500) -> int:
    """Give back the items of dead consumers, even if nobody takes from the mailbox; returns how many batches."""
    with system_scope():
        found = list(list_expired().order_by("leased_until").values_list("tenant_id", "mailbox_id")[:most])
    count = 0
    for tenant_id, mailbox_id in dict.fromkeys(found):
        with tenant_scope(tenant_id):
            mailbox = Mailbox.objects.for_tenant(tenant_id).filter(pk=mailbox_id).select_for_update().first()
            if mailbox is not None:
                count += give_back_expired(mailbox, clock.now())
    return count


def policy_of(item: MailboxItem) -> RetryPolicy:
    """The first retry waits about a second, each further one twice as long, up to five minutes, unless the item says otherwise."""
    defaults = {"base_seconds": settings.ORCHESTRATOR_MAILBOX_RETRY_SECONDS}
    return RetryPolicy.of(defaults, item.backoff, {"max_attempts": item.max_attempts})


def _try_again_or_fail(
    item: MailboxItem,
    key: str,
    error: Mapping[str, Any],
    now: datetime,
    *,
    retryable: bool = True,
    delayed: bool = True,
) -> None:
    rows = MailboxItem.objects.for_tenant(item.tenant_id).filter(pk=item.pk)
    if retryable and item.attempts < item.max_attempts:
        due_at = now + policy_of(item).delay(item.attempts) if delayed else now
        rows.update(state=ItemState.PENDING, due_at=due_at, error=error)
        return
    rows.update(state=ItemState.FAILED, done_at=now, error=error)
    last = BurialReason.EXHAUSTED if delayed else BurialReason.STALLED
    dead_letter_records.record_dead_item(
        item, key, reason=last if retryable else BurialReason.PERMANENT, error=error
    )
    facts = {"action": "mailbox_item_failed", "item": str(item.pk), "attempts": item.attempts}
    logger.warning("An item of a mailbox has failed for good", extra=facts)


def _lock_batch(tenant_id: UUID, key: str, batch_id: UUID) -> MailboxBatch:
    """The batch, behind the lock of its mailbox, which everybody takes first."""
    mailbox = Mailbox.objects.for_tenant(tenant_id).filter(key=key).select_for_update().first()
    batches = MailboxBatch.objects.for_tenant(tenant_id).filter(pk=batch_id)
    found: MailboxBatch | None = batches.filter(mailbox_id=mailbox.pk).first() if mailbox else None
    if found is None:
        raise NotFound(f"batch of the mailbox {key}", batch_id)
    return found


def _require_open(batch: MailboxBatch) -> None:
    if batch.state != BatchState.OPEN:
        raise LeaseLost(f"The batch {batch.pk} is {batch.state}; what is said about it now no longer counts.")


def _items_of(batch: MailboxBatch) -> Any:
    rows = MailboxItem.objects.for_tenant(batch.tenant_id)
    return rows.filter(batch_id=batch.pk, state=ItemState.CLAIMED).order_by("pk")


def _end_batch(batch: MailboxBatch, state: BatchState, now: datetime, **changes: Any) -> MailboxBatch:
    batch.state, batch.ended_at = state, now
    for name, value in changes.items():
        setattr(batch, name, value)
    batch.save(update_fields=["state", "ended_at", *changes])
    return batch
