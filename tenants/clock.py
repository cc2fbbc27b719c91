"""The clock: the time of PostgreSQL, for everything that is compared with a stored time.

Processes run on many machines, and a machine with a wrong clock must not fail runs early, decide gates, or fire schedules ahead
of time. So no code uses the machine's clock. The time is the last one read from PostgreSQL, advanced by the monotonic clock of this
process. It is read again every `RENEW_SECONDS`, so that it costs the hot path nothing. Workers and beats get it with the
renewal of the leader's lease each second. Statements use `now()` and `clock_timestamp()` where possible.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from django.db import Error as DatabaseFault
from django.db import OperationalError, connections

from tenants.context import current_alias

RENEW_SECONDS = 60.0
#: A slower answer is too imprecise. The time is read again soon, and until then the last one is used.
SLOW_SECONDS, AGAIN_SECONDS = 1.0, 5.0


@dataclass(frozen=True, slots=True)
class _Reading:
    at: datetime
    monotonic: float  # of this process, at that time
    until: float  # then it is read again


_last: _Reading | None = None


def now() -> datetime:
    """Return the time in UTC. Raises `django.db.Error` if PostgreSQL does not answer the first read. Later, the last time is used."""
    reading = _last
    if reading is None or time.monotonic() > reading.until:
        reading = _read(reading)
    return reading.at + timedelta(seconds=time.monotonic() - reading.monotonic)


def today() -> date:
    return now().date()


def timestamp() -> float:
    """Return the time in seconds since the epoch, for messages to and from other servers, without a query.

    Before the first time was read from PostgreSQL, it is that of this machine.
    """
    reading = _last
    if reading is None:
        return time.time()
    return reading.at.timestamp() + time.monotonic() - reading.monotonic


def learn(at: datetime, *, requested_at: float) -> None:
    """Record a `clock_timestamp()` from an answer of PostgreSQL. `requested_at` is the monotonic time before the query."""
    global _last
    answered = time.monotonic()
    if answered - requested_at < SLOW_SECONDS or _last is None:
        _last = _Reading(at.astimezone(UTC), (requested_at + answered) / 2, answered + RENEW_SECONDS)


def _read(previous: _Reading | None) -> _Reading:
    global _last
    requested_at = time.monotonic()
    try:
        with connections[current_alias()].cursor() as cursor:
            cursor.execute("SELECT clock_timestamp()")
            learn(cursor.fetchone()[0], requested_at=requested_at)
    except DatabaseFault:
        if previous is None:
            raise
    if previous is not None and _last is previous:
        _last = replace(previous, until=time.monotonic() + AGAIN_SECONDS)
    if _last is None:
        raise OperationalError("PostgreSQL has not returned the time")
    return _last
