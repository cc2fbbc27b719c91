"""Collecting: a batch that was sent is looked at, and its answers are taken in once it has ended.

Who dies half-way leaves open items, which whoever looks next takes in; those that were answered take no second answer.
"""

from __future__ import annotations

from django.conf import settings
from django.db.models.functions import Now

from activities import results
from activities.batches import settling, steps
from activities.models import BatchItem, ProviderBatch
from activities.models.batch import OPEN_ITEMS, BatchState
from agents.batches import Answer, MessageBatches
from agents.exceptions import AgentError, ConfigurationError, RetryableAgentError
from tenants.context import tenant_scope

RENEWED_EVERY = 100  # answers


def look(batch: ProviderBatch, door: MessageBatches) -> None:
    """Take in the answers of a batch that has ended; of one that has not, look again later."""
    try:
        if not door.look(batch.external_id).ended:
            steps.move(batch, BatchState.SENT, due_at=steps.after(settings.ORCHESTRATOR_BATCH_POLL_SECONDS))
        elif _take_in(batch, door):
            steps.move(batch, BatchState.SENT, state=BatchState.ENDED, ended_at=Now(), error=None)
        else:
            _look_for_another(batch)
    except (RetryableAgentError, ConfigurationError) as error:
        steps.put_off(batch, error)
    except AgentError as error:
        lost = RetryableAgentError(f"The batch is lost: {error}", code="batch_lost")
        steps.give_up(batch, BatchState.SENT, BatchState.ENDED, lost)


def _take_in(batch: ProviderBatch, door: MessageBatches) -> bool:
    """Settle every item by its answer; False when the answers are those of another batch."""
    with tenant_scope(batch.tenant_id):
        unanswered = {item.pk.hex: item for item in steps.items_of(batch).defer("body", "begun")}
    strange = False
    answers = door.answers(batch.external_id, max_bytes=settings.ORCHESTRATOR_BATCH_RESULT_MAX_BYTES)
    for number, answer in enumerate(answers, 1):
        item = unanswered.pop(answer.custom_id, None)
        if item is None:
            strange = strange or bool(answer.custom_id)
            continue
        _persistently(item, answer)
        if number % RENEWED_EVERY == 0:
            steps.move(batch, BatchState.SENT, due_at=steps.after(settings.ORCHESTRATOR_BATCH_LEASE_SECONDS))
    if strange and len(unanswered) == batch.size:
        return False
    for item in unanswered.values():
        if item.state in OPEN_ITEMS:
            settling.fail(item, _missing())
    return True


def _persistently(item: BatchItem, answer: Answer) -> None:
    results.persistently(lambda: settling.settle(item, answer))


def _missing() -> AgentError:
    return RetryableAgentError("The batch has ended without an answer to this.", code="batch_incomplete")


def _look_for_another(batch: ProviderBatch) -> None:
    not_ours = [*batch.not_ours, batch.external_id]
    steps.move(
        batch, BatchState.SENT, state=BatchState.SENDING, external_id="", not_ours=not_ours, due_at=Now()
    )
