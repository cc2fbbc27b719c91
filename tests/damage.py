"""Damages rows behind the engine's back, for tests of what detects the damage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction

from tenants.context import OWNER

_CHANGED = re.compile(r"\b(?:UPDATE|DELETE FROM|INSERT INTO) (\w+)")
_COLUMNS = """
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""


@contextmanager
def without_guards() -> Iterator[Callable[..., int]]:
    """Yield a function that runs a statement without triggers and foreign keys and returns the number of its rows."""
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")

        def run(statement: str, *parameters: Any) -> int:
            cursor.execute(statement, parameters)
            return cursor.rowcount

        yield run


@contextmanager
def temporary_damage(*statements: str) -> Iterator[list[int]]:
    """Run the statements, yield how many rows each has changed, and restore their tables at the end of the block.

    Restoring rows takes less time than creating the same work again for each damage.
    """
    tables = sorted({table for statement in statements for table in _CHANGED.findall(statement)})
    with without_guards() as run:
        for table in tables:
            run(f"CREATE TEMPORARY TABLE was_{table} AS TABLE {table}")
        changed = [run(statement) for statement in statements]
    try:
        yield changed
    finally:
        with without_guards() as run, connections[OWNER].cursor() as cursor:
            for table in tables:
                cursor.execute(_COLUMNS, [table])
                (columns,) = cursor.fetchone()
                run(f"DELETE FROM {table}")
                run(
                    f"INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM was_{table}"
                )
                run(f"DROP TABLE was_{table}")
