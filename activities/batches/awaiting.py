"""What parked work waits for, as people are told."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.conf import settings

from activities.models import BatchItem
from activities.models.batch import OPEN_ITEMS, BatchState, ItemState


def items_of(tenant_id: UUID, activity_ids: Iterable[UUID]) -> dict[UUID, BatchItem]:
    """The open items of these activities, with their batches. In a `tenant_scope`."""
    ids = list(activity_ids)
    if not ids:
        return {}
    items = BatchItem.objects.for_tenant(tenant_id).filter(activity_id__in=ids, state__in=OPEN_ITEMS)
    return {item.activity_id: item for item in items.select_related("batch").defer("body", "begun")}


def collected_with(item: BatchItem) -> int:
    """How many items wait for the same batch, itself included. In a `tenant_scope`."""
    lane = BatchItem.objects.for_tenant(item.tenant_id).filter(
        provider=item.provider, model=item.model, state=ItemState.COLLECTED
    )
    return lane.count()


def named(provider: str) -> str:
    """A provider by its key, without its credential."""
    adapter, place, *_ = provider.split("|")
    return f"{adapter} at {place}"


def in_words(item: BatchItem, *, number: int | None = None) -> str:
    """One sentence on where the item is. `number` of the collected ones is told if it is known."""
    batch = item.batch
    if batch is None:
        goes = item.created_at + timedelta(seconds=settings.ORCHESTRATOR_BATCH_AGE_SECONDS)
        so_far = "" if number is None else f" with {number} of {settings.ORCHESTRATOR_BATCH_SIZE}"
        return f"It waits for a batch, collected{so_far}; the batch goes out at {_shown(goes)} at the latest."
    if batch.state == BatchState.SENT:
        since = "" if batch.sent_at is None else f", which was sent at {_shown(batch.sent_at)}"
        return f"It is one of {batch.size} in the batch {batch.external_id}{since}; the provider answers within a day."
    return f"It is one of {batch.size} in a batch that is being sent."


def _shown(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
