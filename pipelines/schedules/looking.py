"""Looking: which times of a schedule have come since the last look, and which of them were missed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from pipelines import timing
from pipelines.models import Schedule
from pipelines.schedules import plans
from pipelines.timing import Missed, Timing

INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Look:
    """What has come of a schedule since the last look."""

    schedule: Schedule
    timing: Timing
    until: datetime  # up to here everything is dealt with by this look
    missed: Missed

    @property
    def key(self) -> UUID:
        return self.schedule.pk


def look(schedule: Schedule, now: datetime, earliest: datetime) -> Look:
    """`earliest` is when a time may have come at the earliest to be on time."""
    plan = plans.timing_of(schedule)
    since = schedule.looked_until or _beginning(schedule)
    until = _come(schedule, plan, since, now)
    grace = _on_time(schedule, plan, since, until, earliest)
    passed = timing.missed(plan, last=since, now=until, catch_up=plans.catch_up_of(schedule), grace=grace)
    return Look(schedule, plan, until, passed)


def _beginning(schedule: Schedule) -> datetime:
    """A time that was given has not passed unseen, however late the schedule was made; of others none is before it was made."""
    if schedule.repeat == "once" and schedule.start_at is not None:
        return schedule.start_at - INSTANT
    return schedule.created_at


def _come(schedule: Schedule, plan: Timing, since: datetime, now: datetime) -> datetime:
    """Up to where times have come: the jitter of the first one after that has not passed."""
    if not schedule.jitter_seconds:
        return now
    earliest = max(since, now - timedelta(seconds=schedule.jitter_seconds))
    for nominal in timing.times(plan, after=earliest, until=now):
        if plans.jittered(schedule, nominal) > now:
            return nominal - INSTANT
    return now


def _on_time(
    schedule: Schedule, plan: Timing, since: datetime, until: datetime, earliest: datetime
) -> timedelta:
    """How far back from `until` the first time lies that came at `earliest` or later."""
    after = max(since, earliest - timedelta(seconds=schedule.jitter_seconds) - INSTANT)
    for nominal in timing.times(plan, after=after, until=until):
        if plans.jittered(schedule, nominal) >= earliest:
            return until - nominal + INSTANT
    return timedelta()
