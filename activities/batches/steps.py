"""Steps: what all who look after a batch do with its rows.

Each step is a compare-and-set from the state in which the batch was looked at; who comes second changes nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.db.models.functions import Now

from activities import results
from activities.batches import settling
from activities.models import BatchItem, ProviderBatch
from activities.models.batch import BatchState, ItemState
from agents.exceptions import AgentError
from tenants.context import tenant_scope


def move(batch: ProviderBatch, source: BatchState, **changes: Any) -> bool:
    """Change the batch while it is in this state; whether it was."""
    with tenant_scope(batch.tenant_id):
        rows = ProviderBatch.objects.for_tenant(batch.tenant_id).filter(pk=batch.pk, state=source)
        return bool(rows.update(**changes))


def put_off(batch: ProviderBatch, error: AgentError) -> None:
    """Leave the batch in its state, for as long as its provider asks or until the next look at it."""
    wait = max(error.retry_after or 0.0, settings.ORCHESTRATOR_BATCH_POLL_SECONDS)
    move(batch, BatchState(batch.state), due_at=after(wait), error=results.as_dict(error))


def give_up(batch: ProviderBatch, source: BatchState, target: BatchState, error: AgentError) -> None:
    """End the batch, and let its open items fail with the error."""
    for item in each_open(batch):
        settling.fail(item, error)
    move(batch, source, state=target, ended_at=Now(), error=results.as_dict(error))


def items_of(batch: ProviderBatch) -> QuerySet[BatchItem]:
    items: QuerySet[BatchItem] = BatchItem.objects.for_tenant(batch.tenant_id)
    return items.filter(batch_id=batch.pk)


def open_items(batch: ProviderBatch) -> QuerySet[BatchItem]:
    """Those that nobody has answered or called off. In a `tenant_scope`."""
    return items_of(batch).filter(state=ItemState.BOUND)


def each_open(batch: ProviderBatch) -> list[BatchItem]:
    """The open items, without what they ask."""
    with tenant_scope(batch.tenant_id):
        return list(open_items(batch).defer("body", "begun"))


def after(seconds: float) -> Any:
    """The moment so many seconds after PostgreSQL's now."""
    return Now() + timedelta(seconds=seconds)
