"""Rate limits that all processes share: token buckets in Redis, refilled by Redis's own clock.

A bucket that was not used for a while is full and has no key, so a wiped Redis only fills
the buckets. Every key expires. When Redis does not answer, `LimiterUnavailable` is raised, and the caller decides
whether to allow the request or to wait. Callers of `take_with_fallback` use the same bucket in the memory of this process instead, so that
there is always a limit.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from tenants import keys
from tenants import redis as connections
from tenants.exceptions import LimiterUnavailable
from tenants.redis import Script

_FOLDER = Path(__file__).resolve().parent / "lua" / "limiter"
_TAKE, _GIVE_BACK, _PLACE = (Script.load(_FOLDER, name) for name in ("take", "give_back", "place"))

MARKER_SECONDS = 3600  # how long a take may be open before its unused part can no longer be given back


@dataclass(frozen=True, slots=True)
class Decision:
    allowed: bool
    remaining: float  # units; negative after a take above the burst
    retry_after: float  # seconds until the same cost could be taken; 0.0 when allowed


@dataclass(frozen=True, slots=True)
class Bucket:
    """A limit of `rate` units per second, with bursts of up to `burst`. All processes share the bucket of a name."""

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
        """Take `cost` units if they are available. Never waits.

        With a `take_id` the call may be repeated when an answer was lost, and `give_back` can correct
        the amount.
        """
        if cost < 0:
            raise ValueError(f"A cost of {cost} would fill the bucket; use give_back")
        allowed, remaining, wait = self._run(_TAKE, take_id, cost, MARKER_SECONDS)
        return Decision(bool(allowed), float(remaining), wait / 1000)

    def give_back(self, amount: float, *, take_id: str) -> bool:
        """Return the unused part of a take, or with a negative amount charge an additional part.

        Works once: returns False when this take was already settled, is too old, or does not exist.
        """
        was_open, _ = self._run(_GIVE_BACK, take_id, amount)
        return bool(was_open)

    def refill(self) -> None:
        with answer_expected():
            connections.client(timeout_seconds=self.timeout_seconds).delete(keys.bucket(self.name))

    def _run(self, script: Script, take_id: str | None, *arguments: float) -> Any:
        names = [keys.bucket(self.name)] + ([keys.take(self.name, take_id)] if take_id else [])
        with answer_expected():
            client = connections.client(timeout_seconds=self.timeout_seconds)
            return script.run(client, names, (self.rate, self.burst, *arguments))


@contextmanager
def answer_expected() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise LimiterUnavailable(f"Redis did not answer: {type(error).__name__}") from error


class Breaker:
    """After a failure, this process does not use the server for `seconds`, so that a frozen server does not slow it down.

    Threads may share it; at worst two of them notice the same failure."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._closes_at = 0.0

    def is_open(self) -> bool:
        return time.monotonic() < self._closes_at

    def trip(self) -> None:
        self._closes_at = time.monotonic() + self._seconds

    def reset(self) -> None:
        self._closes_at = 0.0


@dataclass(frozen=True, slots=True)
class Places:
    """Places that all processes share under one name. Raises `LimiterUnavailable` when Redis does not answer."""

    name: str
    lease_seconds: float  # a holder that does not renew its place for this time counts as dead

    def take(self, most: int, who: str) -> bool:
        """Take a place, or renew the one that `who` has, even if there are now more than `most`."""
        with answer_expected():
            is_held = _PLACE.run(
                connections.client(), [keys.places(self.name)], (most, who, round(self.lease_seconds * 1000))
            )
        return bool(is_held)

    def give_back(self, *who: str) -> None:
        """Release the places of these holders. Holders without a place are ignored."""
        with answer_expected():
            connections.client().zrem(keys.places(self.name), *who)


MOST_BUCKETS = 10_000  # the least recently used are dropped
breaker = Breaker(seconds=5.0)

_lock = threading.Lock()
_buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # name -> units, monotonic time


def take_with_fallback(bucket: Bucket, take_id: str | None = None) -> Decision:
    """Take one unit of the shared bucket, or of this process's own bucket while Redis does not answer."""
    if not breaker.is_open():
        try:
            return bucket.take(take_id=take_id)
        except LimiterUnavailable:
            breaker.trip()
    return _take_here(bucket)


def give_back_with_fallback(bucket: Bucket, take_id: str) -> None:
    """Return the unit of that take, if Redis has recorded it. The process's own bucket refills with time."""
    if not breaker.is_open():
        try:
            bucket.give_back(1.0, take_id=take_id)
        except LimiterUnavailable:
            breaker.trip()


def refill_with_fallback(bucket: Bucket) -> None:
    """Fill the bucket, in Redis and in this process."""
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
