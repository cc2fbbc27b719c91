"""Leads from an old queue to a new one, a phase at a time, while work goes on.

| phase      | written to    | read from                            |
|------------|---------------|--------------------------------------|
| dual_write | both          | old                                  |
| shadow     | both          | old; new is read too, and compared   |
| cutover    | both          | new; old when new fails or is empty  |
| new_only   | new           | new                                  |

Nothing is handed out twice: both copies of an item have the same `client_message_id`, and once one of them is done, the
other is taken out of its queue unseen. One copy stays until then, so a process that dies loses nothing that the queue which
counts keeps. What goes wrong with the other queue is counted and logged, and changes nothing.

Everything must be enqueued through the switch, and one process at a time consumes a session. It may begin anew in another
process: give it a `done` that outlives the process, or what was done in one queue and not yet taken out of the other comes again.

What each queue gave is compared by content, whatever its order inside of a batch (`Differences`).
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
MOST_LOOKS = 20  # batches of the other queue that are looked through for copies at a time
BEAT_SECONDS = 10.0  # the leases of what is held back are kept this often

logger = logging.getLogger(__name__)


class SwitchedQueue(Hooks):
    """Both queues have the interface of `Queue`. Register hooks here: those of the two queues hear of copies as well."""

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
        """May be set at any time, forwards and back."""
        return self._phase

    @phase.setter
    def phase(self, phase: str) -> None:
        if phase not in PHASES:
            raise ValueError(f"{phase!r} is no phase: {', '.join(PHASES)}.")
        self._phase = phase

    def enqueue(self, item: Any, **options: Any) -> str | None:
        """The id in the queue that counts, or None when that did not accept it; then the other does not get it either."""
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
        """What is to be done next, as the phase says."""
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
        """All of the batch is done; its copies are taken out of the other queue."""
        with self._lock:
            side, whole = self._open.get(batch.batch_id, (self._first, batch))
            self._queues[side].complete(whole, result)
            self._open.pop(batch.batch_id, None)
            self._end(batch, side)
        self._tell_completed(batch, result)

    def fail(self, batch: Batch, error: Any, *, retryable: bool = True) -> None:
        """It failed. Its queue tries it again; the copies in the other go once it has failed for good."""
        with self._lock:
            side, whole = self._open.get(batch.batch_id, (self._first, batch))
            self._queues[side].fail(whole, error, retryable=retryable)
            self._open.pop(batch.batch_id, None)
            final = [item for item in batch.items if not retryable or item.attempts >= item.max_attempts]
            self._end(replace(batch, items=tuple(final)), side)
        self._tell_failed(batch, error, retryable=retryable)

    @property
    def _first(self) -> Side:
        """The queue that counts."""
        return Side.OLD if self.phase in ("dual_write", "shadow") else Side.NEW

    def _read_new_or_old(self) -> Batch | None:
        """From the old queue when the new one fails or is empty. Only both failing is a failure."""
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
        """The next batch with something that may be handed out; of what was held back first."""
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
        """Read the new queue for the same items, and note how it differs. What it gives stays with it until it is done."""
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
        """Take from a queue until these have come; what comes is held back, or ended if all of it is done."""
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
        """These are done: take their copies out of the other queue."""
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
        """What is held back must not come again meanwhile. What is lost all the same is let go: it will."""
        if self._clock() - self._beaten < BEAT_SECONDS:
            return
        self._beaten = self._clock()
        for side, held in self._copies.held.items():
            held[:] = [batch for batch in held if self._kept(side, batch)]

    def _kept(self, side: Side, batch: Batch) -> bool:
        beat: Any = getattr(self._queues[side], "heartbeat", None)
        return beat is None or self._tried(side, "beat", lambda _: beat(batch))[0]

    def _tried(self, side: Side, what: str, action: Callable[[Queue], T]) -> tuple[bool, T | None]:
        """Whether it went well, and what came of it: nothing that goes wrong here may harm the queue that counts."""
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
    """Counted since the switch began.

    `compared` batches of the old queue: `equal` ones, and those `regrouped`, whose items the new queue gives in other
    batches. `missing` items that the new queue does not give, `ahead` ones that it gives before the old does.
    `withheld` copies that were not handed out again; `fallbacks` to the old queue after the cutover; `failures` of the
    queue that does not count, and items that it did not take (`refused`).
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
    """One batch of the old queue beside what the new one gave."""

    missing: tuple[Item, ...]
    ahead: tuple[Item, ...]
    same_batch: bool

    @property
    def is_equal(self) -> bool:
        return self.same_batch and not self.missing and not self.ahead


def compare(old: Batch | None, new: Sequence[Batch]) -> Comparison:
    """Items are matched one to one: of two equal ones both must be there twice."""
    expected = old.items if old else ()
    given = [item for batch in new for item in batch.items]
    same = len(new) == (1 if old else 0) and _counted(expected) == _counted(given)
    return Comparison(_without(expected, given), _without(given, expected), same)


def _without(items: Iterable[Item], others: Iterable[Item]) -> tuple[Item, ...]:
    left = _counted(others)
    found = []
    for item in items:
        said = item.fingerprint()
        if left[said]:
            left[said] -= 1
        else:
            found.append(item)
    return tuple(found)


def _counted(items: Iterable[Item]) -> Counter[str]:
    return Counter(item.fingerprint() for item in items)
