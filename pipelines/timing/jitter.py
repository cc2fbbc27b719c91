"""Jitter: moves a nominal time a little, so that schedules of the same minute do not all start at once."""

from __future__ import annotations

from datetime import datetime, timedelta
from hashlib import blake2b

PARTS = 2**64


def jittered(nominal: datetime, seconds: float, key: str) -> datetime:
    """The nominal time, or up to `seconds` later.

    Depends on nothing but the three arguments: two schedulers that know the key of a schedule, such as its id, agree on
    when to fire it. The nominal time stays the name of the firing.
    """
    if not seconds:
        return nominal
    digest = blake2b(f"{key}\n{nominal.timestamp()!r}".encode(), digest_size=8).digest()
    share = int.from_bytes(digest) / PARTS  # from 0 on, evenly spread
    return nominal + timedelta(seconds=seconds * share)
