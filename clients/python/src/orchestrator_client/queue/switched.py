"""Migrates from an old queue to a new one in phases, while work continues.

| phase      | written to    | read from                            |
|------------|---------------|--------------------------------------|
| dual_write | both          | old                                  |
| shadow     | both          | old; new is read too, and compared   |
| cutover    | both          | new; old when new fails or is empty  |
| new_only   | new           | new                                  |

No item is handed out twice: both copies of an item have the same `client_message_id`, and when one of them is done, the other is removed
from its queue. Until then one copy stays in the authoritative queue, so a process that dies loses nothing. Errors of the other queue are
counted and logged, and have no other effect.

All items must be enqueued through the switch, and only one process at a time may consume a session. Another process can take over if
`done` is a set that outlives the process; otherwise items that are done in one queue, but not yet removed from the other, are delivered
again.

The batches of both queues are compared by content; the order within a batch does not matter (`Differences`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableSet, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import uuid4

from orchestrator_client.queue.copies import Copies, Side, names_in, names_of
from orchestrator_client.queue.items import Batch, Hooks, Item, Queue, item_of

T = TypeVar("T")

PHASES = ("dual_write", "shadow", "cutover", "new_only")
MOST_LOOKS = 20  # batches of the other queue that are searched for copies at a time
BEAT_SECONDS = 10.0  # how often the leases of held batches are extended

logger = logging.getLogger(__name__)


class SwitchedQueue(Hooks):
    """Both queues have the interface of `Queue`. Register hooks here, because hooks of the two queues are also called for copies."""

    def __init__(
        self,
        old: Queue,
        new: Queue,
        phase: str = "dual_write",
        *,
        done: MutableSet[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.differences = Differences()
        self.phase = phase
        self._queues: dict[Side, Queue] = {Side.OLD: old, Side.NEW: new}
        self._copies = Copies(done)
        self._open: dict[str, tuple[Side, Batch]] = {}
        self._lock = threading.RLock()
        self._clock, self._beaten = clock, clock()

    @property
    def phase(self) -> str:
        """The current phase. It can be changed at any time, forwards and back."""
        return self._phase

    @phase.setter
    def phase(self, phase: str) -> None:
        if phase not in PHASES:
            raise ValueError(f"{phase!r} is not a phase. The phases are {', '.join(PHASES)}.")
        self._phase = phase

    def enqueue(self, item: Any, **options: Any) -> str | None:
        """Enqueue an item. Returns its id in the authoritative queue, or None if that did not accept it; then the other does not get it."""
        wanted = item_of(item, **options)
        if wanted.client_message_id is None:
            wanted = replace(wanted, client_message_id=str(uuid4()))
        first = self._first
        try:
            accepted = self._queues[first].enqueue(wanted)
        except Exception as error:
            if self.phase != "cutover":
                raise
            self._failed(first, "enqueue", error)
            self._copies.has_none(wanted)
            return self._queues[Side.OLD].enqueue(wanted)
        if accepted is not None and self.phase != "new_only":
            went_well, copy = self._tried(first.other, "enqueue", lambda queue: queue.enqueue(wanted))
            self.differences.refused += went_well and copy is None
            if copy is None:
                self._copies.has_none(wanted)
        return accepted

    def try_dequeue(self, blocked_reason: str | None = None) -> Batch | None:
        """Take the next batch, from the queue that the phase determines."""
        if blocked_reason:
            return None
        with self._lock:
            self._keep_leases()
            if self.phase == "cutover":
                return self._read_new_or_old()
            batch = self._read(self._first)
            if self.phase == "shadow":
                self._tried(Side.NEW, "compare", lambda _: self._shadow(batch))
            return batch

    def complete(self, batch: Batch, result: Any = None) -> None:
        """Complete the batch, and remove its copies from the other queue."""
        with self._lock:
            side, whole = self._open.get(batch.batch_id, (self._first, batch))
            self._queues[side].complete(whole, result)
            self._open.pop(batch.batch_id, None)
            self._end(batch, side)
        self._tell_completed(batch, result)

    def fail(self, batch: Batch, error: Any, *, retryable: bool = True) -> None:
        """Report that the batch failed. Its queue retries it; the copies in the other queue are removed after it has failed permanently."""
        with self._lock:
            side, whole = self._open.get(batch.batch_id, (self._first, batch))
            self._queues[side].fail(whole, error, retryable=retryable)
            self._open.pop(batch.batch_id, None)
            final = [item for item in batch.items if not retryable or item.attempts >= item.max_attempts]
            self._end(replace(batch, items=tuple(final)), side)
        self._tell_failed(batch, error, retryable=retryable)

    @property
    def _first(self) -> Side:
        """The authoritative queue."""
        return Side.OLD if self.phase in ("dual_write", "shadow") else Side.NEW

    def _read_new_or_old(self) -> Batch | None:
        """Read the new queue, or the old one if the new one fails or is empty. Raises only if both fail."""
        went_well, batch = self._tried(Side.NEW, "read", lambda _: self._read(Side.NEW))
        if batch is not None:
            return batch
        if went_well:
            _, batch = self._tried(Side.OLD, "read", lambda _: self._read(Side.OLD))
        else:
            batch = self._read(Side.OLD)
        self.differences.fallbacks += batch is not None
        return batch

    def _read(self, side: Side) -> Batch | None:
        """Return the next batch with items that may be handed out. Held batches come first."""
        for whole in self._batches(side):
            fresh = self._copies.fresh(whole.items, side)
            self.differences.withheld += len(whole.items) - len(fresh)
            if fresh:
                self._copies.hand_out(fresh, side)
                self._open[whole.batch_id] = (side, whole)
                return replace(whole, items=fresh, merged_count=len(fresh))
            self._hold_or_end(whole, side)
        return None

    def _batches(self, side: Side) -> Iterator[Batch]:
        held, self._copies.held[side] = self._copies.held[side], []
        while held:
            batch = held.pop(0)
            if self._copies.fresh(batch.items, side):
                self._copies.held[side] += held
                held = []
                yield batch
                return
            self._hold_or_end(batch, side)
        for _ in range(MOST_LOOKS):
            found = self._queues[side].try_dequeue()
            if found is None:
                return
            yield found

    def _shadow(self, batch: Batch | None) -> None:
        """Read the same items from the new queue, and record the differences. The items are held until they are done."""
        wanted = self._copies.copied(batch.items) if batch else set()
        given = [held for held in self._copies.held[Side.NEW] if wanted & names_of(held.items)]
        given += self._look_for(wanted - names_in(given), Side.NEW, at_least_once=not given)
        if batch is None and not given:
            return
        found = compare(batch, given)
        self.differences.compared += 1
        self.differences.equal += found.is_equal
        self.differences.missing += len(found.missing)
        self.differences.ahead += len(found.ahead)
        self.differences.regrouped += not (found.is_equal or found.missing or batch is None)
        if not found.is_equal:
            facts = {"missing": [item.client_message_id for item in found.missing], "ahead": len(found.ahead)}
            logger.warning("The queues differ", extra={"action": "queues_differ", **facts})

    def _look_for(self, names: set[str], side: Side, *, at_least_once: bool = False) -> list[Batch]:
        """Take batches from a queue until these items were found. Batches are held, or completed if all their items are done."""
        given: list[Batch] = []
        for _ in range(MOST_LOOKS):
            if not (names or (at_least_once and not given)):
                break
            found = self._queues[side].try_dequeue()
            if found is None:
                break
            names = names - names_of(found.items)
            given += [] if self._copies.all_done(found.items) else [found]
            self._hold_or_end(found, side)
        return given

    def _end(self, batch: Batch, side: Side) -> None:
        """Record that the items are done, and remove their copies from the other queue."""
        copied = self._copies.copied(batch.items)
        self._copies.end(batch.items)
        if self.phase != "new_only" and copied:
            self._tried(side.other, "retire", lambda _: self._retire(copied, side.other))

    def _retire(self, names: set[str], side: Side) -> None:
        held, self._copies.held[side] = self._copies.held[side], []
        for batch in held:
            self._hold_or_end(batch, side)
        self._look_for(names - names_in(held), side)

    def _hold_or_end(self, batch: Batch, side: Side) -> None:
        if self._copies.all_done(batch.items):
            self._tried(side, "complete", lambda queue: queue.complete(batch))
        else:
            self._copies.held[side].append(batch)

    def _keep_leases(self) -> None:
        """Extend the leases of held batches, so that they are not delivered again. Batches whose lease is lost are dropped, because they
        are."""
        if self._clock() - self._beaten < BEAT_SECONDS:
            return
        self._beaten = self._clock()
        for side, held in self._copies.held.items():
            held[:] = [batch for batch in held if self._kept(side, batch)]

    def _kept(self, side: Side, batch: Batch) -> bool:
        beat: Any = getattr(self._queues[side], "heartbeat", None)
        return beat is None or self._tried(side, "beat", lambda _: beat(batch))[0]

    def _tried(self, side: Side, what: str, action: Callable[[Queue], T]) -> tuple[bool, T | None]:
        """Return whether the action succeeded, and its result. Errors here must not affect the authoritative queue."""
        try:
            return True, action(self._queues[side])
        except Exception as error:  # noqa: BLE001 - whatever a queue raises
            self._failed(side, what, error)
            return False, None

    def _failed(self, side: Side, what: str, error: Exception) -> None:
        self.differences.failures += 1
        facts = {"action": "queue_failed", "what": what, "queue": side.value, "error": type(error).__name__}
        logger.warning("A queue of the switch failed", extra=facts)


@dataclass
class Differences:
    """Counts since the switch was created.

    `compared`: batches of the old queue that were compared. `equal`: those that were equal. `regrouped`: those whose items the new queue
    returned in other batches. `missing`: items that the new queue did not return. `ahead`: items that it returned before the old queue.
    `withheld`: copies that were not handed out again. `fallbacks` to the old queue after the cutover. `failures` of the other queue.
    `refused`: items that the other queue did not accept.
    """

    compared: int = 0
    equal: int = 0
    regrouped: int = 0
    missing: int = 0
    ahead: int = 0
    withheld: int = 0
    fallbacks: int = 0
    failures: int = 0
    refused: int = 0


@dataclass(frozen=True)
class Comparison:
    """The comparison of a batch of the old queue with the batches of the new one."""

    missing: tuple[Item, ...]
    ahead: tuple[Item, ...]
    same_batch: bool

    @property
    def is_equal(self) -> bool:
        return self.same_batch and not self.missing and not self.ahead


def compare(old: Batch | None, new: Sequence[Batch]) -> Comparison:
    """Compare items one to one: an item that occurs twice must occur twice in the other queue."""
    expected = old.items if old else ()
    given = [item for batch in new for item in batch.items]
    same = len(new) == (1 if old else 0) and _counted(expected) == _counted(given)
    return Comparison(_without(expected, given), _without(given, expected), same)


def _without(items: Iterable[Item], others: Iterable[Item]) -> tuple[Item, ...]:
    left = _counted(others)
    found = []
    for item in items:
        content = item.fingerprint()
        if left[content]:
            left[content] -= 1
        else:
            found.append(item)
    return tuple(found)


def _counted(items: Iterable[Item]) -> Counter[str]:
    return Counter(item.fingerprint() for item in items)
