"""Splits the time of a zone into stretches with one offset from UTC each.

The zone database has no list of changes, so this module searches for them: a day whose ends have different offsets
holds a change. Results are cached by year, because schedules of one zone all need the same few years.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

ONE_DAY = timedelta(days=1)
ONE_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Change:
    """The moment from which clocks have this offset from UTC."""

    at: datetime
    offset: timedelta


@dataclass(frozen=True, slots=True)
class Stretch:
    """A span of time with one offset, from `start` to before `end`. Wall times, as clocks show them, are naive."""

    start: datetime
    end: datetime
    offset: timedelta
    offset_before: timedelta
    offset_after: timedelta

    def wall(self, moment: datetime) -> datetime:
        return moment.replace(tzinfo=None) + self.offset

    def moment(self, wall: datetime) -> datetime:
        return (wall - self.offset).replace(tzinfo=UTC)

    @property
    def skipped_walls(self) -> tuple[datetime, datetime]:
        """The wall times that do not exist at the start: from the first to before the second."""
        start = self.start.replace(tzinfo=None)
        return start + self.offset_before, start + self.offset

    def exists_before(self, wall: datetime) -> bool:
        """Whether this wall time exists in the stretch before, too."""
        return wall < self.start.replace(tzinfo=None) + self.offset_before

    def exists_after(self, wall: datetime) -> bool:
        """Whether this wall time exists in the stretch after, too."""
        return wall >= self.end.replace(tzinfo=None) + self.offset_after


def stretches(zone_name: str, start: datetime, until: datetime) -> Iterator[Stretch]:
    """Yield the stretches from the one with `start` to the one with `until`, both in UTC."""
    current = Change(datetime(start.year - 1, 1, 1, tzinfo=UTC), timedelta())
    current = before = Change(current.at, _offset(ZoneInfo(zone_name), current.at))
    for year in range(start.year - 1, until.year + 2):
        for change in _changes(zone_name, year):
            if change.at > start:
                yield Stretch(current.at, change.at, current.offset, before.offset, change.offset)
            if change.at > until:
                return
            before, current = current, change


@lru_cache(maxsize=4096)
def _changes(zone_name: str, year: int) -> tuple[Change, ...]:
    """Return the year's changes in order.

    The end of a year without a change there counts as a change to the same offset. Otherwise the end of a stretch
    could be many years ahead, in a zone that never changes.
    """
    zone = ZoneInfo(zone_name)
    day, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    changes: list[Change] = []
    offset = _offset(zone, day - ONE_SECOND)
    while day <= end:
        following = _offset(zone, day - ONE_SECOND)
        if following != offset:
            # Between the two times whose offsets were compared: midnight itself may be the moment of the change.
            moment = _moment_of_change(zone, day - ONE_DAY - ONE_SECOND, day - ONE_SECOND, offset)
            changes.append(Change(moment, following))
        day, offset = day + ONE_DAY, following
    if len({offset, _offset(zone, end + ONE_DAY), *(change.offset for change in changes[-1:])}) == 1:
        changes.append(Change(end, offset))
    return tuple(changes)


def _moment_of_change(zone: ZoneInfo, low: datetime, high: datetime, offset: timedelta) -> datetime:
    """Return the first second after `low`, up to `high`, with another offset."""
    while high - low > ONE_SECOND:
        middle = low + (high - low) // 2
        middle = middle.replace(microsecond=0)
        if _offset(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return high


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()
