"""Rate limits shared by all processes: token buckets in Redis, refilled by Redis's own clock.

A bucket that nobody used for a while is full and has no key at all, so a wiped Redis forgives what was spent
and breaks nothing. Every key expires by itself. When Redis does not answer, nothing is known:
`LimiterUnavailable` is raised, and the caller decides whether to let pass or to wait,
or asks with `take_with_fallback`: then the same bucket in the memory of this process limits, so a limit never falls away.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from tenants import keys
from tenants import redis as connections
from tenants.exceptions import LimiterUnavailable
from tenants.redis import Script

_FOLDER = Path(__file__).resolve().parent / "lua" / "limiter"
_TAKE, _GIVE_BACK, _PEEK, _PLACE = (
    Script.load(_FOLDER, name) for name in ("take", "give_back", "peek", "place")
)

MARKER_SECONDS = 3600  # how long a take may be open before its unused part can no longer be given back


@dataclass(frozen=True, slots=True)
class Decision:
    """What a bucket said."""

    allowed: bool
    remaining: float  # units; negative while a large take is being paid off
    retry_after: float  # seconds until the same cost could be taken; 0.0 when allowed


@dataclass(frozen=True, slots=True)
class Bucket:
    """A limit of `rate` units per second, with bursts of up to `burst`; one name for all processes."""

    name: str
    rate: float
    burst: float
    timeout_seconds: float | None = None  # patience with Redis; None: ORCHESTRATOR_REDIS_TIMEOUT_SECONDS

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.burst <= 0:
            raise ValueError(
                f"The bucket {self.name} needs a rate and a burst above 0, not {self.rate} and {self.burst}"
            )

    def take(self, cost: float = 1.0, *, take_id: str | None = None) -> Decision:
        """Take `cost` units if they are there. Never waits.

        With a `take_id` the call may be repeated, when an answer was lost, and what it took can be corrected
        by `give_back`.
        """
        _refuse_negative(cost)
        named = [keys.bucket(self.name)] + ([keys.take(self.name, take_id)] if take_id else [])
        with answer_expected():
            allowed, remaining, wait = _TAKE.run(
                connections.client(timeout_seconds=self.timeout_seconds),
                named,
                (self.rate, self.burst, cost, MARKER_SECONDS),
            )
        return Decision(bool(allowed), float(remaining), wait / 1000)

    def give_back(self, amount: float, *, take_id: str) -> bool:
        """Return the unused part of a take, or with a negative amount charge what went above it.

        Counts once: False when this take was settled before, is too old, or never was.
        """
        named = [keys.bucket(self.name), keys.take(self.name, take_id)]
        with answer_expected():
            was_open, _ = _GIVE_BACK.run(
                connections.client(timeout_seconds=self.timeout_seconds),
                named,
                (self.rate, self.burst, amount),
            )
        return bool(was_open)

    def refill(self) -> None:
        """Fill the bucket up again."""
        with answer_expected():
            connections.client(timeout_seconds=self.timeout_seconds).delete(keys.bucket(self.name))

    def peek(self, cost: float = 1.0) -> Decision:
        """What `take` would say now. Changes nothing."""
        _refuse_negative(cost)
        with answer_expected():
            allowed, remaining, wait = _PEEK.run(
                connections.client(timeout_seconds=self.timeout_seconds),
                [keys.bucket(self.name)],
                (self.rate, self.burst, cost),
            )
        return Decision(bool(allowed), float(remaining), wait / 1000)


def _refuse_negative(cost: float) -> None:
    if cost < 0:
        raise ValueError(f"A cost of {cost} would fill the bucket; use give_back")


@contextmanager
def answer_expected() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise LimiterUnavailable(f"Redis did not answer: {type(error).__name__}") from error


class Breaker:
    """After a failure nobody in this process asks again for `seconds`, so that a frozen server slows nobody.

    Threads may share it: at worst two of them notice the same failure."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._closed_again = 0.0

    def is_open(self) -> bool:
        return time.monotonic() < self._closed_again

    def trip(self) -> None:
        self._closed_again = time.monotonic() + self._seconds

    def reset(self) -> None:
        self._closed_again = 0.0


@dataclass(frozen=True, slots=True)
class Places:
    """One name for all processes. Raises `LimiterUnavailable` when Redis does not answer."""

    name: str
    lease_seconds: float  # a holder that says nothing for so long has died

    def take(self, most: int, who: str) -> bool:
        """Hold a place, or keep the one that `who` has, whether or not there are more than `most` by now."""
        with answer_expected():
            is_held = _PLACE.run(
                connections.client(),
                [keys.places(self.name)],
                (most, who, round(self.lease_seconds * 1000)),
            )
        return bool(is_held)

    def give_back(self, *who: str) -> None:
        """Places that are not held are ignored."""
        with answer_expected():
            connections.client().zrem(keys.places(self.name), *who)


MOST_BUCKETS = 10_000  # the least recently used are forgotten
breaker = Breaker(seconds=5.0)

_lock = threading.Lock()
_buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # name -> units, moment


def take_with_fallback(bucket: Bucket, take_id: str | None = None) -> Decision:
    """One unit of the shared bucket; while Redis does not answer, of this process's own."""
    if not breaker.is_open():
        try:
            return bucket.take(take_id=take_id)
        except LimiterUnavailable:
            breaker.trip()
    return _take_here(bucket)


def give_back_with_fallback(bucket: Bucket, take_id: str) -> None:
    """The unit of that take, if Redis knows of it. What was taken here comes back by itself."""
    if not breaker.is_open():
        try:
            bucket.give_back(1.0, take_id=take_id)
        except LimiterUnavailable:
            breaker.trip()


def refill_with_fallback(bucket: Bucket) -> None:
    """Forget what was taken."""
    with _lock:
        _buckets.pop(bucket.name, None)
    if not breaker.is_open():
        try:
            bucket.refill()
        except LimiterUnavailable:
            breaker.trip()


def _take_here(bucket: Bucket) -> Decision:
    with _lock:
        now = time.monotonic()
        units, at = _buckets.pop(bucket.name, (bucket.burst, now))
        units = min(bucket.burst, units + (now - at) * bucket.rate)
        allowed = units >= 1.0
        left = units - 1.0 if allowed else units
        _buckets[bucket.name] = (left, now)
        while len(_buckets) > MOST_BUCKETS:
            _buckets.popitem(last=False)
        return Decision(allowed, left, 0.0 if allowed else (1.0 - units) / bucket.rate)
