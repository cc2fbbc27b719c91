"""Batches of model providers: work that can wait is parked, collected, sent together, and answered whenever the provider gets to it.

A parked run is accepted, as one of an agent that answered 202: no worker waits for it. Its item is bound to a batch before anything is
sent, in PostgreSQL. Whoever looks after batches may die at any moment; somebody else goes on after a lease. Two at once do no harm:
an answer counts by the fencing number of its run, once.

    parking     a run's request is kept, instead of an answer
    gathering   what is collected for one provider, credential and model is bound to a batch, by number, size and age
    tending     every batch that is due takes its next step
    sending     a batch is sent once, and found again when the answer to that was lost
    collecting  a batch that was sent is looked at, and its answers are taken in
    steps       what these three do with a batch's rows
    settling    what an answer means for its run
    awaiting    what parked work waits for, in words
    leaving     what is wanted soon goes to the real-time route
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from activities.execution import results
from activities.models import BatchItem, ProviderBatch
from activities.models.batch import OPEN_BATCHES, OPEN_ITEMS, BatchState
from activities.provider_batches import items
from activities.provider_batches import items as provider_batches_items
from agents import batches, configuration
from agents.batches import Answer, MessageBatches
from agents.exceptions import AgentError, AgentRateLimited, ConfigurationError, RetryableAgentError
from tenants.context import system_scope, tenant_scope

logger = logging.getLogger(__name__)

# Sending: a batch is sent once, and found again when the answer to that was lost.
#
# That it is being sent is on record before the call, so it is never sent twice without having been looked for: the provider's list names
# what was created since, and a batch of the same number of requests that nobody knows is taken for it. Its answers name their items; when
# they name none of ours, it was not. Only when the list has no such batch it is sent again, which is counted and logged.


SKEW = timedelta(minutes=10)  # what the provider's clock and PostgreSQL's may differ by
LISTED_FOR = timedelta(days=3)  # longer than a batch may take


def send(batch: ProviderBatch, door: MessageBatches) -> None:
    """Send a bound batch, unless somebody else does."""
    with tenant_scope(batch.tenant_id):
        bodies = items.open_items(batch).order_by("id").values_list("id", "body")
        requests = [(pk.hex, body or {}) for pk, body in bodies]
    begun = {"state": BatchState.SENDING, "sent_at": Now(), "sendings": F("sendings") + 1}
    if not items.move(batch, BatchState.BOUND, **begun, sent=len(requests)):
        return
    try:
        created = door.create(requests)
    except RetryableAgentError as error:
        _not_sent(batch, error)
    except AgentError as error:
        items.give_up(batch, BatchState.SENDING, BatchState.REFUSED, error)
    else:
        _sent(batch, created.id)


def find_again(batch: ProviderBatch, door: MessageBatches) -> None:
    """Its sender died, or never got an answer. The lease that has passed since is longer than any call."""
    try:
        like = _like(batch, door)
    except AgentError as error:
        items.put_off(batch, error)
        return
    if like:
        _sent(batch, like[-1])
        return
    logger.warning(
        "Batch not found at its provider, sent again",
        extra={"action": "batch_resent", "batch": str(batch.pk)},
    )
    items.move(batch, BatchState.SENDING, state=BatchState.BOUND, due_at=Now())


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
        changes |= {"state": BatchState.BOUND, "due_at": items.after(wait)}
    items.move(batch, BatchState.SENDING, **changes)


def _sent(batch: ProviderBatch, external_id: str) -> None:
    items.move(
        batch, BatchState.SENDING, state=BatchState.SENT, external_id=external_id, error=None,
        due_at=items.after(settings.ORCHESTRATOR_BATCH_POLL_SECONDS),
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


# Collecting: a batch that was sent is looked at, and its answers are taken in once it has ended.
#
# Who dies half-way leaves open items, which whoever looks next takes in; those that were answered take no second answer.


RENEWED_EVERY = 100  # answers


def poll(batch: ProviderBatch, door: MessageBatches) -> None:
    """Take in the answers of a batch that has ended; of one that has not, look again later."""
    try:
        if not door.look(batch.external_id).ended:
            items.move(batch, BatchState.SENT, due_at=items.after(settings.ORCHESTRATOR_BATCH_POLL_SECONDS))
        elif _take_in(batch, door):
            items.move(batch, BatchState.SENT, state=BatchState.ENDED, ended_at=Now(), error=None)
        else:
            _look_for_another(batch)
    except (RetryableAgentError, ConfigurationError) as error:
        items.put_off(batch, error)
    except AgentError as error:
        lost = RetryableAgentError(f"The batch is lost: {error}", code="batch_lost")
        items.give_up(batch, BatchState.SENT, BatchState.ENDED, lost)


def _take_in(batch: ProviderBatch, door: MessageBatches) -> bool:
    """Settle every item by its answer; False when the answers are those of another batch."""
    with tenant_scope(batch.tenant_id):
        unanswered = {item.pk.hex: item for item in items.items_of(batch).defer("body", "begun")}
    strange = False
    answers = door.answers(batch.external_id, max_bytes=settings.ORCHESTRATOR_BATCH_RESULT_MAX_BYTES)
    for number, answer in enumerate(answers, 1):
        item = unanswered.pop(answer.custom_id, None)
        if item is None:
            strange = strange or bool(answer.custom_id)
            continue
        _persistently(item, answer)
        if number % RENEWED_EVERY == 0:
            items.move(batch, BatchState.SENT, due_at=items.after(settings.ORCHESTRATOR_BATCH_LEASE_SECONDS))
    if strange and len(unanswered) == batch.size:
        return False
    for item in unanswered.values():
        if item.state in OPEN_ITEMS:
            items.fail_item(item, _missing())
    return True


def _persistently(item: BatchItem, answer: Answer) -> None:
    results.persistently(lambda: items.settle_item(item, answer))


def _missing() -> AgentError:
    return RetryableAgentError("The batch has ended without an answer to this.", code="batch_incomplete")


def _look_for_another(batch: ProviderBatch) -> None:
    not_ours = [*batch.not_ours, batch.external_id]
    items.move(
        batch, BatchState.SENT, state=BatchState.SENDING, external_id="", not_ours=not_ours, due_at=Now()
    )


# Tending: every batch that is due takes its next step.
#
# Whoever tends a batch puts its next look off by a lease first; when they die, somebody else goes on after that.


PAGE = 100

STEPS = {
    BatchState.BOUND: send,
    BatchState.SENDING: find_again,
    BatchState.SENT: poll,
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
        if not waiting.update(due_at=items.after(settings.ORCHESTRATOR_BATCH_LEASE_SECONDS)):
            return None
        batch: ProviderBatch = rows.get()
        items.drop_ended(tenant_id, items.items_of(batch).filter(state__in=OPEN_ITEMS))
    return batch


def _is_wanted(batch: ProviderBatch) -> bool:
    with tenant_scope(batch.tenant_id):
        return items.open_items(batch).exists()


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
    items.move(batch, BatchState(batch.state), state=BatchState.ENDED, ended_at=Now())


def _abandon(batch: ProviderBatch, error: AgentError) -> None:
    """The role leads elsewhere by now: the work goes there, and whatever the provider still has of it is lost."""
    for item in items.each_open(batch):
        items.move_to_real_time(item, str(error))
    items.move(
        batch, BatchState(batch.state), state=BatchState.ENDED, ended_at=Now(), error=results.as_dict(error)
    )


# Leaving: what is wanted soon does not wait for a batch any longer, whether it is in one or not. A late answer counts for nothing.


LEAVING_AT_ONCE = 500

WHY = "It is wanted soon and was not answered by its batch yet; it goes on at once."


def due_to_leave() -> QuerySet[BatchItem]:
    """What has to leave, of all tenants."""
    return BatchItem.objects.filter(state__in=OPEN_ITEMS, leave_at__lte=Now())


def leave() -> int:
    """Move what is due, a page of it. Returns how many."""
    with system_scope():
        items = list(due_to_leave().defer("body", "begun").order_by("leave_at")[:LEAVING_AT_ONCE])
    for item in items:
        provider_batches_items.move_to_real_time(item, WHY)
    return len(items)
