"""Batches for external consumers: a consumer takes several items together, under a lease.

Taking locks the row of the mailbox, so of two consumers at once the second gets the remaining items. The first due item decides: an item
that is not coalescable is taken alone, others are taken with all due items of their scope.
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
from activities.exceptions import LeaseLost, MailboxError, NotFound
from activities.models import LeaderLease, Mailbox, MailboxBatch, MailboxItem
from activities.models.dead_letter import DeadLetterReason
from activities.models.mailbox import BatchState, ItemState
from activities.retry_delays import RetryPolicy
from tenants import clock, outages, sweeps
from tenants.context import SYSTEM, tenant_scope
from tenants.identifiers import uuid7
from tenants.models import Tenant
from tenants.sweeps import Sweep

logger = logging.getLogger(__name__)

_EXPIRED = Sweep[Any]()

MOST_EXAMINED = 1000  # due items that are read to form a batch


@dataclass(frozen=True, slots=True)
class TakenBatch:
    """A batch, its items in the order in which they were posted, and the number of other due items."""

    batch: MailboxBatch
    items: Sequence[MailboxItem]
    remaining: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOptions:
    """Options of a consumer: its name, the time of its lease, the most items, and how long after the first item others may join."""

    consumer: str
    lease: timedelta
    window: timedelta
    limit: int


def take(
    tenant_id: UUID,
    key: str,
    options: TakeOptions,
    *,
    now: Callable[[], datetime] = clock.now,
    pause: Callable[[float], None] = time.sleep,
) -> TakenBatch | None:
    """Take a batch; returns None if nothing is due. Before it locks anything, it waits for the end of a new first item's window.

    Raises `NotFound`, and `MailboxError` if an agent consumes it.
    """
    with tenant_scope(tenant_id):
        first = _list_due(_external_mailbox(tenant_id, key), now()).first()
    if (
        first is not None
        and first.is_coalescable
        and (rest := (first.created_at + options.window - now()).total_seconds()) > 0
    ):
        pause(min(rest, options.window.total_seconds()))
    with tenant_scope(tenant_id):
        return _take_batch(_external_mailbox(tenant_id, key, locked=True), options, now())


def _take_batch(mailbox: Mailbox, options: TakeOptions, now: datetime) -> TakenBatch | None:
    release_expired(mailbox, now)
    due = list(_list_due(mailbox, now)[:MOST_EXAMINED])
    if not due:
        return None
    first = due[0]
    same_scope = [item for item in due if item.is_coalescable and item.scope_key == first.scope_key]
    chosen = same_scope[: options.limit] if first.is_coalescable else [first]
    batch = _begin_batch(mailbox, options, now, len(chosen))
    ids = [item.pk for item in chosen]
    items = MailboxItem.objects.for_tenant(mailbox.tenant_id).filter(pk__in=ids)
    items.update(state=ItemState.CLAIMED, batch_id=batch.pk, claimed_at=now, attempts=F("attempts") + 1)
    return TakenBatch(batch, list(items.order_by("pk")), _list_due(mailbox, now).count())


def _begin_batch(mailbox: Mailbox, options: TakeOptions, now: datetime, size: int) -> MailboxBatch:
    fence = mailbox.fence + 1
    Mailbox.objects.for_tenant(mailbox.tenant_id).filter(pk=mailbox.pk).update(fence=fence)
    batch: MailboxBatch = MailboxBatch.objects.create(
        id=uuid7(), tenant_id=mailbox.tenant_id, mailbox_id=mailbox.pk, consumer=options.consumer, fence=fence,
        state=BatchState.OPEN, size=size, leased_until=now + options.lease, created_at=now,
    )  # fmt: skip
    return batch


def _list_due(mailbox: Mailbox, now: datetime) -> QuerySet[Any]:
    """Return due items, most urgent first, then oldest."""
    rows: QuerySet[Any] = MailboxItem.objects.for_tenant(mailbox.tenant_id).filter(
        mailbox_id=mailbox.pk, state=ItemState.PENDING
    )
    return rows.filter(Q(due_at=None) | Q(due_at__lte=now)).order_by("priority", "pk")


def _external_mailbox(tenant_id: UUID, key: str, *, locked: bool = False) -> Mailbox:
    rows = Mailbox.objects.for_tenant(tenant_id).filter(key=key)
    mailbox: Mailbox = (rows.select_for_update() if locked else rows).first_or_raise(NotFound("mailbox", key))
    if mailbox.agent_role:
        raise MailboxError(
            f"The mailbox {key} is consumed by the agent {mailbox.agent_role}.", code="other_consumer"
        )
    return mailbox


# The end of a batch: completed, failed, or released because its lease expired. The first end counts; repeating it is harmless.
#
# A failed item is due again after a delay that grows with its attempts, with jitter. When the attempts are used up, it becomes a dead
# letter.

LEASE_EXPIRED = {"code": "lease_expired", "message": "The consumer did not report before its lease expired."}


def complete_batch(tenant_id: UUID, key: str, batch_id: UUID, *, result: Any, now: datetime) -> MailboxBatch:
    """Complete the batch and its items. Idempotent. In the caller's `tenant_scope`. Raises `LeaseLost`, `NotFound`."""
    batch = _lock_batch(tenant_id, key, batch_id)
    if batch.state == BatchState.COMPLETED:
        return batch
    _refuse_ended(batch)
    _items_of(batch).update(state=ItemState.DONE, done_at=now, error=None)
    return _end_batch(batch, BatchState.COMPLETED, now, result=result)


def fail_batch(
    tenant_id: UUID, key: str, batch_id: UUID, *, error: Mapping[str, Any], retryable: bool, now: datetime
) -> MailboxBatch:
    """Fail the batch. If `retryable`, its items are retried later while they have attempts left. Raises `LeaseLost`, `NotFound`."""
    batch = _lock_batch(tenant_id, key, batch_id)
    if batch.state == BatchState.FAILED:
        return batch
    _refuse_ended(batch)
    for item in _items_of(batch):
        _retry_or_fail(item, key, dict(error), now, retryable=retryable)
    return _end_batch(batch, BatchState.FAILED, now, error=dict(error))


def extend_batch(
    tenant_id: UUID, key: str, batch_id: UUID, *, lease: timedelta, now: datetime
) -> MailboxBatch:
    """Extend the lease of a batch. Raises `LeaseLost`, `NotFound`."""
    batch = _lock_batch(tenant_id, key, batch_id)
    _refuse_ended(batch)
    batch.leased_until = max(batch.leased_until, now + lease)
    batch.save(update_fields=["leased_until"])
    return batch


def release_expired(mailbox: Mailbox, now: datetime) -> int:
    """End the expired batches of a locked mailbox; returns how many. Items without attempts left fail permanently."""
    batches = MailboxBatch.objects.for_tenant(mailbox.tenant_id).filter(
        mailbox_id=mailbox.pk, state=BatchState.OPEN, leased_until__lte=now
    )
    expired = list(batches.order_by("pk").select_for_update())
    # While a tenant is suspended, its consumers can neither report nor extend their leases.
    is_suspended = bool(expired) and not Tenant.objects.filter(pk=mailbox.tenant_id, is_active=True).exists()
    for batch in expired:
        if is_suspended or _is_ended_by_outage(batch):
            reset = {"state": ItemState.PENDING, "due_at": now, "error": LEASE_EXPIRED}
            _items_of(batch).update(**reset, attempts=F("attempts") - 1)
        else:
            for item in _items_of(batch):
                _retry_or_fail(item, mailbox.key, LEASE_EXPIRED, now, delayed=False)
        _end_batch(batch, BatchState.EXPIRED, now, error=LEASE_EXPIRED)
    return len(expired)


def _is_ended_by_outage(batch: MailboxBatch) -> bool:
    """Whether the lease expired in an outage of PostgreSQL, after which no process has become the leader yet.

    The new leader would have extended the lease. An outage is not the consumer's fault, so it uses up no attempt. A batch that was taken
    after the last leader's lease had expired has seen no outage.
    """
    leader_lease = timedelta(seconds=settings.ORCHESTRATOR_LEADER_LEASE_SECONDS)
    expired_in_outage = Q(
        expires_at__lt=Now(),
        expires_at__gte=batch.created_at,
        expires_at__lte=batch.leased_until + leader_lease,
    )
    return LeaderLease.objects.using(SYSTEM).filter(expired_in_outage).exists()


def list_expired() -> QuerySet[MailboxBatch]:
    """Return the open batches of all tenants whose lease has expired."""
    return MailboxBatch.objects.filter(state=BatchState.OPEN, leased_until__lte=Now())


def release_all_expired() -> int:
    """Release the items of dead consumers, even if nobody takes from the mailbox; returns how many batches."""
    expired = sweeps.pages(list_expired(), "leased_until", "pk", "tenant_id", "mailbox_id")
    count, seen = 0, set[UUID]()
    for _, _, tenant_id, mailbox_id in _EXPIRED.turn(expired):
        if mailbox_id in seen:
            continue
        seen.add(mailbox_id)
        with (
            outages.one_of_many(logger, "Batches not released", action="batches_not_released", mailbox=str(mailbox_id)),
            tenant_scope(tenant_id),
        ):  # fmt: skip
            mailbox = Mailbox.objects.for_tenant(tenant_id).filter(pk=mailbox_id).select_for_update().first()
            if mailbox is not None:
                count += release_expired(mailbox, clock.now())
    return count


def _retry_or_fail(
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
        defaults = {"base_seconds": settings.ORCHESTRATOR_MAILBOX_RETRY_SECONDS}
        policy = RetryPolicy.of(defaults, item.backoff, {"max_attempts": item.max_attempts})
        due_at = now + policy.delay(item.attempts) if delayed else now
        rows.update(state=ItemState.PENDING, due_at=due_at, error=error)
        return
    rows.update(state=ItemState.FAILED, done_at=now, error=error)
    reason = DeadLetterReason.EXHAUSTED if delayed else DeadLetterReason.STALLED
    dead_letter_records.record_dead_item(
        item, key, reason=reason if retryable else DeadLetterReason.PERMANENT, error=error
    )
    facts = {"action": "mailbox_item_failed", "item": str(item.pk), "attempts": item.attempts}
    logger.warning("A mailbox item has failed permanently", extra=facts)


def _lock_batch(tenant_id: UUID, key: str, batch_id: UUID) -> MailboxBatch:
    """Lock the mailbox, which everybody locks first, and return the batch."""
    mailbox = Mailbox.objects.for_tenant(tenant_id).filter(key=key).select_for_update().first()
    batches = MailboxBatch.objects.for_tenant(tenant_id).filter(pk=batch_id)
    batch: MailboxBatch | None = batches.filter(mailbox_id=mailbox.pk).first() if mailbox else None
    if batch is None:
        raise NotFound(f"batch of the mailbox {key}", batch_id)
    return batch


def _refuse_ended(batch: MailboxBatch) -> None:
    if batch.state != BatchState.OPEN:
        raise LeaseLost(f"The batch {batch.pk} is {batch.state}, so this report is ignored.")


def _items_of(batch: MailboxBatch) -> Any:
    rows = MailboxItem.objects.for_tenant(batch.tenant_id)
    return rows.filter(batch_id=batch.pk, state=ItemState.CLAIMED).order_by("pk")


def _end_batch(batch: MailboxBatch, state: BatchState, now: datetime, **changes: Any) -> MailboxBatch:
    batch.state, batch.ended_at = state, now
    for name, value in changes.items():
        setattr(batch, name, value)
    batch.save(update_fields=["state", "ended_at", *changes])
    return batch
