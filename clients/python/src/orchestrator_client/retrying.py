"""When a request is repeated, and after what delay. Pure: nothing is sent or slept here.

Repeated are connection faults and the statuses 429 and 503, in which nothing was done or, thanks to the Idempotency-Key,
nothing will be done twice. Every other refusal is final.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

import httpx

RETRIED_STATUSES = frozenset({429, 503})
RETRIED_FAULTS = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError)


@dataclass(frozen=True)
class RetryPolicy:
    """`max_retries` repetitions, `base_seconds` before the first, doubling up to `max_seconds`, of which a random half is
    taken off, so that clients which failed together do not come back together.

    A `Retry-After` is obeyed to the full and a little more; one of more than `longest_retry_after` seconds is not waited for.
    """

    max_retries: int = 3
    base_seconds: float = 0.5
    max_seconds: float = 30.0
    longest_retry_after: float = 60.0
    chance: Callable[[], float] = random.random

    def delay_after(self, outcome: httpx.Response | httpx.TransportError, attempt: int) -> float | None:
        """Seconds until the next attempt, or None when there is to be none. `attempt` counts from 0."""
        if attempt >= self.max_retries:
            return None
        if isinstance(outcome, httpx.TransportError):
            return self._backoff(attempt) if isinstance(outcome, RETRIED_FAULTS) else None
        if outcome.status_code not in RETRIED_STATUSES:
            return None
        asked = retry_after_of(outcome)
        if asked is None:
            return self._backoff(attempt)
        return asked + self.chance() * self.base_seconds if asked <= self.longest_retry_after else None

    def _backoff(self, attempt: int) -> float:
        full = min(self.max_seconds, self.base_seconds * 2.0 ** min(attempt, 30))
        return full * (1 - self.chance() / 2)


def retry_after_of(response: httpx.Response) -> float | None:
    """The header in seconds, whether it was a number or a date; None without one, or with one that nobody can read."""
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return max(0.0, (moment - datetime.now(timezone.utc)).total_seconds())
