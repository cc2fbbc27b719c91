"""JSON as the API, its events and webhooks write it: UTC times ending in Z, ids and decimals as text."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import orjson
from django.utils.functional import Promise

from tenants import wide_json

# Datetimes pass through `_written`, because orjson would keep the offset of times that are not in UTC.
OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_NON_STR_KEYS


def dumps(data: Any) -> bytes:
    """The bytes of a JSON document as the API writes it."""
    return wide_json.dumps(data, default=_written, option=OPTIONS)


def _written(value: Any) -> Any:
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
