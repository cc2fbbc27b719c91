"""Catching up: which of the nominal times that nobody has fired are fired after all, and which are skipped."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from pipelines.definition.faults import shown
from pipelines.timing.nominal import interval_of, times
from pipelines.timing.shapes import Repeat, Timing

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
            raise CatchUpError(f"up_to must be a whole number from 1 to {MOST:,}, not {shown(up_to)}")
        raise CatchUpError('must be one of none, latest, {"up_to": n}')

    @property
    def value(self) -> str | dict[str, int]:
        """The form that `of` reads. To fire the latest one and to fire up to one are the same."""
        return ("none", "latest")[self.up_to] if self.up_to <= 1 else {"up_to": self.up_to}


@dataclass(frozen=True, slots=True)
class Missed:
    """What became due after `last`, up to and with `now`."""

    to_fire: tuple[datetime, ...]  # in order
    skipped_count: int
    _timing: Timing
    _last: datetime
    _now: datetime

    def skipped(self) -> Iterator[datetime]:
        """All that became due before the first one to fire, in order. A stream: an outage may be long."""
        found = times(self._timing, after=self._last, until=self.to_fire[0] if self.to_fire else self._now)
        return (moment for _, moment in zip(range(self.skipped_count), found, strict=False))


def missed(
    timing: Timing, *, last: datetime, now: datetime, catch_up: CatchUp, grace: timedelta = NO_TIME
) -> Missed:
    """What to do about everything that became due after `last` (the latest time already dealt with) until `now`.

    What became due less than `grace` ago is on time: it is fired whatever the policy says, and counts towards what
    the policy allows. So after an outage that ends at the full hour, an hourly schedule under `latest` fires once.
    """
    count = count_between(timing, last, now)
    on_time = count_between(timing, max(last, now - grace), now) if grace else 0
    wanted = min(count, max(catch_up.up_to, on_time))
    return Missed(_latest(timing, last, now, wanted), count - wanted, timing, last, now)


def count_between(timing: Timing, after: datetime, until: datetime) -> int:
    """How many nominal times there are, later than the first, at latest at the second."""
    if timing.repeat is not Repeat.INTERVAL:
        return sum(1 for _ in times(timing, after=after, until=until))
    first = next(times(timing, after=after, until=until), None)
    if first is None:
        return 0
    end = until if timing.end_at is None else min(until, timing.end_at)
    return (end - first) // interval_of(timing)[1] + 1


def _latest(timing: Timing, after: datetime, until: datetime, wanted: int) -> tuple[datetime, ...]:
    if not wanted:
        return ()
    if (
        timing.repeat is Repeat.INTERVAL
    ):  # which may have a million of them, so the early ones are passed over
        end = until if timing.end_at is None else min(until, timing.end_at)
        after = max(after, end - wanted * interval_of(timing)[1])
    return tuple(deque(times(timing, after=after, until=until), maxlen=wanted))
