"""The queue of an agent's session, on a mailbox of the server. Several processes may enqueue and take items, and each of them may die.

The server stores the items. A batch is leased: if its consumer dies, its items are delivered again. While a batch is processed, a thread
extends its lease three times per lease, so the items of a dead process are available again after 30 s.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any
from uuid import uuid4

from orchestrator_client.client import Client
from orchestrator_client.errors import (
    Conflict,
    LeaseLost,
    NotFound,
    OrchestratorError,
    RateLimited,
    RequestInProgress,
)
from orchestrator_client.objects import Record
from orchestrator_client.queue.items import Batch, Hooks, Item, item_of

LEASE_SECONDS = 30.0  # for consumers that extend their leases

logger = logging.getLogger(__name__)


class AgentQueue(Hooks):
    """`key` is the key of the mailbox. Use one for each session, because its items may be delivered together.

    `consumer` is a name of this consumer for people; `window_ms` is the time after the first item in which others may join its batch. A
    batch is delivered to another consumer 30 s after the last heartbeat. Heartbeats are sent automatically until the client is closed,
    but for `work_seconds` at most, so that hanging work does not keep its items forever. With `lease_seconds`, a batch is leased for that
    long, and only calls of `heartbeat` extend it.

    `on_task_failed` is called for items that this queue has failed, for items that failed when it lost its lease, and, checked once per
    lease, for items that failed with other consumers. The latter are reported in every process that has such a hook.
    """

    def __init__(
        self,
        client: Client,
        key: str,
        *,
        consumer: str | None = None,
        window_ms: int = 50,
        lease_seconds: float | None = None,
        limit: int = 10,
        work_seconds: float = 3600,
    ) -> None:
        super().__init__()
        self.key = key
        self.consumer = consumer or f"{socket.gethostname()}:{os.getpid()}:{uuid4()}"
        self._client, self._mailboxes, self._letters = client, client.mailboxes, client.dead_letters
        self._work_seconds = work_seconds if lease_seconds is None else 0.0
        self._at_work: dict[str, tuple[Batch, float]] = {}
        self._lock = threading.Lock()
        self._wakeup = threading.Condition(self._lock)
        self._beating: threading.Thread | None = None
        self._lost_here: set[str] = set()
        self._seen: set[str] = set()
        self._looked: float | None = None
        self._window_ms, self._limit = window_ms, limit
        self._lease_seconds = LEASE_SECONDS if lease_seconds is None else lease_seconds

    def enqueue(self, item: Any, **options: Any) -> str | None:
        """Enqueue an item. Returns its id, or None if the server does not accept it now (too much waits, or there is a conflict).
        Raises other errors, above all ConnectionFailed: then repeat the call, with a `client_message_id` to avoid duplicates.
        """
        wanted = item_of(item, **options)
        if wanted.scope_key == self.key:
            wanted = item_of(wanted, scope_key=None)
        try:
            return str(self._mailboxes.put(self.key, **_sent(wanted)).id)
        except RequestInProgress:
            raise  # It may be accepted. A repetition with the same id returns the result.
        except (RateLimited, Conflict):
            return None

    def try_dequeue(self, blocked_reason: str | None = None) -> Batch | None:
        """Lease the next batch. Returns None if nothing is due, or if `blocked_reason` says that the consumer is blocked."""
        if blocked_reason:
            return None
        self._look_for_lost()
        try:
            taken = self._mailboxes.take(
                self.key,
                consumer=self.consumer,
                window_ms=self._window_ms,
                lease_seconds=self._lease_seconds,
                limit=self._limit,
            )
        except NotFound:
            return None  # The first item creates the mailbox, and there was none yet.
        batch = None if taken is None else _batch(taken)
        if batch is not None:
            self._keep(batch)
        return batch

    def complete(self, batch: Batch, result: Any = None) -> None:
        """Complete the batch. Raises LeaseLost if it took too long: others may have processed it again."""
        with self._ending(batch):
            self._mailboxes.completed(self.key, batch.batch_id, result=result)
        self._tell_completed(batch, result)

    def fail(self, batch: Batch, error: Any, *, retryable: bool = True) -> None:
        """Report that the batch failed. Items with attempts left are due again after about 1, 2, 4, ... seconds. Raises LeaseLost."""
        body = error if isinstance(error, Mapping) else {"message": str(error)}
        with self._ending(batch):
            self._mailboxes.failed(self.key, batch.batch_id, error=body, retryable=retryable)
        self._tell_failed(batch, error, retryable=retryable)

    def heartbeat(self, batch: Batch) -> None:
        """Extend the lease. Raises LeaseLost: stop working, because another consumer may have the items."""
        try:
            self._mailboxes.heartbeat(self.key, batch.batch_id, lease_seconds=self._lease_seconds)
        except LeaseLost:
            self._lost(batch)
            raise

    def _keep(self, batch: Batch) -> None:
        """Send heartbeats for the batch until it ends."""
        if not self._work_seconds:
            return
        with self._lock:
            self._at_work[batch.batch_id] = (batch, time.monotonic() + self._work_seconds)
            if self._beating is None:
                thread = threading.Thread(target=self._beat, name=f"heartbeat {self.key}", daemon=True)
                thread.start()
                self._beating = thread  # set last: a thread that could not be started would never end

    def _beat(self) -> None:
        """Send heartbeats until no batch is left or the client is closed. The next batch starts a new thread."""
        while True:
            with self._wakeup:
                self._wakeup.wait(self._lease_seconds / 3)
                now = time.monotonic()
                self._at_work = {key: kept for key, kept in self._at_work.items() if kept[1] > now}
                batches = [batch for batch, _ in self._at_work.values()]
                if not batches or self._client.is_closed:
                    self._beating = None
                    return
            for batch in batches:
                try:
                    self.heartbeat(batch)
                except LeaseLost:
                    logger.warning(
                        "A lease was lost", extra={"action": "lease_lost", "batch": batch.batch_id}
                    )
                except Exception as error:  # noqa: BLE001  # the next heartbeat may arrive
                    facts = {"action": "heartbeat_failed", "batch": batch.batch_id, "reason": str(error)}
                    logger.info("A heartbeat did not arrive", extra=facts)

    @contextmanager
    def _ending(self, batch: Batch) -> Iterator[None]:
        """End the batch, unless the server cannot be reached: then the batch is kept, and can be ended later."""
        try:
            yield
        except LeaseLost:
            self._lost(batch)
            raise
        self._let_go(batch)

    def _let_go(self, batch: Batch) -> bool:
        with self._wakeup:
            known = self._at_work.pop(batch.batch_id, None) is not None
            self._wakeup.notify_all()
        return known

    def _lost(self, batch: Batch) -> None:
        """Stop the heartbeats, and report the items whose attempts are used up. Other consumers may have the other items."""
        self._let_go(batch)
        for item in batch.items:
            try:
                shown = self._mailboxes.item(self.key, str(item.id))
            except OrchestratorError:
                continue  # The state of the item is unknown. This error must not hide that the lease was lost.
            if shown["status"] == "failed":
                self._lost_here.add(str(item.id))
                self._tell_one_failed(item, shown["error"])

    def _look_for_lost(self) -> None:
        """Report items that dead consumers have lost since the last check. Items from before the first check are not reported."""
        now = time.monotonic()
        if not self._when_failed or (self._looked is not None and now - self._looked < self._lease_seconds):
            return
        first, self._looked = self._looked is None, now
        try:
            found = list(
                islice(self._letters.list(kind="mailbox_item", mailbox=self.key, reason="stalled"), 100)
            )
        except OrchestratorError as error:
            facts = {"action": "lost_items_unknown", "reason": str(error)}
            logger.info("Cannot read which items other consumers have lost", extra=facts)
            return
        for letter in found:
            item_id, is_new = letter["mailbox_item"], letter["id"] not in self._seen
            self._seen.add(letter["id"])
            if first or not is_new or item_id in self._lost_here:
                self._lost_here.discard(item_id)
                continue
            try:
                shown = self._mailboxes.item(self.key, item_id)
            except NotFound:
                continue
            except OrchestratorError:
                self._seen.discard(letter["id"])  # It is reported after a later check.
                continue
            self._tell_one_failed(_item(shown), letter["error"])


def _sent(item: Item) -> dict[str, Any]:
    """Return the fields of an item as the server expects them."""
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
    if item.scope_key is not None:
        sent["scope_key"] = item.scope_key
    return sent


def _batch(taken: Record) -> Batch:
    items = tuple(_item(found) for found in taken["items"])
    return Batch(taken.batch_id, items, taken.merged_count, taken.queue_length_after)


def _item(found: Mapping[str, Any]) -> Item:
    known = Item.__dataclass_fields__.keys() - {"run_after", "scope_key"}
    values = {name: value for name, value in found.items() if name in known}
    return Item(**values, scope_key=found.get("scope_key") or None)
