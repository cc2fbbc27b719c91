"""What the clocks of a zone show: stretches of time during which they run evenly, with the changes between them.

The zone database has no list of changes, so they are searched for: a day whose ends have different offsets holds
one. Years are remembered, as schedules of one zone all ask for the same few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

ONE_DAY = timedelta(days=1)
ONE_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Change:
    """The moment from which on clocks have another offset from UTC."""

    at: datetime
    offset: timedelta


@dataclass(frozen=True, slots=True)
class Stretch:
    """A span of time, from `start` on and before `end`, with one offset. Wall times are naive."""

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
        """The wall times that no clock showed at the start: from the first on, before the second."""
        start = self.start.replace(tzinfo=None)
        return start + self.offset_before, start + self.offset

    def was_shown_before(self, wall: datetime) -> bool:
        """Whether clocks showed it in the stretch before, too."""
        return wall < self.start.replace(tzinfo=None) + self.offset_before

    def will_be_shown_again(self, wall: datetime) -> bool:
        """Whether clocks will show it in the stretch after, too."""
        return wall >= self.end.replace(tzinfo=None) + self.offset_after


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """The zones that this machine knows. A name that is not in here must not reach ZoneInfo, which opens files."""
    return frozenset(available_timezones())


def stretches(zone_name: str, start: datetime, until: datetime) -> Iterator[Stretch]:
    """The stretches from the one that holds `start` to the one that holds `until`, both in UTC."""
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
    """The year's changes in order.

    A quiet end of the year counts as a change to the same offset, so that nobody has to look years ahead for the
    end of a stretch in a zone that never changes.
    """
    zone = ZoneInfo(zone_name)
    day, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    found: list[Change] = []
    offset = _offset(zone, day - ONE_SECOND)
    while day <= end:
        following = _offset(zone, day - ONE_SECOND)
        if following != offset:
            found.append(Change(_moment_of_change(zone, day - ONE_DAY, day, offset), following))
        day, offset = day + ONE_DAY, following
    if len({offset, _offset(zone, end + ONE_DAY), *(change.offset for change in found[-1:])}) == 1:
        found.append(Change(end, offset))
    return tuple(found)


def _moment_of_change(zone: ZoneInfo, low: datetime, high: datetime, offset: timedelta) -> datetime:
    """The first second between the two at which the offset is another one."""
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
