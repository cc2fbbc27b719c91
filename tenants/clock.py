"""The clock: what time it is in PostgreSQL, for everything that is compared with a stored time.

Processes run on many machines, and a machine whose clock is wrong must change nothing: fail no run early, decide no gate, fire no
schedule ahead. So nobody asks their own machine. The time is PostgreSQL's as it was read last, carried on by the monotonic clock of this
process; it is asked for again every `RENEW_SECONDS`, so that it costs the hot path nothing. Workers and beats learn it from the
renewal of the leader's lease each second. Statements use `now()` and `clock_timestamp()` themselves where they can.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from django.db import Error as DatabaseFault
from django.db import OperationalError, connections

from tenants.context import current_alias

RENEW_SECONDS = 60.0
#: An answer that took longer says too little about now. It is asked for again soon, and until then the last one counts.
SLOW_SECONDS, AGAIN_SECONDS = 1.0, 5.0


@dataclass(frozen=True, slots=True)
class _Reading:
    at: datetime
    monotonic: float  # of this process, at that moment
    until: float  # then it is asked for again


_last: _Reading | None = None


def now() -> datetime:
    """The time in UTC. Raises `django.db.Error` when PostgreSQL does not answer the first time; later the monotonic clock continues it."""
    reading = _last
    if reading is None or time.monotonic() > reading.until:
        reading = _ask(reading)
    return reading.at + timedelta(seconds=time.monotonic() - reading.monotonic)


def today() -> date:
    return now().date()


def tell(at: datetime, *, asked_at: float) -> None:
    """Note what an answer of PostgreSQL said of `clock_timestamp()`; `asked_at` is the monotonic time before the question."""
    global _last
    answered = time.monotonic()
    if answered - asked_at < SLOW_SECONDS or _last is None:
        _last = _Reading(at.astimezone(UTC), (asked_at + answered) / 2, answered + RENEW_SECONDS)


def _ask(known: _Reading | None) -> _Reading:
    global _last
    asked_at = time.monotonic()
    try:
        with connections[current_alias()].cursor() as cursor:
            cursor.execute("SELECT clock_timestamp()")
            tell(cursor.fetchone()[0], asked_at=asked_at)
    except DatabaseFault:
        if known is None:
            raise
    if known is not None and _last is known:
        _last = replace(known, until=time.monotonic() + AGAIN_SECONDS)
    if _last is None:
        raise OperationalError("PostgreSQL has not said what time it is")
    return _last
