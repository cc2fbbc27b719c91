"""Items of a queue with their defaults, batches, and the interface of all queues."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from typing import Any, Protocol

#: The kinds of items. A `message` has its content, the others have a text.
KINDS = ("message", "task_notification", "approval_result", "overlay_action")
ALONE = "task_notification"  # each is delivered by itself

#: Of the old interface's payload; the address of the queue says these already, or the server does.
_TOLD_OTHERWISE = frozenset({"agent_id", "conversation_id", "enqueued_at"})
_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")


@dataclass(frozen=True, kw_only=True)
class Item:
    """An item of a queue. `priority` is 0 to 9, lower is more urgent; times have a time zone.
    `client_message_id` is the sender's id: a second item with the same id counts as a repetition.
    """

    kind: str = "message"
    content: Any = None
    text: str | None = None
    source: str = "user"
    priority: int = 5
    run_after: datetime | None = None
    max_attempts: int = 3
    backoff_multiplier: float = 2
    max_backoff_ms: int = 300_000
    is_coalescable: bool = True
    client_message_id: str | None = None
    scope_key: str | None = None
    #: Set by the queue.
    id: str | None = None
    attempts: int = 0

    def fingerprint(self) -> str:
        """Return its content as text. Items with the same fingerprint are copies of each other."""
        content = [self.kind, self.content, self.text or "", self.client_message_id]
        return json.dumps(content, sort_keys=True, default=str)


@dataclass(frozen=True)
class Batch:
    """Items that are delivered together. `queue_len_after` is the number of other items that were due."""

    batch_id: str
    items: tuple[Item, ...]
    merged_count: int
    queue_len_after: int


class Queue(Protocol):
    """The interface of every queue."""

    def enqueue(self, item: Any, **options: Any) -> str | None:
        """Enqueue an item. Returns its id, or None if it was not accepted."""

    def try_dequeue(self, blocked_reason: str | None = None) -> Batch | None:
        """Take the next batch. Returns None if there is none, or if the consumer is blocked."""

    def complete(self, batch: Batch, result: Any = None) -> None:
        """Complete the batch."""

    def fail(self, batch: Batch, error: Any, *, retryable: bool = True) -> None:
        """Report that the batch failed. Items with attempts left are delivered again later."""


def item_of(given: Any, **options: Any) -> Item:
    """Return an item with its defaults, from an Item, a text, or a mapping with names in snake_case or camelCase.
    Raises ValueError for an unknown kind or field.
    """
    if isinstance(given, Item):
        named = {field.name: getattr(given, field.name) for field in fields(Item)}
    elif isinstance(given, Mapping):
        named = {snake_case(name): value for name, value in given.items()}
    else:
        named = {"content": given}
    named |= {snake_case(name): value for name, value in options.items()}
    named = {
        name: value for name, value in named.items() if name not in _TOLD_OTHERWISE and value is not None
    }
    unknown = named.keys() - {field.name for field in fields(Item)}
    if unknown:
        raise ValueError(f"An item has no {', '.join(sorted(unknown))}.")
    named["run_after"] = moment_of(named.get("run_after"))
    return _checked(Item(**named))


def _checked(item: Item) -> Item:
    if item.kind not in KINDS:
        raise ValueError(f"{item.kind!r} is no kind of item: {', '.join(KINDS)}.")
    if not 0 <= item.priority <= 9:
        raise ValueError("priority is 0 to 9.")
    return replace(item, is_coalescable=False) if item.kind == ALONE else item


def moment_of(given: Any) -> datetime | None:
    """Return a time from a datetime, a text, or milliseconds since 1970."""
    if given is None or isinstance(given, datetime):
        moment = given
    elif isinstance(given, str):
        moment = datetime.fromisoformat(given.replace("Z", "+00:00"))
    else:
        moment = datetime.fromtimestamp(given / 1000, timezone.utc)
    if moment is not None and moment.tzinfo is None:
        raise ValueError("run_after needs a time zone.")
    return moment


def snake_case(name: str) -> str:
    return _CAPITAL.sub(r"_\1", name).lower()


Hook = Callable[[Item, Any], None]

logger = logging.getLogger(__name__)


class Hooks:
    """Hooks of a queue. Both methods can be used as decorators."""

    def __init__(self) -> None:
        self._when_completed: list[Hook] = []
        self._when_failed: list[Hook] = []

    def on_task_completed(self, hook: Hook) -> Hook:
        """Call `hook(item, result)` for each completed item."""
        self._when_completed.append(hook)
        return hook

    def on_task_failed(self, hook: Hook) -> Hook:
        """Call `hook(item, error)` for each item that failed permanently, also with a lost lease, but not for items that are retried."""
        self._when_failed.append(hook)
        return hook

    def _tell_completed(self, batch: Batch, result: Any) -> None:
        for item in batch.items:
            _tell(self._when_completed, item, result)

    def _tell_failed(self, batch: Batch, error: Any, *, retryable: bool) -> None:
        for item in batch.items:
            if not retryable or item.attempts >= item.max_attempts:
                _tell(self._when_failed, item, error)

    def _tell_one_failed(self, item: Item, error: Any) -> None:
        _tell(self._when_failed, item, error)


def _tell(hooks: list[Hook], item: Item, outcome: Any) -> None:
    for hook in hooks:
        try:
            hook(item, outcome)
        except Exception:
            logger.exception(
                "A hook of a queue failed", extra={"action": "queue_hook_failed", "item": item.id}
            )
