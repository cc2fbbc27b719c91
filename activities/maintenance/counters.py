"""Counters: what happened to all activities, as numbers that only grow, kept for the metrics.

The leader reads the history behind the hot path and adds it up, each event once, so that no activity pays for its metrics and
every process answers with the same numbers. They outlive restarts, retention and tenants that leave.
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

# Reading the counters, for a scrape: one statement, whose rows are as many as there are series.


_READ = Statement.load(Path(__file__).resolve().parent.parent / "sql" / "counters", "read")

#: Role and status; either may be empty.
Labels = tuple[str, str]


@dataclass(slots=True)
class Histogram:
    """What fell into each bucket alone, and the sum of everything."""

    counts: dict[float, int] = field(default_factory=dict)
    total: float = 0.0

    def cumulative(self, bounds: tuple[float, ...]) -> list[tuple[float, int]]:
        """By bound, how many were not above it. Counts of bounds that are no longer used go with the next higher one."""
        return [(bound, sum(count for le, count in self.counts.items() if le <= bound)) for bound in bounds]


@dataclass(frozen=True, slots=True)
class Reading:
    """All counters. `at` is when a leader last looked for something to count, `complete_at` up to when the counters hold all that happened.

    Both in seconds since 1970; 0 before the first time.
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
            found = reading.histograms[row.name].setdefault(labels, Histogram())
            found.counts[row.le] = row.count
            found.total += row.total
        else:
            reading.totals.setdefault(row.name, {})[labels] = row.count
    return reading


# The upper bounds of the buckets. A value falls into the first bucket whose bound is not below it.


INFINITY = float("inf")

#: Seconds: from inline work of milliseconds to the hours that agents take which call back.
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
#: As many attempts as policies usually allow, and more.
ATTEMPTS = (1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 13.0, INFINITY)

#: The counters that are histograms, with their bounds.
HISTOGRAMS = {"wait": DURATIONS, "run": DURATIONS, "attempts": ATTEMPTS}


# Counting: each event of the history is added up once, however many processes do it and whenever they are killed.
#
# Events are numbered by a sequence when they are written, and seen when their transaction commits, which may be in another order. So a
# turn first notes the newest event that it sees. What is up to that event is counted once all transactions that had begun by then are
# over: no event can appear there any more. Numbers and mark move in one transaction, under the mark's lock.
#
# PostgreSQL numbers transactions for the whole server, so one that writes for long holds the counters up even from another database.
# The mark says both when a leader last looked and up to when the counters are complete, so that the two faults can be told apart.


BATCH = 2_000  # events in one transaction
BATCHES = 5  # in one turn: more than the engine writes meanwhile, and less than half a second

_FOLDER = Path(__file__).resolve().parent.parent / "sql" / "counters"
_MARK, _COUNT, _FAILURES, _MOVE, _NOTE = (
    Statement.load(_FOLDER, name) for name in ("mark", "count", "failures", "move", "note")
)
#: Errors that say nothing about the agent: it was not asked, or asks for patience. Those of a governed call besides those of the classes.
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
    """Add up what can be added up now; returns how many events were looked at. Any number of processes may do it at once."""
    counted = 0
    for _ in range(BATCHES):
        advanced, events = _turn()
        counted += events
        if not advanced:
            break
    return counted


def note(name: str, *, role: str = "", status: str = "") -> None:
    """Count one thing that is no event of an activity. In the transaction of what happened, as the system."""
    _NOTE.run({"name": name, "role": role, "status": status, "le": INFINITY}, using=SYSTEM)


def _turn() -> tuple[bool, int]:
    """One batch. Whether there may be more to do, and how many events it held."""
    with transaction.atomic(using=SYSTEM):
        found = _MARK.run({}, using=SYSTEM)
        if not found:
            return False, 0  # another process is at it
        mark = found[0]
        until = min(mark.seen, mark.counted + BATCH) if mark.over else mark.counted
        if until > mark.counted:
            stretch = {"after": mark.counted, "until": until}
            _COUNT.run(stretch | _WORDS, using=SYSTEM)
            _FAILURES.run(stretch | {"running": _WORDS["running"], "excused": EXCUSED}, using=SYSTEM)
        is_complete = until == mark.seen
        newer = is_complete and mark.newest > mark.seen
        seen, barrier = (mark.newest, mark.transaction) if newer else (mark.seen, mark.barrier)
        moved = (until, seen) != (mark.counted, mark.seen)
        if moved or mark.stale:
            place = {"counted": until, "seen": seen, "barrier": barrier}
            _MOVE.run(place | {"whole": is_complete, "newer": newer}, using=SYSTEM)
        return moved, until - mark.counted
