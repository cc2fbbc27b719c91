"""Nominal times agree with an independent oracle that checks the clock minute by minute.

The oracle parses crons itself, knows what the clock displays at every minute of a year in six zones whose clocks change, and decides by
the displayed times. All it knows about changes of clocks is that they appear as jumps.
"""

from __future__ import annotations

from array import array
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.timing import CatchUp, DstFold, DstGap, Repeat, Timing, find_missed, in_words, times

pytestmark = pytest.mark.long

#: One with a change of 30 minutes, one that changes at its midnight, one at midnight in UTC, two in the north and one in the south.
ZONES = (
    "America/New_York",
    "Europe/London",
    "Australia/Sydney",
    "Australia/Lord_Howe",
    "America/Santiago",
    "Asia/Jerusalem",
)
A_YEAR = (datetime(2028, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC))  # with a 29th of February
DAY = 1440  # minutes
GLANCE = 30  # minutes in which a clock jumps at most once
ONE_MINUTE = timedelta(minutes=1)
LATEST_BEFORE = timedelta(microseconds=1)

CRONS = (
    "30 2 * * *",
    "30 1 * * *",
    "0 0 * * *",
    "15,45 23,0,1 * * *",
    "*/20 1-3 * * *",
    "0 */2 * * *",
    "45 1 * * 0",
    "30 2 8-14 3,10 7",
    "0 2 1-7 4,10 sun",
    "0 8 13 * 5",
    "0 3 L * *",
    "0 0 29 2 *",
    "59 23 31 12 *",
)
ELAPSED = ("*/30 * * * *", "0 * * * *", "7 0-23 * * *", "30 * 1-14 * *")
steady = settings(deadline=None, derandomize=True, max_examples=80)


@dataclass(frozen=True)
class Clock:
    """The times that a clock displays at every minute from `start` on, and its jumps."""

    start: datetime
    walls: array[int]  # minutes since the first day of the calendar
    jumps: tuple[tuple[int, int], ...]  # the minute of each jump, and its size in minutes
    displays: list[array[int]]  # for each minute of the day, when the clock displays it

    @classmethod
    def of(cls, start: datetime, walls: array[int]) -> Clock:
        displays = [array("l") for _ in range(DAY)]
        for i, wall in enumerate(walls):
            displays[wall % DAY].append(i)
        jumps = [
            (i, walls[i] - walls[i - 1] - 1) for i in range(1, len(walls)) if walls[i] != walls[i - 1] + 1
        ]
        return cls(start, walls, tuple(jumps), displays)

    @classmethod
    def watched(cls, zone_name: str, start: datetime, end: datetime) -> Clock:
        zone, minutes = ZoneInfo(zone_name), (end - start) // ONE_MINUTE

        def wall(i: int) -> int:
            local = (start + i * ONE_MINUTE).astimezone(zone)
            return local.toordinal() * DAY + local.hour * 60 + local.minute

        walls = array("q")
        for i in range(0, minutes, GLANCE):
            first, last = wall(i), wall(i + GLANCE - 1)
            is_steady = last - first == GLANCE - 1  # no clock jumps forth and back within so short a time
            walls.extend(range(first, last + 1) if is_steady else map(wall, range(i, i + GLANCE)))
        return cls.of(start, walls)

    def part(self, first: int, end: int) -> Clock:
        return Clock.of(self.start + first * ONE_MINUTE, self.walls[first:end])

    def firings(self, cron: str, gap: DstGap, fold: DstFold) -> list[datetime]:
        minutes, hours, matches = matcher(cron)
        of_day = {hour * 60 + minute for hour in hours for minute in minutes}
        days = {
            day
            for day in range(self.walls[0] // DAY, self.walls[-1] // DAY + 1)
            if matches(date.fromordinal(day))
        }
        result = {i for minute in of_day for i in self.displays[minute] if self.walls[i] // DAY in days}
        for at, jump in self.jumps if len(hours) < 24 else ():
            if jump < 0:
                result -= set(range(at + jump, at)) if fold is DstFold.SECOND else set()
                result -= set(range(at, at - jump)) if fold is DstFold.FIRST else set()
            elif gap is DstGap.SHIFT:
                skipped = range(self.walls[at] - jump, self.walls[at])
                result |= {at for wall in skipped if wall % DAY in of_day and wall // DAY in days}
        return [self.start + i * ONE_MINUTE for i in sorted(result)]


def matcher(cron: str):  # type: ignore[no-untyped-def]
    """Return the minutes and hours of a cron, and a function that matches days. Knows only the syntax used here."""
    minute, hour, day, month, weekday = cron.split()
    months = values(month, 1, 12)
    weekdays = {value % 7 for value in values(weekday.replace("sun", "0"), 0, 7 if "*" not in weekday else 6)}
    monthdays = set() if day == "L" else values(day, 1, 31)

    def matches(date_: date) -> bool:
        by_day = date_.day in monthdays or (
            day == "L" and date_.day == monthrange(date_.year, date_.month)[1]
        )
        by_weekday = date_.isoweekday() % 7 in weekdays
        if day[0] == "*" or weekday[0] == "*":
            return date_.month in months and by_day and by_weekday
        return date_.month in months and (by_day or by_weekday)

    return values(minute, 0, 59), values(hour, 0, 23), matches


def values(field: str, low: int, high: int) -> set[int]:
    result: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-") if span != "*" else (str(low), "", str(high))
        result |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return result


@cache
def a_year(zone: str) -> Clock:
    return Clock.watched(zone, *A_YEAR)


def ours(cron: str, zone: str, gap: DstGap, fold: DstFold, start: datetime, end: datetime) -> list[datetime]:
    timing = Timing(repeat=Repeat.CRON, cron=cron, timezone=zone, dst_gap=gap, dst_fold=fold)
    return list(times(timing, after=start - LATEST_BEFORE, until=end - ONE_MINUTE))


@pytest.mark.parametrize("zone", ZONES)
def test_a_year_of_every_cron_and_policy_agrees_with_the_clock(zone: str) -> None:
    clock = a_year(zone)

    assert len(clock.jumps) == 2
    for cron in CRONS:
        for gap, fold in ((gap, fold) for gap in DstGap for fold in DstFold):
            assert ours(cron, zone, gap, fold, *A_YEAR) == clock.firings(cron, gap, fold), (
                cron,
                gap,
                fold,
            )


@pytest.mark.parametrize("zone", ZONES)
def test_times_are_counted_and_the_latest_found_as_if_all_were_listed(zone: str) -> None:
    start, end = A_YEAR
    for cron in CRONS:
        for gap, fold in ((gap, fold) for gap in DstGap for fold in DstFold):
            timing = Timing(repeat=Repeat.CRON, cron=cron, timezone=zone, dst_gap=gap, dst_fold=fold)
            every = list(times(timing, after=start, until=end))

            missed = find_missed(timing, last=start, now=end, catch_up=CatchUp(3))

            assert missed.to_fire == tuple(every[-3:]), (cron, gap, fold)
            assert missed.skipped_count == len(every[:-3]), (cron, gap, fold)


@pytest.mark.parametrize("zone", ZONES)
def test_a_cron_of_every_hour_fires_whenever_the_clock_displays_its_minute(zone: str) -> None:
    clock = a_year(zone)

    for cron in ELAPSED:
        expected = clock.firings(cron, DstGap.SKIP, DstFold.BOTH)
        assert ours(cron, zone, DstGap.SHIFT, DstFold.FIRST, *A_YEAR) == expected, cron


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    stepped = st.tuples(st.just("*") | span, st.integers(1, high)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    part = number.map(str) | span | stepped
    return st.just("*") | part | st.lists(part, min_size=2, max_size=3).map(",".join)


crons = st.tuples(fields(0, 59), fields(0, 23) | st.sampled_from(["0-3", "1,2", "23,0", "2"]), fields(1, 28),
                  st.just("*") | fields(1, 12), fields(0, 7)).map(" ".join)  # fmt: skip


@steady
@given(cron=crons)
def test_any_cron_can_be_described(cron: str) -> None:
    words = in_words(Timing(repeat=Repeat.CRON, cron=cron, timezone="UTC"))

    assert not {"*", "/", "None"} & {*words, *words.split()}, words


@steady
@given(
    cron=crons,
    zone=st.sampled_from(ZONES),
    gap=st.sampled_from(DstGap),
    fold=st.sampled_from(DstFold),
    jump=st.integers(0, 1),
)
def test_any_cron_around_any_change_agrees_with_the_clock(
    cron: str, zone: str, gap: DstGap, fold: DstFold, jump: int
) -> None:
    clock = a_year(zone)
    change = clock.jumps[jump][0]
    part = clock.part(change - DAY, change + DAY)

    firings = ours(cron, zone, gap, fold, part.start, part.start + 2 * DAY * ONE_MINUTE)

    assert firings == part.firings(cron, gap, fold)


@steady
@given(
    cron=crons,
    zone=st.sampled_from(ZONES),
    gap=st.sampled_from(DstGap),
    fold=st.sampled_from(DstFold),
    jump=st.integers(0, 1),
    seconds=st.integers(-20_000, 20_000),
)
def test_times_do_not_depend_on_where_the_search_begins(
    cron: str, zone: str, gap: DstGap, fold: DstFold, jump: int, seconds: int
) -> None:
    clock = a_year(zone)
    change = clock.start + clock.jumps[jump][0] * ONE_MINUTE
    timing = Timing(repeat=Repeat.CRON, cron=cron, timezone=zone, dst_gap=gap, dst_fold=fold)
    begin, end = change - timedelta(days=1), change + timedelta(days=1)
    middle = change + timedelta(seconds=seconds)

    whole = list(times(timing, after=begin, until=end))

    assert whole == sorted(set(whole))
    assert list(times(timing, after=middle, until=end)) == [moment for moment in whole if moment > middle]
    assert list(times(timing, after=begin, until=middle)) == [moment for moment in whole if moment <= middle]
