"""Times that PostgreSQL returns."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
import pytest
from django.db import connections
from psycopg.pq import Format
from psycopg.types.datetime import TimestamptzLoader


@pytest.mark.parametrize("alias", ["default", "system", "admin", "owner"])
def test_times_are_read_in_utc_by_compiled_code(alias: str) -> None:
    kind = psycopg.adapters.types["timestamptz"].oid
    adapters = connections[alias].get_connection_params()["context"]

    loader = adapters.get_loader(kind, Format.TEXT)(kind)

    read = loader.load(b"2026-05-01 12:30:00.25+02")
    assert read == datetime(2026, 5, 1, 10, 30, 0, 250_000, tzinfo=UTC)
    assert read.tzinfo is UTC
    assert not isinstance(loader, TimestamptzLoader), "this one is in Python"
