"""Times of rows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connections

from tenants.context import OWNER

TIMES = [
    "2026-02-28 23:59:59.999999+00",
    "1883-11-18 12:00:00-04:56:02",
    "0001-01-01 00:00:00+00",
    "9999-12-31 23:59:59+00",
]


@pytest.mark.parametrize("alias", ["default", OWNER])
@pytest.mark.parametrize("name", [None, "in_parts"])
@pytest.mark.usefixtures("database")
def test_times_are_read_in_utc_by_a_compiled_loader(alias: str, name: str | None) -> None:
    connection = connections[alias]
    connection.ensure_connection()
    with connection.create_cursor(name) as cursor:
        cursor.execute("SELECT unnest(%s::timestamptz[])", [TIMES])
        times = [time for (time,) in cursor.fetchall()]
        loader = cursor.adapters.get_loader(connection.connection.adapters.types["timestamptz"].oid, 0)
    connection.rollback()

    assert times == [datetime.fromisoformat(time) for time in TIMES]
    assert {time.tzinfo for time in times} == {UTC}
    assert loader.__module__.endswith("._psycopg")
