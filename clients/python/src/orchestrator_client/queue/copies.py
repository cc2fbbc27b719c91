"""Records the copies of each item in two queues: which queue has handed them out, which are done, and which are held back.
Copies are recognized by their `client_message_id`. An item without one has no copies.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSet
from enum import Enum
from typing import Any

from orchestrator_client.queue.items import Batch, Item

MOST_REMEMBERED = 100_000


class Side(Enum):
    """One of the two queues."""

    OLD = "old"
    NEW = "new"

    @property
    def other(self) -> Side:
        return Side.NEW if self is Side.OLD else Side.OLD


class Remembered(MutableSet[str]):
    """A set that only keeps the latest names, up to a maximum."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._names: dict[str, None] = {}
        self._most = most

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, value: str) -> None:
        self._names.pop(value, None)
        self._names[value] = None
        if len(self._names) > self._most:
            del self._names[next(iter(self._names))]

    def discard(self, value: str) -> None:
        self._names.pop(value, None)


class Copies:
    """`done` may be a set that outlives the process. Items that were handed out but are not done must be forgotten with the process."""

    def __init__(self, done: MutableSet[str] | None = None) -> None:
        self._done: MutableSet[str] = Remembered() if done is None else done
        self._handed: dict[str, Side] = {}
        self._single: MutableSet[str] = Remembered()
        self.held: dict[Side, list[Batch]] = {Side.OLD: [], Side.NEW: []}

    def fresh(self, items: Iterable[Item], side: Side) -> tuple[Item, ...]:
        """Return the items that this queue may hand out: not done, and not handed out by the other queue."""
        return tuple(item for item in items if self._is_fresh(item.client_message_id, side))

    def all_done(self, items: Iterable[Item]) -> bool:
        return all(item.client_message_id in self._done for item in items)

    def hand_out(self, items: Iterable[Item], side: Side) -> None:
        self._handed |= {item.client_message_id: side for item in items if item.client_message_id}

    def end(self, items: Iterable[Item]) -> None:
        """Record that the items are done, or have failed permanently."""
        for item in items:
            if item.client_message_id:
                self._done.add(item.client_message_id)
                self._handed.pop(item.client_message_id, None)

    def has_none(self, item: Item) -> None:
        """Record that one of the queues probably has no copy of the item."""
        if item.client_message_id:
            self._single.add(item.client_message_id)

    def copied(self, items: Iterable[Item]) -> set[str]:
        """Return the names of the items that should also be in the other queue."""
        return {name for name in names_of(items) if name not in self._single}

    def _is_fresh(self, name: str | None, side: Side) -> bool:
        return name is None or (name not in self._done and self._handed.get(name, side) is side)


def names_of(items: Iterable[Item]) -> set[str]:
    return {item.client_message_id for item in items if item.client_message_id}


def names_in(batches: Iterable[Batch]) -> set[str]:
    return {name for batch in batches for name in names_of(batch.items)}
