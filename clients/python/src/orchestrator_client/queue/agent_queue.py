"""The queue of an agent's session on a mailbox of the server: several processes may put in and take, and any of them may die.

What was enqueued is kept by the server. A batch is leased: it comes back when its consumer does not. While a batch is worked on, a thread
says three times per lease that this process lives, so what a dead one had is back after 30 s.
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
    ApiError,
    Conflict,
    ConnectionFailed,
    LeaseLost,
    NotFound,
    RateLimited,
    RequestInProgress,
)
from orchestrator_client.objects import Record
from orchestrator_client.queue.items import Batch, Hooks, Item, item_of

LEASE_SECONDS = 30.0  # of consumers that give signs of life

logger = logging.getLogger(__name__)


class AgentQueue(Hooks):
    """`key` names the mailbox: one for each session, since what is in it may be told together.

    `consumer` names who takes, for people; `window_ms` is how long after the first item others may still join it.
    A batch goes to somebody else after 30 s without a sign of life. These signs are given by themselves until the client is closed, and
    for `work_seconds` at most, so that work that hangs is not kept for ever. With `lease_seconds` a batch may take so long, and only
    `heartbeat` makes it longer.

    `on_task_failed` is told of what this queue's own calls have ended, of what it lost with its lease, and, once a lease, of what others
    lost: an item that failed so is told in every process that has such a hook.
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
        """Put an item in; its id, or None when the server does not take it now (too much waits, or it conflicts).

        Raises what else goes wrong, above all ConnectionFailed: then repeat it, with a `client_message_id` to be sure.
        """
        wanted = item_of(item, **options)
        if wanted.scope_key == self.key:
            wanted = item_of(wanted, scope_key=None)
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
            return None  # Nobody has said anything yet: the first item makes the mailbox.
        batch = None if taken is None else _batch(taken)
        if batch is not None:
            self._keep(batch)
        return batch

    def complete(self, batch: Batch, result: Any = None) -> None:
        """All of the batch is done. Raises LeaseLost when it took too long: others may have done it again."""
        with self._ending(batch):
            self._mailboxes.completed(self.key, batch.batch_id, result=result)
        self._tell_completed(batch, result)

    def fail(self, batch: Batch, error: Any, *, retryable: bool = True) -> None:
        """It failed. What has attempts left is due again after about 1, 2, 4, ... seconds. Raises LeaseLost."""
        told = error if isinstance(error, Mapping) else {"message": str(error)}
        with self._ending(batch):
            self._mailboxes.failed(self.key, batch.batch_id, error=told, retryable=retryable)
        self._tell_failed(batch, error, retryable=retryable)

    def heartbeat(self, batch: Batch) -> None:
        """Keep the lease for as long again. Raises LeaseLost: stop, somebody else has the items."""
        try:
            self._mailboxes.heartbeat(self.key, batch.batch_id, lease_seconds=self._lease_seconds)
        except LeaseLost:
            self._lost(batch)
            raise

    def _keep(self, batch: Batch) -> None:
        """Give signs of life for it until it ends."""
        if not self._work_seconds:
            return
        with self._lock:
            self._at_work[batch.batch_id] = (batch, time.monotonic() + self._work_seconds)
            if self._beating is None:
                self._beating = threading.Thread(target=self._beat, name=f"heartbeat {self.key}", daemon=True)
                self._beating.start()

    def _beat(self) -> None:
        """Until nothing is at work, or the client is closed. The next batch begins a thread of its own."""
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
                except Exception as error:  # noqa: BLE001  # the next sign may arrive
                    facts = {"action": "heartbeat_failed", "batch": batch.batch_id, "reason": str(error)}
                    logger.info("A heartbeat did not arrive", extra=facts)

    @contextmanager
    def _ending(self, batch: Batch) -> Iterator[None]:
        """The batch ends now, unless the server cannot be reached: then it is kept, and may be ended again."""
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
        """Somebody else has its items, unless their attempts are used up."""
        self._let_go(batch)
        for item in batch.items:
            try:
                shown = self._mailboxes.item(self.key, str(item.id))
            except ApiError:
                continue  # What became of it cannot be told, and must not hide that the lease was lost.
            if shown["status"] == "failed":
                self._lost_here.add(str(item.id))
                self._tell_one_failed(item, shown["error"])

    def _look_for_lost(self) -> None:
        """Tell of what dead consumers lost since the last look. What was there before the first one is old."""
        now = time.monotonic()
        if not self._when_failed or (self._looked is not None and now - self._looked < self._lease_seconds):
            return
        first, self._looked = self._looked is None, now
        try:
            found = list(
                islice(self._letters.list(kind="mailbox_item", mailbox=self.key, reason="stalled"), 100)
            )
        except (ApiError, ConnectionFailed) as error:
            facts = {"action": "lost_items_unknown", "reason": str(error)}
            logger.info("What other consumers have lost is not known", extra=facts)
            return
        for letter in found:
            item_id, is_new = letter["mailbox_item"], letter["id"] not in self._seen
            self._seen.add(letter["id"])
            if first or not is_new or item_id in self._lost_here:
                self._lost_here.discard(item_id)
                continue
            try:
                shown = self._mailboxes.item(self.key, item_id)
            except ApiError:
                continue
            self._tell_one_failed(_item(shown), letter["error"])


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
    if item.scope_key is not None:
        sent["scope_key"] = item.scope_key
    return sent


def _batch(taken: Record) -> Batch:
    items = tuple(_item(found) for found in taken["items"])
    return Batch(taken.batch_id, items, taken.merged_count, taken.queue_length_after)


def _item(found: Mapping[str, Any]) -> Item:
    known = Item.__dataclass_fields__.keys() - {"run_after", "scope_key"}
    told = {name: value for name, value in found.items() if name in known}
    return Item(**told, scope_key=found.get("scope_key") or None)
