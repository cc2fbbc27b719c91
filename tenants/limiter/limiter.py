"""Rate limits shared by all processes: token buckets in Redis, refilled by Redis's own clock.

A bucket that nobody used for a while is full and has no key at all, so a wiped Redis forgives what was spent
and breaks nothing. Every key expires by itself. When Redis does not answer, nothing is known:
`LimiterUnavailable` is raised, and the caller decides whether to let pass or to wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import redis

from tenants import redis as connections
from tenants.exceptions import LimiterUnavailable
from tenants.limiter import keys, scripts

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
            allowed, remaining, wait = scripts.TAKE.run(
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
            was_open, _ = scripts.GIVE_BACK.run(
                connections.client(timeout_seconds=self.timeout_seconds),
                named,
                (self.rate, self.burst, amount),
            )
        return bool(was_open)

    def refill(self) -> None:
        """Fill it up: what was taken so far is forgiven."""
        with answer_expected():
            connections.client(timeout_seconds=self.timeout_seconds).delete(keys.bucket(self.name))

    def peek(self, cost: float = 1.0) -> Decision:
        """What `take` would say now. Changes nothing."""
        _refuse_negative(cost)
        with answer_expected():
            allowed, remaining, wait = scripts.PEEK.run(
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


# A breaker of one process: after a failure nobody asks again for a while, so that a frozen server slows
# nobody.


class Breaker:
    """Open for `seconds` after `trip`. Threads may share it: at worst two of them notice the same failure."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._closed_again = 0.0

    def is_open(self) -> bool:
        return time.monotonic() < self._closed_again

    def trip(self) -> None:
        self._closed_again = time.monotonic() + self._seconds

    def reset(self) -> None:
        self._closed_again = 0.0
