"""Nominal times: the one function that says when a timing fires. It reads no clock and remembers nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from itertools import islice
from typing import Any, Self

from pipelines.definition.errors import quote_value
from pipelines.timing.clock import Stretch, stretches
from pipelines.timing.cron import Cron, cron_of

# Jitter: moves a nominal time a little, so that schedules of the same minute do not all start at once.


PARTS = 2**64


def jitter(nominal: datetime, seconds: float, key: str) -> datetime:
    """The nominal time, or up to `seconds` later.

    Depends on nothing but the three arguments: two schedulers that know the key of a schedule, such as its id, agree on
    when to fire it. The nominal time stays the name of the firing.
    """
    if not seconds:
        return nominal
    digest = blake2b(f"{key}\n{nominal.timestamp()!r}".encode(), digest_size=8).digest()
    share = int.from_bytes(digest) / PARTS  # from 0 on, evenly spread
    return nominal + timedelta(seconds=seconds * share)


# Catching up: which of the nominal times that nobody has fired are fired after all, and which are skipped.


MOST = 1_000  # to be caught up at once; more would be a flood
NO_TIME = timedelta()


class CatchUpError(ValueError):
    """The value names no policy of catching up. The message completes "catch_up ..."."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The policy: at most this many of the missed times are fired, the latest ones."""

    up_to: int

    @classmethod
    def of(cls, value: Any) -> Self:
        """From `none`, `latest` or `{up_to: n}`, the forms of the API. Raises `CatchUpError`."""
        if value in ("none", "latest"):
            return cls(int(value == "latest"))
        if isinstance(value, Mapping) and list(value) == ["up_to"]:
            up_to = value["up_to"]
            if isinstance(up_to, int) and not isinstance(up_to, bool) and 1 <= up_to <= MOST:
                return cls(up_to)
            raise CatchUpError(f"up_to must be a whole number from 1 to {MOST:,}, not {quote_value(up_to)}")
        raise CatchUpError('must be one of none, latest, {"up_to": n}')

    @property
    def value(self) -> str | dict[str, int]:
        """The form that `of` reads. To fire the latest one and to fire up to one are the same."""
        return ("none", "latest")[self.up_to] if self.up_to <= 1 else {"up_to": self.up_to}


@dataclass(frozen=True, slots=True)
class MissedTimes:
    """What became due after `last`, up to and with `now`."""

    to_fire: tuple[datetime, ...]  # in order
    skipped_count: int
    _timing: Timing
    _last: datetime
    _now: datetime

    def list_skipped(self) -> Iterator[datetime]:
        """All that became due before the first one to fire, in order. A stream: an outage may be long."""
        found = times(self._timing, after=self._last, until=self.to_fire[0] if self.to_fire else self._now)
        return (moment for _, moment in zip(range(self.skipped_count), found, strict=False))


def find_missed(
    timing: Timing, *, last: datetime, now: datetime, catch_up: CatchUp, grace: timedelta = NO_TIME
) -> MissedTimes:
    """What to do about everything that became due after `last` (the latest time already dealt with) until `now`.

    What became due less than `grace` ago is on time: it is fired whatever the policy says, and counts towards what
    the policy allows. So after an outage that ends at the full hour, an hourly schedule under `latest` fires once.
    """
    count = count_between(timing, last, now)
    on_time = count_between(timing, max(last, now - grace), now) if grace else 0
    to_fire = min(count, max(catch_up.up_to, on_time))
    return MissedTimes(_latest(timing, last, now, to_fire), count - to_fire, timing, last, now)


def count_between(timing: Timing, after: datetime, until: datetime) -> int:
    """How many nominal times there are, later than the first, at latest at the second."""
    if timing.repeat is not Repeat.INTERVAL:
        return sum(1 for _ in times(timing, after=after, until=until))
    first = next(times(timing, after=after, until=until), None)
    if first is None:
        return 0
    end = until if timing.end_at is None else min(until, timing.end_at)
    return (end - first) // interval_of(timing)[1] + 1


def _latest(timing: Timing, after: datetime, until: datetime, count: int) -> tuple[datetime, ...]:
    if not count:
        return ()
    if (
        timing.repeat is Repeat.INTERVAL
    ):  # which may have a million of them, so the early ones are passed over
        end = until if timing.end_at is None else min(until, timing.end_at)
        after = max(after, end - count * interval_of(timing)[1])
    return tuple(deque(times(timing, after=after, until=until), maxlen=count))


# A timing: the part of a schedule that says when, frozen, with its policies and their defaults.


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
    """When a schedule fires. `parsing.read` makes only valid ones; nothing checks one that is made by hand."""

    repeat: Repeat
    cron: str | None = None
    interval_ms: int | None = None
    timezone: str = DEFAULT_TIMEZONE
    start_at: datetime | None = None
    end_at: datetime | None = None
    dst_gap: DstGap = DstGap.SHIFT
    dst_fold: DstFold = DstFold.FIRST
    jitter_seconds: float = 0


INSTANT = timedelta(microseconds=1)
ONE_MINUTE = timedelta(minutes=1)


def times(
    timing: Timing, *, after: datetime, until: datetime | None = None, limit: int | None = None
) -> Iterator[datetime]:
    """The nominal times in UTC, in order, each once: later than `after`, at latest at `until`, at most `limit`.

    Both bounds must be aware. Ends with the timing's own end, or with the year 2199. Raises ValueError
    for a naive bound, and `cron.CronError` for a timing whose cron nobody has checked.
    """
    low, high = _bounds(timing, after, until)
    if low >= high:
        return iter(())
    found = _KINDS[timing.repeat](timing, low, high)
    return islice(found, limit) if limit is not None else found


def _bounds(timing: Timing, after: datetime, until: datetime | None) -> tuple[datetime, datetime]:
    """What is searched: after the first, up to and with the second."""
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
    # Each is a multiple of the interval from the start, never the one before plus something, so none drifts.
    number = (low - start) // interval + 1
    while (moment := start + number * interval) <= high:
        yield moment
        number += 1


def interval_of(timing: Timing) -> tuple[datetime, timedelta]:
    """Where an interval counts from, and how long it is."""
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
    """Whether times that clocks left out fire at the moment of the change, and nothing else fires then anyway."""
    if timing.dst_gap is DstGap.SKIP or cron.holds_every_hour:
        return False
    left_out = any(cron.walls(*stretch.skipped_walls))
    return left_out and not any(cron.walls(start, start + ONE_MINUTE))


def _counts(fold: DstFold, stretch: Stretch, wall: datetime) -> bool:
    if fold is DstFold.FIRST:
        return not stretch.was_shown_before(wall)
    if fold is DstFold.SECOND:
        return not stretch.will_be_shown_again(wall)
    return True


_KINDS = {Repeat.ONCE: _once, Repeat.CRON: _by_cron, Repeat.INTERVAL: _at_intervals}
