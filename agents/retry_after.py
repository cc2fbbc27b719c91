"""Reads the `Retry-After` header, which is either a number of seconds or a date."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST_SECONDS = 3600.0  # a provider that asks for more is asked again after an hour; its clock may be wrong

_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]*)?")


def seconds_from(header: str | None, *, now: datetime | None = None) -> float | None:
    """How long to wait, from 0 to an hour, or None if the header is missing or makes no sense."""
    if header is None:
        return None
    text = header.strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), LONGEST_SECONDS)
    try:
        moment = parsedate_to_datetime(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        wait = (moment - (now or datetime.now(UTC))).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(max(wait, 0.0), LONGEST_SECONDS)
