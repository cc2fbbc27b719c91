"""Timings of schedules and their firings, for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pipelines.timing import (
    Timing,
    read,
    times,
)

HOUR = timedelta(hours=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def repeating(cron: str, timezone: str = "America/New_York", **more: Any) -> Timing:
    return read({"repeat": "repeating", "cron": cron, "timezone": timezone, **more})


def every(milliseconds: int, **more: Any) -> Timing:
    return read({"repeat": "repeating", "interval_ms": milliseconds, **more})


def on(timing: Timing, day: str, days: int = 1) -> list[str]:
    """Return the firings from midnight of that day in New York (in summer) on, in UTC."""
    start = utc(day) + 4 * HOUR
    return [f"{moment:%d %H:%M}" for moment in times(timing, after=start, until=start + timedelta(days=days))]


def first(timing: Timing, after: str, limit: int = 3) -> list[str]:
    return [f"{moment:%Y-%m-%dT%H:%M:%S}" for moment in times(timing, after=utc(after), limit=limit)]
