"""A breaker of one process: after a failure nobody asks again for a while, so that a frozen server slows
nobody.
"""

from __future__ import annotations

import time


class Breaker:
    """Open for `seconds` after `trip`. Threads may share it: at worst two of them notice the same failure."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._closed_again = 0.0

    def is_open(self) -> bool:
        return time.monotonic() < self._closed_again

    def trip(self) -> None:
        self._closed_again = time.monotonic() + self._seconds

    def reset(self) -> None:
        self._closed_again = 0.0
