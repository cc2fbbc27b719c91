"""The calendar of the coming weeks: which schedules fire on each day, by UTC's days, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import islice

from pipelines import timing
from pipelines.models import Schedule
from pipelines.timing import Timing

WEEKS = 4
COUNTED = 24  # times of one schedule on one day; more are "many"
NAMED = 4  # schedules on one day; the others are counted
MOST_SCHEDULES = 60  # that the calendar looks ahead for, by name
DAY = timedelta(days=1)
INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Mark:
    """A schedule on a day: its first time, and how often it fires."""

    schedule: Schedule
    first: str
    times: int

    @property
    def often(self) -> str:
        return (
            "" if self.times == 1 else f"\u00d7{self.times}" if self.times <= COUNTED else f"\u00d7{COUNTED}+"
        )


@dataclass(slots=True)
class Day:
    """One day. What is not named is counted in `others`."""

    on: date
    is_today: bool
    is_past: bool
    marks: list[Mark] = field(default_factory=list)
    others: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.marks


@dataclass(frozen=True, slots=True)
class Week:
    days: Sequence[Day]

    @property
    def begins(self) -> date:
        return self.days[0].on


def weeks_of(schedules: Sequence[tuple[Schedule, Timing]], *, now: datetime) -> list[Week]:
    """Whole weeks, from the Monday before now. What has passed of today is left out."""
    today = now.astimezone(UTC).date()
    monday = today - timedelta(days=today.weekday())
    days = [
        Day(monday + number * DAY, number == today.weekday(), number < today.weekday())
        for number in range(7 * WEEKS)
    ]
    for schedule, plan in schedules[:MOST_SCHEDULES]:
        for day in days[today.weekday() :]:
            _mark(day, schedule, plan, now)
    for day in days:
        day.marks.sort(key=lambda mark: (mark.first, mark.schedule.name))
        day.others = max(0, len(day.marks) - NAMED)
        del day.marks[NAMED:]
    return [Week(days[start : start + 7]) for start in range(0, len(days), 7)]


def _mark(day: Day, schedule: Schedule, plan: Timing, now: datetime) -> None:
    begin = datetime(day.on.year, day.on.month, day.on.day, tzinfo=UTC)
    after, until = max(begin - INSTANT, now), begin + DAY - INSTANT
    found = list(islice(timing.times(plan, after=after, until=until), COUNTED + 1))
    if found:
        day.marks.append(Mark(schedule, f"{found[0]:%H:%M}", len(found)))
