"""Tending: every batch that is due takes its next step.

Whoever tends a batch puts its next look off by a lease first; when they die, somebody else goes on after that.
"""

from __future__ import annotations

import logging
from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet
from django.db.models.functions import Now

from activities import results
from activities.batches import collecting, gathering, sending, settling, steps
from activities.models import ProviderBatch
from activities.models.batch import OPEN_BATCHES, OPEN_ITEMS, BatchState
from agents import batches, configuration
from agents.batches import MessageBatches
from agents.exceptions import AgentError
from tenants.context import system_scope, tenant_scope

logger = logging.getLogger(__name__)

PAGE = 100

STEPS = {
    BatchState.BOUND: sending.send,
    BatchState.SENDING: sending.find_again,
    BatchState.SENT: collecting.look,
}


def due() -> QuerySet[ProviderBatch]:
    """Batches that have to be looked at, of all tenants."""
    return ProviderBatch.objects.filter(state__in=OPEN_BATCHES, due_at__lte=Now())


def tend() -> int:
    """Look after the batches that are due. One that cannot be helped does not keep the others from it. Returns how many."""
    with system_scope():
        found = list(due().order_by("due_at").values_list("tenant_id", "id")[:PAGE])
    for tenant_id, batch_id in found:
        try:
            tend_one(tenant_id, batch_id)
        except Exception:
            # Its lease ends, and somebody tries again.
            logger.exception("Batch not tended", extra={"action": "batch_failed", "batch": str(batch_id)})
    return len(found)


def tend_one(tenant_id: UUID, batch_id: UUID) -> None:
    """Take the batch's next step, unless somebody else has it in hand."""
    batch = _taken(tenant_id, batch_id)
    if batch is None:
        return
    if not _is_wanted(batch):
        _let_go(batch)
        return
    try:
        door = door_of(batch)
    except AgentError as error:
        _abandon(batch, error)
        return
    STEPS[BatchState(batch.state)](batch, door)


def door_of(batch: ProviderBatch) -> MessageBatches:
    """Raises `AgentError` when the role leads elsewhere by now. Another credential at the same place will do: keys are changed."""
    chosen = configuration.settings_for(batch.tenant_id, batch.agent_role).adapter
    return batches.door_of(chosen, batch.provider)


def _taken(tenant_id: UUID, batch_id: UUID) -> ProviderBatch | None:
    with tenant_scope(tenant_id):
        rows = ProviderBatch.objects.for_tenant(tenant_id).filter(pk=batch_id)
        waiting = rows.filter(state__in=OPEN_BATCHES, due_at__lte=Now())
        if not waiting.update(due_at=steps.after(settings.ORCHESTRATOR_BATCH_LEASE_SECONDS)):
            return None
        batch: ProviderBatch = rows.get()
        gathering.drop_ended(tenant_id, steps.items_of(batch).filter(state__in=OPEN_ITEMS))
    return batch


def _is_wanted(batch: ProviderBatch) -> bool:
    with tenant_scope(batch.tenant_id):
        return steps.open_items(batch).exists()


def _let_go(batch: ProviderBatch) -> None:
    """Nobody waits for it any more. What the provider has of it, it need not answer."""
    if batch.state == BatchState.SENT:
        try:
            door_of(batch).cancel(batch.external_id)
        except AgentError as error:
            logger.warning(
                "Batch not cancelled",
                extra={"action": "batch_not_cancelled", "batch": str(batch.pk), "reason": error.error_code},
            )
    steps.move(batch, BatchState(batch.state), state=BatchState.ENDED, ended_at=Now())


def _abandon(batch: ProviderBatch, error: AgentError) -> None:
    """The role leads elsewhere by now: the work goes there, and whatever the provider still has of it is lost."""
    for item in steps.each_open(batch):
        settling.move(item, str(error))
    steps.move(
        batch, BatchState(batch.state), state=BatchState.ENDED, ended_at=Now(), error=results.as_dict(error)
    )
