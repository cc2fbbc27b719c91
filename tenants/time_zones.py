"""The names of time zones that people and programs may enter: those of the zone database, which are the same on every machine.

Not among them is `localtime`, which is another zone on other machines: two of them would fire a schedule at different times.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from json import dumps
from zoneinfo import available_timezones

LONGEST_ZONE = 64  # characters; the longest name has 32


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """Return the names. Others must not reach ZoneInfo, because it opens files."""
    return frozenset(available_timezones() - {"localtime"})


def error_of_zone(name: str) -> str | None:
    """Say why the text is not the name of a time zone, or return None."""
    if name in zone_names():
        return None
    guess = get_close_matches(name[:LONGEST_ZONE], zone_names(), n=1, cutoff=0.7)
    return f"unknown time zone {dumps(name[:LONGEST_ZONE])}{f', did you mean {guess[0]}?' if guess else ''}"
