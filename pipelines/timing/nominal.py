"""Computes the nominal times of a timing. Pure: it reads no clock and keeps no state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from hashlib import blake2b
from itertools import islice
from typing import Any, Self

from pipelines.timing.clock import Stretch, stretches
from pipelines.timing.cron import Cron, cron_of

# Jitter: delays a nominal time a little, so that schedules of the same minute do not all start at once.


PARTS = 2**64


def jitter(nominal: datetime, seconds: float, key: str) -> datetime:
    """Return the nominal time, delayed by up to `seconds`.

    The delay depends only on the arguments: all schedulers that know the key of a schedule, such as its id, agree on
    when to fire it. The nominal time still identifies the firing.
    """
    if not seconds:
        return nominal
    digest = blake2b(f"{key}\n{nominal.timestamp()!r}".encode(), digest_size=8).digest()
    share = int.from_bytes(digest) / PARTS  # from 0 to below 1, evenly spread
    return nominal + timedelta(seconds=seconds * share)


# Catching up: which of the missed times are fired later, and which are skipped.


MOST = 1_000  # times that are caught up at once; more would flood the system
NO_TIME = timedelta()


class CatchUpError(ValueError):
    """The value is not a catch-up policy. The message completes "catch_up ..."."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The policy: how many of the missed times are fired at most, latest first."""

    up_to: int

    @classmethod
    def of(cls, value: Any) -> Self:
        """Read `none`, `latest` or `{up_to: n}`, as the API has it. Raises `CatchUpError`."""
        if value in ("none", "latest"):
            return cls(int(value == "latest"))
        if isinstance(value, Mapping) and list(value) == ["up_to"]:
            up_to = value["up_to"]
            is_whole = isinstance(up_to, int | float) and not isinstance(up_to, bool) and up_to == up_to // 1
            if is_whole and 1 <= up_to <= MOST:
                return cls(int(up_to))
            raise CatchUpError(f"up_to must be a whole number from 1 to {MOST:,}")
        raise CatchUpError('must be one of none, latest, {"up_to": n}')

    @property
    def value(self) -> str | dict[str, int]:
        """The form that `of` reads. `latest` equals `up_to` 1."""
        return ("none", "latest")[self.up_to] if self.up_to <= 1 else {"up_to": self.up_to}


@dataclass(frozen=True, slots=True)
class MissedTimes:
    """The times that became due after `last`, up to and including `now`."""

    to_fire: tuple[datetime, ...]  # in order
    skipped_count: int
    _timing: Timing
    _last: datetime
    _now: datetime

    def list_skipped(self) -> Iterator[datetime]:
        """Iterate in order over the times before the first one to fire. Lazy, because an outage may be long."""
        due = times(self._timing, after=self._last, until=self.to_fire[0] if self.to_fire else self._now)
        return islice(due, self.skipped_count)


def find_missed(
    timing: Timing, *, last: datetime, now: datetime, catch_up: CatchUp, grace: timedelta = NO_TIME
) -> MissedTimes:
    """Decide about the times that became due after `last` (the latest time that is recorded) until `now`.

    A time that became due less than `grace` ago is on time: it is fired under any policy, and counts towards the
    number that the policy allows. So after an outage that ends on the hour, an hourly schedule with `latest` fires once.
    """
    count = count_between(timing, last, now)
    on_time = count_between(timing, max(last, now - grace), now) if grace else 0
    to_fire = min(count, max(catch_up.up_to, on_time))
    return MissedTimes(latest(timing, last, now, to_fire), count - to_fire, timing, last, now)


def count_between(timing: Timing, after: datetime, until: datetime) -> int:
    """Count the nominal times later than `after`, up to and including `until`. There may be millions, so most are not computed."""
    if timing.repeat is Repeat.CRON:
        return _count_by_cron(timing, *_bounds(timing, after, until))
    if timing.repeat is Repeat.ONCE:
        return sum(1 for _ in times(timing, after=after, until=until))
    first = next(times(timing, after=after, until=until), None)
    if first is None:
        return 0
    end = until if timing.end_at is None else min(until, timing.end_at)
    return (end - first) // interval_of(timing)[1] + 1


def _count_by_cron(timing: Timing, low: datetime, high: datetime) -> int:
    """Count by whole days. Only times near a bound or a change of clocks are computed."""
    if low >= high:
        return 0
    cron, count, after = cron_of(timing.cron or ""), 0, low
    for stretch in stretches(timing.timezone, low, high):
        first = stretch.wall(max(low, stretch.start)).date() + FAR_FROM_A_CHANGE
        last = stretch.wall(min(high, stretch.end)).date() - FAR_FROM_A_CHANGE
        if first <= last:
            midnights = (datetime.combine(day, time()) for day in (first, last + ONE_DAY))
            begin, end = (stretch.moment(midnight) - INSTANT for midnight in midnights)
            count += sum(1 for _ in times(timing, after=after, until=begin))
            count += len(cron.minutes_of_day) * sum(1 for _ in cron.days(first, last))
            after = end
    return count + sum(1 for _ in times(timing, after=after, until=high))


def latest(timing: Timing, after: datetime, until: datetime, count: int) -> tuple[datetime, ...]:
    """Return the last `count` nominal times later than `after`, up to and including `until`; there must be so many."""
    low, high = _bounds(timing, after, until)
    span = count * interval_of(timing)[1] if timing.repeat is Repeat.INTERVAL else ONE_DAY
    found: tuple[datetime, ...] = ()
    while len(found) < count:
        span = min(span, high - low)
        found = tuple(deque(times(timing, after=high - span, until=high), maxlen=count))
        span *= 2
    return found


# A timing: the part of a schedule that decides when it fires, with its policies and their defaults.


DEFAULT_TIMEZONE = "America/New_York"
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)  # intervals without a start count from here
LATEST = datetime(2199, 12, 31, 23, 59, 59, tzinfo=UTC)  # bounds every search


class Repeat(StrEnum):
    """How a timing repeats."""

    ONCE = "once"
    CRON = "cron"
    INTERVAL = "interval"


class DstGap(StrEnum):
    """What happens to local times that do not exist because clocks go forward."""

    SHIFT = "shift"
    SKIP = "skip"


class DstFold(StrEnum):
    """Which of two equal local times counts when clocks go back."""

    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When a schedule fires. `parsing.read` returns only valid timings; nothing checks others."""

    repeat: Repeat
    cron: str | None = None
    interval_ms: int | None = None
    timezone: str = DEFAULT_TIMEZONE
    start_at: datetime | None = None
    end_at: datetime | None = None
    dst_gap: DstGap = DstGap.SHIFT
    dst_fold: DstFold = DstFold.FIRST
    jitter_seconds: float = 0


INSTANT = timedelta(microseconds=1)  # the smallest difference between two times
ONE_MINUTE, ONE_DAY = timedelta(minutes=1), timedelta(days=1)
FAR_FROM_A_CHANGE = 2 * ONE_DAY  # a change of clocks may skip a whole day


def times(
    timing: Timing, *, after: datetime, until: datetime | None = None, limit: int | None = None
) -> Iterator[datetime]:
    """Yield the nominal times in UTC and in order, later than `after`, up to and including `until`, at most `limit`.

    Both bounds must be aware. Ends with the timing's own end, or with the year 2199. Raises ValueError
    for a naive bound, and `cron.CronError` for an unchecked timing with an invalid cron.
    """
    low, high = _bounds(timing, after, until)
    if low >= high:
        return iter(())
    moments = _KINDS[timing.repeat](timing, low, high)
    return islice(moments, limit) if limit is not None else moments


def _bounds(timing: Timing, after: datetime, until: datetime | None) -> tuple[datetime, datetime]:
    """Return the bounds of the search: after the first, up to and including the second."""
    ends = [_in_utc(end) for end in (until, timing.end_at) if end is not None]
    low = max(_in_utc(after), EARLIEST - INSTANT)
    if timing.start_at is not None:
        low = max(low, _in_utc(timing.start_at) - INSTANT)
    return low, min([LATEST, *ends])


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("a time without an offset from UTC does not say which moment is meant")
    return moment.astimezone(UTC)


def _once(timing: Timing, low: datetime, high: datetime) -> Iterator[datetime]:
    if timing.start_at is not None and low < timing.start_at <= high:
        yield _in_utc(timing.start_at)


def _at_intervals(timing: Timing, low: datetime, high: datetime) -> Iterator[datetime]:
    start, interval = interval_of(timing)
    # Each time is the start plus a multiple of the interval, so times do not drift.
    number = (low - start) // interval + 1
    while (moment := start + number * interval) <= high:
        yield moment
        number += 1


def interval_of(timing: Timing) -> tuple[datetime, timedelta]:
    """Return the start from which an interval counts, and its length."""
    start = EARLIEST if timing.start_at is None else _in_utc(timing.start_at)
    return start, timedelta(milliseconds=timing.interval_ms or 0)


def _by_cron(timing: Timing, low: datetime, high: datetime) -> Iterator[datetime]:
    cron = cron_of(timing.cron or "")
    for stretch in stretches(timing.timezone, low, high):
        for moment in _in_stretch(timing, cron, stretch, low):
            if moment > high:
                return
            if moment > low:
                yield moment


def _in_stretch(timing: Timing, cron: Cron, stretch: Stretch, low: datetime) -> Iterator[datetime]:
    start, end = stretch.wall(stretch.start), stretch.wall(stretch.end)
    if low < stretch.start:
        if _is_shifted_to_the_start(timing, cron, stretch, start):
            yield stretch.start
    else:
        start = stretch.wall(low)
    for wall in cron.walls(start, end):
        if cron.holds_every_hour or _counts(timing.dst_fold, stretch, wall):
            yield stretch.moment(wall)


def _is_shifted_to_the_start(timing: Timing, cron: Cron, stretch: Stretch, start: datetime) -> bool:
    """Whether times that do not exist fire at the moment of the change, and no other time fires then anyway."""
    if timing.dst_gap is DstGap.SKIP or cron.holds_every_hour:
        return False
    has_skipped = any(cron.walls(*stretch.skipped_walls))
    return has_skipped and not any(cron.walls(start, start + ONE_MINUTE))


def _counts(fold: DstFold, stretch: Stretch, wall: datetime) -> bool:
    if fold is DstFold.FIRST:
        return not stretch.exists_before(wall)
    if fold is DstFold.SECOND:
        return not stretch.exists_after(wall)
    return True


_KINDS = {Repeat.ONCE: _once, Repeat.CRON: _by_cron, Repeat.INTERVAL: _at_intervals}
