"""A queue in the memory of one process. It is the reference that other queues are compared with, and ends with its process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from uuid import uuid4

from orchestrator_client.queue.items import Batch, Hooks, Item, item_of


@dataclass
class _Waiting:
    item: Item
    number: int
    since: float
    due: float


class InMemoryQueue(Hooks):
    """Thread-safe. `clock` returns seconds since 1970; `sleep` waits for the end of the first item's window.
    `limit` is the maximum number of items in a batch, `most` that of the queue; a full queue accepts nothing.
    """

    def __init__(
        self,
        *,
        window_ms: float = 50,
        limit: int = 10,
        most: int = 10_000,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self._window, self._limit, self._most = window_ms / 1000, limit, most
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._numbers = count()
        self._waiting: list[_Waiting] = []
        self._taken: dict[str, list[_Waiting]] = {}
        self._known: dict[str, str] = {}

    def __len__(self) -> int:
        """Return the number of waiting items, due or not."""
        with self._lock:
            return len(self._waiting)

    def enqueue(self, item: Any, **options: Any) -> str | None:
        """Enqueue an item. Returns its id, or None if the queue is full. With a known `client_message_id`, returns the first item's id."""
        wanted = item_of(item, **options)
        with self._lock:
            if wanted.client_message_id in self._known:
                return self._known[wanted.client_message_id]
            if len(self._waiting) >= self._most:
                return None
            made = replace(wanted, id=str(uuid4()), attempts=0)
            due = made.run_after.timestamp() if made.run_after else 0.0
            self._waiting.append(_Waiting(made, next(self._numbers), self._clock(), due))
            if made.client_message_id is not None:
                self._known[made.client_message_id] = str(made.id)
            return made.id

    def try_dequeue(self, blocked_reason: str | None = None) -> Batch | None:
        """Take the most urgent due item, together with others of its scope if it is coalescable."""
        if blocked_reason:
            return None
        with self._lock:
            due = self._due()
            young = due[0].since + self._window - self._clock() if due and due[0].item.is_coalescable else 0.0
        if young > 0:
            self._sleep(young)
        with self._lock:
            return self._batch(self._due())

    def complete(self, batch: Batch, result: Any = None) -> None:
        """Complete the batch. A batch that has already ended is ignored."""
        with self._lock:
            ended = self._taken.pop(batch.batch_id, None)
        if ended is not None:
            self._tell_completed(batch, result)

    def fail(self, batch: Batch, error: Any, *, retryable: bool = True) -> None:
        """Report that the batch failed. Items with attempts left are due again later."""
        with self._lock:
            ended = self._taken.pop(batch.batch_id, None)
            for entry in ended or ():
                if retryable and entry.item.attempts < entry.item.max_attempts:
                    self._waiting.append(replace(entry, due=self._clock() + _delay(entry.item)))
        if ended is not None:
            self._tell_failed(batch, error, retryable=retryable)

    def _due(self) -> list[_Waiting]:
        due = [entry for entry in self._waiting if entry.due <= self._clock()]
        return sorted(due, key=lambda entry: (entry.item.priority, entry.number))

    def _batch(self, due: list[_Waiting]) -> Batch | None:
        if not due:
            return None
        first = due[0].item
        together = [
            entry for entry in due if entry.item.is_coalescable and entry.item.scope_key == first.scope_key
        ]
        chosen = together[: self._limit] if first.is_coalescable else due[:1]
        self._waiting = [entry for entry in self._waiting if entry not in chosen]
        taken = [
            replace(entry, item=replace(entry.item, attempts=entry.item.attempts + 1)) for entry in chosen
        ]
        taken.sort(key=lambda entry: entry.number)
        batch_id = str(uuid4())
        self._taken[batch_id] = taken
        return Batch(batch_id, tuple(entry.item for entry in taken), len(taken), len(due) - len(taken))


def _delay(item: Item) -> float:
    """Return the seconds before the next attempt: about 1, 2, 4, ... up to the item's limit."""
    return min(item.max_backoff_ms / 1000, 1.0 * item.backoff_multiplier ** (item.attempts - 1))
