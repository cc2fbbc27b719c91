"""Sending: a batch is sent once, and found again when the answer to that was lost.

That it is being sent is on record before the call, so it is never sent twice without having been looked for: the provider's list names
what was created since, and a batch of the same number of requests that nobody knows is taken for it. Its answers name their items; when
they name none of ours, it was not. Only when the list has no such batch it is sent again, which is counted and logged.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import F
from django.db.models.functions import Now

from activities import results
from activities.batches import steps
from activities.models import ProviderBatch
from activities.models.batch import BatchState
from agents.batches import MessageBatches
from agents.exceptions import AgentError, AgentRateLimited, RetryableAgentError
from tenants.context import system_scope, tenant_scope

logger = logging.getLogger(__name__)

SKEW = timedelta(minutes=10)  # what the provider's clock and PostgreSQL's may differ by
LISTED_FOR = timedelta(days=3)  # longer than a batch may take


def send(batch: ProviderBatch, door: MessageBatches) -> None:
    """Send a bound batch, unless somebody else does."""
    with tenant_scope(batch.tenant_id):
        bodies = steps.open_items(batch).order_by("id").values_list("id", "body")
        requests = [(pk.hex, body or {}) for pk, body in bodies]
    begun = {"state": BatchState.SENDING, "sent_at": Now(), "sendings": F("sendings") + 1}
    if not steps.move(batch, BatchState.BOUND, **begun, sent=len(requests)):
        return
    try:
        created = door.create(requests)
    except RetryableAgentError as error:
        _not_sent(batch, error)
    except AgentError as error:
        steps.give_up(batch, BatchState.SENDING, BatchState.REFUSED, error)
    else:
        _sent(batch, created.id)


def find_again(batch: ProviderBatch, door: MessageBatches) -> None:
    """Its sender died, or never got an answer. The lease that has passed since is longer than any call."""
    try:
        like = _like(batch, door)
    except AgentError as error:
        steps.put_off(batch, error)
        return
    if like:
        _sent(batch, like[-1])
        return
    logger.warning(
        "Batch not found at its provider, sent again",
        extra={"action": "batch_resent", "batch": str(batch.pk)},
    )
    steps.move(batch, BatchState.SENDING, state=BatchState.BOUND, due_at=Now())


def _like(batch: ProviderBatch, door: MessageBatches) -> list[str]:
    """What the provider calls the batches that may be this one."""
    others = _known() | set(batch.not_ours)
    listed = door.listed(since=(batch.sent_at or batch.created_at) - SKEW)
    return [found.id for found in listed if found.requests == batch.sent and found.id not in others]


def _known() -> set[str]:
    """The provider's names of all batches, whosever they are: tenants may share a credential."""
    with system_scope():
        young = ProviderBatch.objects.filter(created_at__gt=Now() - LISTED_FOR).exclude(external_id="")
        return set(young.values_list("external_id", flat=True))


def _not_sent(batch: ProviderBatch, error: RetryableAgentError) -> None:
    """Where it is certain that nothing arrived it is sent later; else it is looked for once the lease is over."""
    logger.warning(
        "Batch not sent",
        extra={"action": "batch_not_sent", "batch": str(batch.pk), "reason": error.error_code},
    )
    changes: dict[str, Any] = {"error": results.as_dict(error)}
    if isinstance(error, AgentRateLimited) or error.nothing_sent:
        wait = error.retry_after or settings.ORCHESTRATOR_BATCH_POLL_SECONDS
        changes |= {"state": BatchState.BOUND, "due_at": steps.after(wait)}
    steps.move(batch, BatchState.SENDING, **changes)


def _sent(batch: ProviderBatch, external_id: str) -> None:
    steps.move(
        batch, BatchState.SENDING, state=BatchState.SENT, external_id=external_id, error=None,
        due_at=steps.after(settings.ORCHESTRATOR_BATCH_POLL_SECONDS),
    )  # fmt: skip
    logger.info(
        "Batch sent",
        extra={
            "action": "batch_sent",
            "batch": str(batch.pk),
            "external_id": external_id,
            "items": batch.size,
        },
    )
