"""Calendar months, in UTC wherever the work is done: one month is one period.

Pure: nothing here looks at a clock. Whoever asks says what day it is.
"""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Self

# The clock of the worker that starts a month may be behind the clock of the beat that sent it. Without this a job of midnight
# could find itself in the month that has just ended.
CLOCKS_DIFFER = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Month:
    """A month by its first and its last day."""

    starts_on: date
    ends_on: date

    @classmethod
    def of(cls, day: date) -> Self:
        """The month that this day lies in."""
        _, days = monthrange(day.year, day.month)
        return cls(day.replace(day=1), day.replace(day=days))

    @property
    def following(self) -> date:
        """The first day of the next month."""
        return self.ends_on + timedelta(days=1)


def end_of(last_day: date) -> datetime:
    """The moment at which a month with this last day is over."""
    return datetime.combine(last_day, time.max, tzinfo=UTC) + timedelta(microseconds=1)


def day_of_monthly_job(now: datetime) -> date:
    """The day on which a monthly job that runs `now` counts as run."""
    return (now.astimezone(UTC) + CLOCKS_DIFFER).date()
