"""How two queues differ that should hold the same: what each gave is compared by content, whatever its order inside of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator_client.queue.items import Batch, Item


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
