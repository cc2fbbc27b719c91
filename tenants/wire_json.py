"""JSON as the API, its events and webhooks write it: UTC times ending in Z, ids and decimals as text.

JSON from the database can contain numbers wider than 64 bits: PostgreSQL returns 6e23 with all of its digits, which Python reads as an
integer that orjson refuses to write and that no float equals. `dumps_stored` writes it as the float that it was, and `narrow` returns it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import orjson
from django.utils.functional import Promise

# `_write_value` writes datetimes, because orjson would keep the offset of times that are not in UTC.
OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_NON_STR_KEYS


def dumps(data: Any) -> bytes:
    """Return the bytes of a JSON document as the API writes it."""
    return dumps_stored(data, default=_write_value, option=OPTIONS)


def _write_value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return as_utc(value).isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return format(value, "f")  # text, since a float could lose cents
    if isinstance(value, Promise):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def as_utc(value: datetime.datetime) -> datetime.datetime:
    """Return the same moment in UTC. A naive time counts as UTC, which the project uses everywhere."""
    return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)


def whole_number(value: Any) -> int | None:
    """Return a number of JSON as an integer if it is whole, as 5.0 is; None for all others, and for "5" and true."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and value == value // 1 else None


def moment_of(text: str) -> datetime.datetime | None:
    """Return the time in a text, in UTC, or None if it is not a time with an offset."""
    try:
        moment = datetime.datetime.fromisoformat(text)
        return moment.astimezone(datetime.UTC) if moment.tzinfo is not None else None
    except (ValueError, OverflowError):  # the first and last hours of the calendar do not exist in all zones
        return None


WIDEST = 2**63


def dumps_stored(value: Any, default: Callable[[Any], Any] | None = None, option: int | None = None) -> bytes:
    """Like `orjson.dumps`, with numbers wider than 64 bits as floats."""
    try:
        return orjson.dumps(value, default=default, option=option)
    except TypeError as error:
        if "64-bit" not in str(error):
            raise
    return orjson.dumps(_narrow(value), default=default, option=option)


def narrow(value: Any) -> Any:
    """Return JSON from the database with numbers wider than 64 bits as floats. Without any, it is the value itself."""
    try:
        orjson.dumps(value)  # much cheaper than looking at each number
    except TypeError:
        return _narrow(value)
    return value


def _narrow(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _narrow(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_narrow(member) for member in value]
    if isinstance(value, int) and not -WIDEST <= value < 2 * WIDEST:
        return float(value)
    return value
