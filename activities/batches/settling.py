"""Settling: what an answer, or its lack, means for the run of an item.

The run's end and the item's are one transaction. A run that is over already takes no answer; what that has cost is counted all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from activities import reports, results, spending
from activities.batches import parking
from activities.exceptions import RunSuperseded
from activities.models import BatchItem
from activities.models.batch import OPEN_ITEMS, ItemState
from agents import batches, configuration
from agents.batches import Answer
from agents.contracts import Completed, Output
from agents.exceptions import AgentError, LeftBatch, PermanentAgentError
from tenants.context import tenant_scope

logger = logging.getLogger(__name__)

ACTOR = "engine"


def settle(item: BatchItem, answer: Answer) -> None:
    """Take an answer in. Nothing happens the second time."""
    if item.state not in OPEN_ITEMS:
        _count_late(item, answer)
    elif answer.message is not None:
        _answered(item, answer.message)
    elif answer.error is not None:
        fail(item, answer.error)


def fail(item: BatchItem, error: AgentError) -> None:
    """The item has failed; its run's retry policy decides what follows."""
    with tenant_scope(item.tenant_id):
        try:
            results.failed(parking.token_of(item), error, actor=ACTOR)
        except RunSuperseded:
            parking.close(item, ItemState.DROPPED)
        else:
            parking.close(item, ItemState.FAILED)


def move(item: BatchItem, why: str, *, begun: Mapping[str, Any] | None = None) -> None:
    """Let the work go on at the real-time route, at once, with `begun` if the model has said something already."""
    run = parking.token_of(item)
    with tenant_scope(item.tenant_id):
        try:
            results.failed(run, LeftBatch(why), actor=ACTOR)
        except RunSuperseded:
            state, begun = ItemState.DROPPED, None
        else:
            state = ItemState.MOVED
        parking.close(item, state, begun=begun)
    logger.info(
        "Item left its batch", extra={"action": "batch_left", "run": str(item.run_id), "state": state.value}
    )


def _answered(item: BatchItem, message: Mapping[str, Any]) -> None:
    run, usage = parking.token_of(item), batches.usage_of(message)
    options = configuration.settings_for(item.tenant_id, item.agent_role).adapter.options
    with tenant_scope(item.tenant_id):
        try:
            completed = batches.completed_from(message, options)
            if completed is not None:
                _complete(item, completed)
                return
        except AgentError as error:
            fail(item, error)
        else:
            move(item, "The model's answer does not end the work; the conversation goes on.", begun=message)
        spending.count(run, usage)


def _complete(item: BatchItem, completed: Completed) -> None:
    try:
        reports.complete(parking.token_of(item), completed, actor=ACTOR)
    except reports.OutputTooLarge as error:
        raise PermanentAgentError(str(error), code=error.code) from error
    except (reports.RunOver, reports.AlreadyCompleted):
        # What it has used was counted when it was refused.
        parking.close(item, ItemState.DROPPED)
    else:
        parking.close(item, ItemState.ANSWERED)


def _count_late(item: BatchItem, answer: Answer) -> None:
    """Nobody wanted the answer any more, but it has to be paid for."""
    if item.state in (ItemState.MOVED, ItemState.DROPPED) and answer.message is not None:
        late = Completed(Output(), batches.usage_of(answer.message))
        results.note_late(parking.token_of(item), late)
