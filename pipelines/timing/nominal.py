"""Nominal times: the one function that says when a timing fires. It reads no clock and remembers nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

from pipelines.timing.clock import Stretch, stretches
from pipelines.timing.cron import Cron, cron_of
from pipelines.timing.shapes import EARLIEST, LATEST, DstFold, DstGap, Repeat, Timing

INSTANT = timedelta(microseconds=1)
ONE_MINUTE = timedelta(minutes=1)


def times(
    timing: Timing, *, after: datetime, until: datetime | None = None, limit: int | None = None
) -> Iterator[datetime]:
    """The nominal times in UTC, in order, each once: later than `after`, at latest at `until`, at most `limit`.

    Both bounds must be aware. Ends by itself: with the timing's own end, or with the year 2199. Raises ValueError
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
    left_out = any(cron.walls(*stretch.left_out))
    return left_out and not any(cron.walls(start, start + ONE_MINUTE))


def _counts(fold: DstFold, stretch: Stretch, wall: datetime) -> bool:
    if fold is DstFold.FIRST:
        return not stretch.was_shown_before(wall)
    if fold is DstFold.SECOND:
        return not stretch.will_be_shown_again(wall)
    return True


_KINDS = {Repeat.ONCE: _once, Repeat.CRON: _by_cron, Repeat.INTERVAL: _at_intervals}
