"""A timing: the part of a schedule that says when, frozen, with its policies and their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

DEFAULT_TIMEZONE = "America/New_York"
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)  # where intervals without a start count from
LATEST = datetime(2199, 12, 31, 23, 59, 59, tzinfo=UTC)  # bounds every search; nobody plans further ahead


class Repeat(StrEnum):
    """What brings a timing's next time about."""

    ONCE = "once"
    CRON = "cron"
    INTERVAL = "interval"


class DstGap(StrEnum):
    """What becomes of wall times that are left out when clocks go forward."""

    SHIFT = "shift"
    SKIP = "skip"


class DstFold(StrEnum):
    """Which of two equal wall times counts when clocks go back."""

    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When a schedule fires. `reading.read` makes valid ones; whoever makes one by hand vouches for it."""

    repeat: Repeat
    cron: str | None = None
    interval_ms: int | None = None
    timezone: str = DEFAULT_TIMEZONE
    start_at: datetime | None = None
    end_at: datetime | None = None
    dst_gap: DstGap = DstGap.SHIFT
    dst_fold: DstFold = DstFold.FIRST
    jitter_seconds: float = 0
