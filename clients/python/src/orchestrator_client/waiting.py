"""Waiting for an activity: asks again and again, ever more seldom."""

from __future__ import annotations

from collections.abc import Iterator

#: Statuses in which nothing happens any more unless somebody intervenes.
SETTLED = frozenset({"done", "approved", "rejected", "reassigned", "failed", "needs_review", "cancelled"})
#: Statuses in which a person or another activity must act first.
NEEDS_SOMEBODY = frozenset({"awaiting_approval", "awaiting_review", "blocked"})

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0


def pauses(timeout: float, poll_seconds: float | None = None) -> Iterator[float]:
    """The seconds between two looks, until `timeout` is used up: the last look is at its end."""
    left, pause = timeout, poll_seconds or FIRST_PAUSE
    while left > 0:
        yield min(pause, left)
        left -= pause
        pause = poll_seconds or min(LONGEST_PAUSE, pause * 1.5)
