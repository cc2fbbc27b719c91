"""The queue of an agent's session on a mailbox of the server: several processes may put in and take, and any of them may die.

What was enqueued is kept by the server. A batch is leased: it comes back when its consumer does not.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from orchestrator_client.client import Client
from orchestrator_client.errors import Conflict, NotFound, RateLimited, RequestInProgress
from orchestrator_client.objects import Record
from orchestrator_client.queue.hooks import Hooks
from orchestrator_client.queue.items import Batch, Item, item_of


class AgentQueue(Hooks):
    """`key` names the mailbox: one for each session, since what is in it may be told together.

    `consumer` names who takes, for people; `window_ms` is how long after the first item others may still join it;
    `lease_seconds` is how long a batch may take without a `heartbeat`.
    """

    def __init__(
        self,
        client: Client,
        key: str,
        *,
        consumer: str | None = None,
        window_ms: int = 50,
        lease_seconds: float = 300,
        limit: int = 10,
    ) -> None:
        super().__init__()
        self.key = key
        self.consumer = consumer or f"{socket.gethostname()}:{os.getpid()}:{uuid4()}"
        self._mailboxes = client.mailboxes
        self._window_ms, self._lease_seconds, self._limit = window_ms, lease_seconds, limit

    def enqueue(self, item: Any, **options: Any) -> str | None:
        """Put an item in; its id, or None when the server does not take it now (too much waits, or it conflicts).

        Raises what else goes wrong, above all ConnectionFailed: then repeat it, with a `client_message_id` to be sure.
        """
        wanted = item_of(item, **options)
        if wanted.scope_key not in (None, self.key):
            # It belongs to another group than what else is in this mailbox, so it must not be told with that.
            wanted = item_of(wanted, is_coalescable=False)
        try:
            return str(self._mailboxes.put(self.key, **_sent(wanted)).id)
        except RequestInProgress:
            raise  # It may well be accepted; whoever asks again under the same id will know.
        except (RateLimited, Conflict):
            return None

    def try_dequeue(self, blocked_reason: str | None = None) -> Batch | None:
        """The next batch, leased; None when nothing is due or the consumer is blocked for whatever reason."""
        if blocked_reason:
            return None
        try:
            taken = self._mailboxes.take(
                self.key,
                consumer=self.consumer,
                window_ms=self._window_ms,
                lease_seconds=self._lease_seconds,
                limit=self._limit,
            )
        except NotFound:
            return None  # Nobody has said anything yet: the first item makes the mailbox.
        return None if taken is None else _batch(taken)

    def complete(self, batch: Batch, result: Any = None) -> None:
        """All of the batch is done. Raises LeaseLost when it took too long: others may have done it again."""
        self._mailboxes.completed(self.key, batch.batch_id, result=result)
        self._tell_completed(batch, result)

    def fail(self, batch: Batch, error: Any, *, retryable: bool = True) -> None:
        """It failed. What has attempts left is due again after about 1, 2, 4, ... seconds. Raises LeaseLost."""
        told = error if isinstance(error, Mapping) else {"message": str(error)}
        self._mailboxes.failed(self.key, batch.batch_id, error=told, retryable=retryable)
        self._tell_failed(batch, error, retryable=retryable)

    def heartbeat(self, batch: Batch) -> None:
        """Keep the lease for as long again. Raises LeaseLost: stop, somebody else has the items."""
        self._mailboxes.heartbeat(self.key, batch.batch_id, lease_seconds=self._lease_seconds)


def _sent(item: Item) -> dict[str, Any]:
    """The fields of an item as the server takes them."""
    sent: dict[str, Any] = {
        "kind": item.kind,
        "source": item.source,
        "priority": item.priority,
        "max_attempts": item.max_attempts,
        "backoff_multiplier": item.backoff_multiplier,
        "max_backoff_ms": item.max_backoff_ms,
        "is_coalescable": item.is_coalescable,
    }
    if item.content is not None:
        sent["content"] = item.content
    if item.text is not None:
        sent["text"] = item.text
    if item.run_after is not None:
        sent["run_after"] = item.run_after.isoformat()
    if item.client_message_id is not None:
        sent["client_message_id"] = item.client_message_id
    return sent


def _batch(taken: Record) -> Batch:
    known = Item.__dataclass_fields__.keys() - {"run_after", "scope_key"}
    items = tuple(
        Item(**{name: value for name, value in found.items() if name in known}) for found in taken["items"]
    )
    return Batch(taken.batch_id, items, taken.merged_count, taken.queue_length_after)
