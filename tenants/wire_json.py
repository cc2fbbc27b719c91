"""JSON as the API, its events and webhooks write it: UTC times ending in Z, ids and decimals as text.

JSON that has been in the database is written as orjson does, also when a number is wider than 64 bits (`dumps_stored`). PostgreSQL keeps
6e23 as a number like any other and gives it back with all of its digits, which Python then reads as a whole number that orjson does not
write. It goes out as the decimal number that came in.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import orjson
from django.utils.functional import Promise

# Datetimes pass through `_write_value`, because orjson would keep the offset of times that are not in UTC.
OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_NON_STR_KEYS


def dumps(data: Any) -> bytes:
    """The bytes of a JSON document as the API writes it."""
    return dumps_stored(data, default=_write_value, option=OPTIONS)


def _write_value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return as_utc(value).isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return format(value, "f")  # text, since a reader's float would lose cents
    if isinstance(value, Promise):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is nothing that JSON can hold")


def as_utc(value: datetime.datetime) -> datetime.datetime:
    """The same moment in UTC. A naive time is taken as UTC, which is what the project uses everywhere."""
    return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)


WIDEST = 2**63


def dumps_stored(value: Any, default: Callable[[Any], Any] | None = None, option: int | None = None) -> bytes:
    """As `orjson.dumps`."""
    try:
        return orjson.dumps(value, default=default, option=option)
    except TypeError as error:
        if "64-bit" not in str(error):
            raise
    return orjson.dumps(_narrow(value), default=default, option=option)


def _narrow(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _narrow(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_narrow(member) for member in value]
    if isinstance(value, int) and not -WIDEST <= value < 2 * WIDEST:
        return float(value)
    return value
