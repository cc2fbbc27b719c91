"""UUIDv7 (RFC 9562): ids that sort by their creation time, so that new rows are at the end of an index."""

from __future__ import annotations

import os
import time
from datetime import datetime
from uuid import UUID


def uuid7() -> UUID:
    """Return a new id: 48 bits of Unix milliseconds, 12 bits of the fraction below them, 62 random bits."""
    nanoseconds = time.time_ns()
    milliseconds, remainder = divmod(nanoseconds, 1_000_000)
    fraction = (remainder << 12) // 1_000_000
    random = int.from_bytes(os.urandom(8), "big") & ((1 << 62) - 1)
    value = (milliseconds & ((1 << 48) - 1)) << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | random
    return UUID(int=value)


def first_id_at(moment: datetime) -> UUID:
    """Return a boundary: ids from before this time are not higher, and ids from its millisecond on are not lower."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)
