"""The first times at which the schedules of these tests fire."""

from __future__ import annotations

from tests.scheduling import (
    HOUR,
    NOON,
)

FIRST, SECOND, THIRD = (NOON + hour * HOUR for hour in (1, 2, 3))
