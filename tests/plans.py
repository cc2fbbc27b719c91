"""Query plans of PostgreSQL: recorded statements and the rows that they read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

Asked = tuple[str, str, Any]


@contextmanager
def asked_of(*aliases: str) -> Iterator[list[Asked]]:
    """Record the statements that PostgreSQL gets, each with its connection and parameters."""
    found: list[Asked] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        found.append((context["connection"].alias, sql, params))
        return execute(sql, params, many, context)

    wrappers = [connections[alias].execute_wrapper(note) for alias in aliases]
    for wrapper in wrappers:
        wrapper.__enter__()
    try:
        yield found
    finally:
        for wrapper in reversed(wrappers):
            wrapper.__exit__(None, None, None)


def read_from_end_to_end(alias: str, sql: str, params: Any, *, more_than: int) -> list[tuple[str, int]]:
    """The tables of which the statement reads so many rows one after the other, and how many."""
    with connections[alias].cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params or None)
        ((plan,),) = cursor.fetchone()
    return [scan for scan in _scans(plan["Plan"]) if scan[1] > more_than]


def _scans(plan: dict[str, Any]) -> Iterator[tuple[str, int]]:
    if plan["Node Type"] == "Seq Scan":
        read = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        yield plan["Relation Name"], int(read * plan["Actual Loops"])
    for inner in plan.get("Plans", ()):
        yield from _scans(inner)


def rows_read(alias: str, sql: str, params: Any) -> int:
    """Return how many rows the statement reads from tables and indexes together."""
    with connections[alias].cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params or None)
        ((plan,),) = cursor.fetchone()
    return sum(_read(plan["Plan"]))


def _read(plan: dict[str, Any]) -> Iterator[int]:
    if "Relation Name" in plan:
        yield int((plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"])
    for inner in plan.get("Plans", ()):
        yield from _read(inner)
