"""What still limits while Redis is away: the same token buckets in the memory of this process, each process by itself.

So a limit never falls away: somebody who finds as many processes as there are gets that many times as much.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from tenants.exceptions import LimiterUnavailable
from tenants.limiter.limiter import Bucket, Decision

from .limiter import Breaker

MOST_BUCKETS = 10_000  # the least recently used are forgotten
breaker = Breaker(seconds=5.0)

_lock = threading.Lock()
_buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # name -> units, moment


def take(bucket: Bucket, take_id: str | None = None) -> Decision:
    """One unit of the shared bucket; while Redis does not answer, of this process's own."""
    if not breaker.is_open():
        try:
            return bucket.take(take_id=take_id)
        except LimiterUnavailable:
            breaker.trip()
    return _take_here(bucket)


def give_back(bucket: Bucket, take_id: str) -> None:
    """The unit of that take, if Redis knows of it. What was taken here comes back by itself."""
    if not breaker.is_open():
        try:
            bucket.give_back(1.0, take_id=take_id)
        except LimiterUnavailable:
            breaker.trip()


def refill(bucket: Bucket) -> None:
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
