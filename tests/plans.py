"""Query plans of PostgreSQL: recorded statements and the rows that they read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

Statement = tuple[str, str, Any]


@contextmanager
def recorded_statements(*aliases: str) -> Iterator[list[Statement]]:
    """Record the statements that PostgreSQL receives, each with its connection and parameters."""
    statements: list[Statement] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append((context["connection"].alias, sql, params))
        return execute(sql, params, many, context)

    wrappers = [connections[alias].execute_wrapper(note) for alias in aliases]
    for wrapper in wrappers:
        wrapper.__enter__()
    try:
        yield statements
    finally:
        for wrapper in reversed(wrappers):
            wrapper.__exit__(None, None, None)


def sequential_scans(alias: str, sql: str, params: Any, *, more_than: int) -> list[tuple[str, int]]:
    """Return the tables of which the statement scans more than so many rows sequentially, with the number of rows."""
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
