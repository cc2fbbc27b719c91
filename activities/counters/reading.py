"""Reading the counters, for a scrape: one statement, whose rows are as many as there are series."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from activities.counters.bounds import HISTOGRAMS
from tenants.context import SYSTEM
from tenants.sql import Statement

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


def read() -> Reading:
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
