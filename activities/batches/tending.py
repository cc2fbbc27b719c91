"""Tending: a batch is sent once, found again when the answer to that was lost, looked at, and its answers are taken in.

Whoever tends a batch puts its next look off by a lease first; when they die, somebody else goes on after that. That it is being sent is
on record before the call, so it is never sent twice without having been looked for: the provider's list names what was created since,
and a batch of the same number of requests that nobody knows is taken for it. Its answers name their items; when they name none of ours,
it was not. Only when the list has no such batch it is sent again, which is counted and logged.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from activities import results
from activities.batches import gathering, settling
from activities.models import BatchItem, ProviderBatch
from activities.models.batch import OPEN_BATCHES, OPEN_ITEMS, BatchState, ItemState
from agents import batches, configuration
from agents.batches import MessageBatches
from agents.exceptions import AgentError, AgentRateLimited, ConfigurationError, RetryableAgentError
from tenants.context import system_scope, tenant_scope

logger = logging.getLogger(__name__)

PAGE = 100
RENEWED_EVERY = 100  # answers
SKEW = timedelta(minutes=10)  # what the provider's clock and PostgreSQL's may differ by


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
        door = _door(batch)
    except AgentError as error:
        _abandon(batch, error)
        return
    {BatchState.BOUND: _send, BatchState.SENDING: _find_again, BatchState.SENT: _look}[
        BatchState(batch.state)
    ](batch, door)


def _taken(tenant_id: UUID, batch_id: UUID) -> ProviderBatch | None:
    with tenant_scope(tenant_id):
        batches = ProviderBatch.objects.for_tenant(tenant_id).filter(
            pk=batch_id, state__in=OPEN_BATCHES, due_at__lte=Now()
        )
        if not batches.update(due_at=_in(settings.ORCHESTRATOR_BATCH_LEASE_SECONDS)):
            return None
        batch: ProviderBatch = ProviderBatch.objects.for_tenant(tenant_id).get(pk=batch_id)
        gathering.drop_ended(tenant_id, _items(batch).filter(state__in=OPEN_ITEMS))
    return batch


def _door(batch: ProviderBatch) -> MessageBatches:
    """Raises `AgentError` when the role leads elsewhere by now. Another credential at the same place will do: keys are changed."""
    chosen = configuration.settings_for(batch.tenant_id, batch.agent_role).adapter
    return batches.door_of(chosen, batch.provider)


def _send(batch: ProviderBatch, door: MessageBatches) -> None:
    with tenant_scope(batch.tenant_id):
        requests = [
            (pk.hex, body or {}) for pk, body in _open_items(batch).order_by("id").values_list("id", "body")
        ]
    if not _moved(batch, BatchState.SENDING, sent_at=Now(), sendings=F("sendings") + 1, sent=len(requests)):
        return
    try:
        created = door.create(requests)
    except RetryableAgentError as error:
        _not_sent(batch, error)
    except AgentError as error:
        _refused(batch, error)
    else:
        _sent(batch, created.id)


def _not_sent(batch: ProviderBatch, error: RetryableAgentError) -> None:
    """Where it is certain that nothing arrived it is sent later; else it is looked for once the lease is over."""
    logger.warning(
        "Batch not sent",
        extra={"action": "batch_not_sent", "batch": str(batch.pk), "reason": error.error_code},
    )
    if isinstance(error, AgentRateLimited) or error.nothing_sent:
        wait = error.retry_after or settings.ORCHESTRATOR_BATCH_POLL_SECONDS
        _move(
            batch, BatchState.SENDING, state=BatchState.BOUND, due_at=_in(wait), error=results.as_dict(error)
        )
    else:
        _move(batch, BatchState.SENDING, error=results.as_dict(error))


def _sent(batch: ProviderBatch, external_id: str) -> None:
    _move(
        batch, BatchState.SENDING, state=BatchState.SENT, external_id=external_id, error=None,
        due_at=_in(settings.ORCHESTRATOR_BATCH_POLL_SECONDS),
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


def _find_again(batch: ProviderBatch, door: MessageBatches) -> None:
    """Its sender died, or never got an answer. The lease that has passed since is longer than any call."""
    try:
        known = _known()
        like = [
            found.id
            for found in door.listed(since=(batch.sent_at or batch.created_at) - SKEW)
            if found.requests == batch.sent and found.id not in known and found.id not in batch.not_ours
        ]
    except AgentError as error:
        _later(batch, error)
        return
    if like:
        _sent(batch, like[-1])
        return
    logger.warning(
        "Batch not found at its provider, sent again",
        extra={"action": "batch_resent", "batch": str(batch.pk)},
    )
    _move(batch, BatchState.SENDING, state=BatchState.BOUND, due_at=Now())


def _known() -> set[str]:
    """The provider's names of all batches, whosever they are: tenants may share a credential."""
    with system_scope():
        young = ProviderBatch.objects.filter(created_at__gt=Now() - timedelta(days=3)).exclude(external_id="")
        return set(young.values_list("external_id", flat=True))


def _look(batch: ProviderBatch, door: MessageBatches) -> None:
    try:
        if not door.look(batch.external_id).ended:
            _move(batch, BatchState.SENT, due_at=_in(settings.ORCHESTRATOR_BATCH_POLL_SECONDS))
        elif _take_in(batch, door):
            _move(batch, BatchState.SENT, state=BatchState.ENDED, ended_at=Now(), error=None)
        else:
            not_ours = [*batch.not_ours, batch.external_id]
            _move(
                batch,
                BatchState.SENT,
                state=BatchState.SENDING,
                external_id="",
                not_ours=not_ours,
                due_at=Now(),
            )
    except (RetryableAgentError, ConfigurationError) as error:
        _later(batch, error)
    except AgentError as error:
        lost = RetryableAgentError(f"The batch is lost: {error}", code="batch_lost")
        _give_up(batch, lost, BatchState.ENDED)


def _take_in(batch: ProviderBatch, door: MessageBatches) -> bool:
    """Settle every item by its answer; False when the answers are those of another batch."""
    with tenant_scope(batch.tenant_id):
        items = {item.pk.hex: item for item in _items(batch).defer("body", "begun")}
    strange = False
    answers = door.answers(batch.external_id, max_bytes=settings.ORCHESTRATOR_BATCH_RESULT_MAX_BYTES)
    for number, answer in enumerate(answers, 1):
        item = items.pop(answer.custom_id, None)
        if item is None:
            strange = strange or bool(answer.custom_id)
            continue
        _persistently(item, answer)
        if number % RENEWED_EVERY == 0:
            _move(batch, BatchState.SENT, due_at=_in(settings.ORCHESTRATOR_BATCH_LEASE_SECONDS))
    if strange and len(items) == batch.size:
        return False
    for item in items.values():
        if item.state in OPEN_ITEMS:
            missing = RetryableAgentError(
                "The batch has ended without an answer to this.", code="batch_incomplete"
            )
            settling.fail(item, missing)
    return True


def _persistently(item: BatchItem, answer: Any) -> None:
    results.persistently(lambda: settling.settle(item, answer))


def _let_go(batch: ProviderBatch) -> None:
    """Nobody waits for it any more. What the provider has of it, it need not answer."""
    if batch.state == BatchState.SENT:
        try:
            _door(batch).cancel(batch.external_id)
        except AgentError as error:
            logger.warning(
                "Batch not cancelled",
                extra={"action": "batch_not_cancelled", "batch": str(batch.pk), "reason": error.error_code},
            )
    _move(batch, BatchState(batch.state), state=BatchState.ENDED, ended_at=Now())


def _abandon(batch: ProviderBatch, error: AgentError) -> None:
    """The role leads elsewhere by now: the work goes there, and whatever the provider still has of it is lost."""
    for item in _each_open(batch):
        settling.move(item, str(error))
    _move(
        batch, BatchState(batch.state), state=BatchState.ENDED, ended_at=Now(), error=results.as_dict(error)
    )


def _refused(batch: ProviderBatch, error: AgentError) -> None:
    _give_up(batch, error, BatchState.REFUSED)


def _give_up(batch: ProviderBatch, error: AgentError, state: BatchState) -> None:
    for item in _each_open(batch):
        settling.fail(item, error)
    before = BatchState.SENDING if state == BatchState.REFUSED else BatchState.SENT
    _move(batch, before, state=state, ended_at=Now(), error=results.as_dict(error))


def _later(batch: ProviderBatch, error: AgentError) -> None:
    wait = max(error.retry_after or 0.0, settings.ORCHESTRATOR_BATCH_POLL_SECONDS)
    _move(batch, BatchState(batch.state), due_at=_in(wait), error=results.as_dict(error))


def _items(batch: ProviderBatch) -> QuerySet[BatchItem]:
    items: QuerySet[BatchItem] = BatchItem.objects.for_tenant(batch.tenant_id)
    return items.filter(batch_id=batch.pk)


def _open_items(batch: ProviderBatch) -> QuerySet[BatchItem]:
    return _items(batch).filter(state=ItemState.BOUND)


def _is_wanted(batch: ProviderBatch) -> bool:
    with tenant_scope(batch.tenant_id):
        return _open_items(batch).exists()


def _each_open(batch: ProviderBatch) -> list[BatchItem]:
    with tenant_scope(batch.tenant_id):
        return list(_open_items(batch).defer("body", "begun"))


def _moved(batch: ProviderBatch, target: BatchState, **changes: Any) -> bool:
    return _move(batch, BatchState(batch.state), state=target, **changes)


def _move(batch: ProviderBatch, source: BatchState, **changes: Any) -> bool:
    """Change the batch while it is in the state in which it was looked at; whether it was."""
    with tenant_scope(batch.tenant_id):
        rows = ProviderBatch.objects.for_tenant(batch.tenant_id).filter(pk=batch.pk, state=source)
        return bool(rows.update(**changes))


def _in(seconds: float) -> Any:
    return Now() + timedelta(seconds=seconds)
