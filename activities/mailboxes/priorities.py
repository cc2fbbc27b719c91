"""A mailbox's priorities, 0 to 9 with 5 in the middle, on the one scale of activities."""

from __future__ import annotations

from activities.states import BANDS

MOST = 9


def stored_priority(priority: int) -> int:
    """0 is urgent, 5 normal, 9 background; between them in proportion."""
    low, middle, high = BANDS["urgent"], BANDS["normal"], BANDS["background"]
    if priority <= 5:
        return low + (middle - low) * priority // 5
    return middle + (high - middle) * (priority - 5) // (MOST - 5)
