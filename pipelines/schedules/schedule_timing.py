"""A schedule's row as `pipelines.timing` understands it, and the other way round: the times that are noted on it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pipelines import timing
from pipelines.models import Schedule
from pipelines.timing import CatchUp, Timing


def timing_of(schedule: Schedule) -> Timing:
    """Raises `timing.TimingError` for a row that was changed past its checks."""
    return timing.read(keys_of(schedule))


def keys_of(schedule: Schedule) -> dict[str, Any]:
    """The keys that say when, as the API has them."""
    found = {
        "repeat": schedule.repeat,
        "cron": schedule.cron or None,
        "interval_ms": schedule.interval_ms,
        "timezone": schedule.timezone,
        "start_at": schedule.start_at,
        "end_at": schedule.end_at,
        "dst_gap": schedule.dst_gap,
        "dst_fold": schedule.dst_fold,
        "jitter_seconds": schedule.jitter_seconds or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def catch_up_of(schedule: Schedule) -> CatchUp:
    """How many missed times are made up for. What nobody can read makes up for none."""
    up_to = schedule.catch_up.get("up_to") if isinstance(schedule.catch_up, dict) else None
    return CatchUp(up_to if isinstance(up_to, int) and up_to > 0 else 0)


def jittered(schedule: Schedule, nominal: datetime) -> datetime:
    """When a nominal time comes: everybody computes the same."""
    return timing.jittered(nominal, schedule.jitter_seconds, str(schedule.pk))


def next_of(schedule: Schedule, *, after: datetime) -> datetime | None:
    """When the first nominal time later than `after` comes, or None when nothing follows.

    Times come in the order of their names: one whose jitter is shorter than that of the one before waits for it.
    """
    nominal = next(timing.times(timing_of(schedule), after=after, limit=1), None)
    return None if nominal is None else jittered(schedule, nominal)
