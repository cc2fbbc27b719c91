"""Counters for the metrics: totals over the history of all activities, which never decrease.

The leader reads the history in the background and adds up each event once. So metrics cost the activities nothing, and every process
reports the same numbers. The counters survive restarts, retention and the off-boarding of tenants.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import transaction

from activities import states
from agents.exceptions import RetryableAgentError
from agents.governor.calling import BREAKER_OPEN, PROVIDER_LIMIT, UNKNOWN
from tenants.context import SYSTEM
from tenants.sql import Statement

# Reading the counters, with one statement that returns one row per time series.


_READ = Statement.load(Path(__file__).resolve().parent.parent / "sql" / "counters", "read")

#: Role and status; either may be empty.
Labels = tuple[str, str]


@dataclass(slots=True)
class Histogram:
    """The count of each single bucket, and the sum of all values."""

    counts: dict[float, int] = field(default_factory=dict)
    total: float = 0.0

    def cumulative(self, bounds: tuple[float, ...]) -> list[tuple[float, int]]:
        """Return by bound the number of values up to it. Counts of abandoned bounds are added to the next higher one."""
        return [(bound, sum(count for le, count in self.counts.items() if le <= bound)) for bound in bounds]


@dataclass(frozen=True, slots=True)
class Reading:
    """All counters. `at` is when a leader last tried to count; the counters contain all events until `complete_at`.

    Both are Unix times; 0 before the first time.
    """

    at: float
    complete_at: float
    totals: dict[str, dict[Labels, int]]
    histograms: dict[str, dict[Labels, Histogram]]


def read_counters() -> Reading:
    rows = _READ.run({}, using=SYSTEM)
    at, complete_at = rows[0].at or 0.0, rows[0].complete_at or 0.0
    reading = Reading(at, complete_at, totals={}, histograms={name: {} for name in HISTOGRAMS})
    for row in rows:
        if row.name is None:
            continue
        labels = (row.role, row.status)
        if row.name in HISTOGRAMS:
            histogram = reading.histograms[row.name].setdefault(labels, Histogram())
            histogram.counts[row.le] = row.count
            histogram.total += row.total
        else:
            reading.totals.setdefault(row.name, {})[labels] = row.count
    return reading


# The upper bounds of the buckets. A value belongs to the first bucket whose bound is not below it.


INFINITY = float("inf")

#: Seconds: from milliseconds of inline agents to hours of agents that call back.
DURATIONS = (
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
    INFINITY,
)
#: Attempts: more than retry policies usually allow.
ATTEMPTS = (1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 13.0, INFINITY)

#: The counters that are histograms, with their bounds.
HISTOGRAMS = {"wait": DURATIONS, "run": DURATIONS, "attempts": ATTEMPTS}


# Counting: each event of the history is counted once, even if several processes count or are killed.
#
# A sequence numbers events when they are written, but they become visible when their transaction commits, which may be in another order.
# So a turn first notes the newest visible event. The events up to it are counted after all transactions of that moment have ended, because
# no earlier event can appear then. Counters and mark change in one transaction, under the mark's lock.
#
# PostgreSQL numbers transactions per server, so a long writing transaction delays the counters even if it is in another database.
# Therefore the mark stores both when a leader last tried and until when the counters are complete: this tells the two problems apart.


BATCH = 2_000  # events in one transaction
# Per run of the job: more than the engine writes between two runs, and less than half a second of work.
BATCHES = 5

_FOLDER = Path(__file__).resolve().parent.parent / "sql" / "counters"
_MARK, _COUNT, _FAILURES, _MOVE, _NOTE = (
    Statement.load(_FOLDER, name) for name in ("mark", "count", "failures", "move", "note")
)
#: Errors that do not count as failures of the agent: it was not called, or asked to wait.
EXCUSED = sorted(
    {PROVIDER_LIMIT, BREAKER_OPEN, UNKNOWN}
    | {each.code for each in RetryableAgentError.__subclasses__() if not each.uses_attempt}
)

_WORDS: dict[str, Any] = {
    "settled": sorted(states.SETTLED),
    "running": sorted(states.RUNNING),
    "durations": list(DURATIONS),
    "attempts": list(ATTEMPTS),
}


def count_fresh() -> int:
    """Count the events that can be counted now. Returns the number of events read. Safe in any number of processes at once."""
    counted = 0
    for _ in range(BATCHES):
        advanced, events = _count_batch()
        counted += events
        if not advanced:
            break
    return counted


def note(name: str, *, role: str = "", status: str = "") -> None:
    """Count something that is not an event of an activity. Call it in the transaction of that change, in a `system_scope`."""
    _NOTE.run({"name": name, "role": role, "status": status, "le": INFINITY}, using=SYSTEM)


def _count_batch() -> tuple[bool, int]:
    """Count one batch. Returns whether the mark moved, so that there may be more, and the number of events."""
    with transaction.atomic(using=SYSTEM):
        rows = _MARK.run({}, using=SYSTEM)
        if not rows:
            return False, 0  # another process holds the lock
        mark = rows[0]
        until = min(mark.seen, mark.counted + BATCH) if mark.over else mark.counted
        if until > mark.counted:
            events = {"after": mark.counted, "until": until}
            _COUNT.run(events | _WORDS, using=SYSTEM)
            _FAILURES.run(events | {"running": _WORDS["running"], "excused": EXCUSED}, using=SYSTEM)
        is_complete = until == mark.seen
        newer = is_complete and mark.newest > mark.seen
        seen, barrier = (mark.newest, mark.transaction) if newer else (mark.seen, mark.barrier)
        moved = (until, seen) != (mark.counted, mark.seen)
        if moved or mark.stale:
            place = {"counted": until, "seen": seen, "barrier": barrier}
            _MOVE.run(place | {"whole": is_complete, "newer": newer}, using=SYSTEM)
        return moved, until - mark.counted
