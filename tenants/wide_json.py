"""Writing JSON that has been in the database: as orjson does, also when a number is wider than 64 bits.

PostgreSQL keeps 6e23 as a number like any other and gives it back with all of its digits, which Python then reads as a whole number that
orjson does not write. It goes out as the decimal number that came in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

WIDEST = 2**63


def dumps(value: Any, default: Callable[[Any], Any] | None = None, option: int | None = None) -> bytes:
    """As `orjson.dumps`."""
    try:
        return orjson.dumps(value, default=default, option=option)
    except TypeError as error:
        if "64-bit" not in str(error):
            raise
    return orjson.dumps(_narrowed(value), default=default, option=option)


def _narrowed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _narrowed(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_narrowed(member) for member in value]
    if isinstance(value, int) and not -WIDEST <= value < 2 * WIDEST:
        return float(value)
    return value
