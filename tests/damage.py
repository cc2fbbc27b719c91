"""Damage done to rows behind the back of the engine, for tests that say what finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction

from tenants.context import OWNER


@contextmanager
def past_all_guards() -> Iterator[Callable[..., int]]:
    """As the owner of the tables, without triggers and foreign keys; the given function runs one statement and counts its rows."""
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")

        def run(statement: str, *parameters: Any) -> int:
            cursor.execute(statement, parameters)
            return cursor.rowcount

        yield run
