"""Each statement that PostgreSQL is sent within a span becomes a span. Its text has places for values, and never the values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created

from tenants import tracing

LONGEST_TEXT = 1_000
_FIRST_WORD = re.compile(r"\s*(?:--[^\n]*\n\s*)*([A-Za-z]+)")
_LITERAL = re.compile(r"'(?:[^']|'')*'")


def watch() -> None:
    """Have statements of all connections become spans, those that are open in this thread as well."""
    connection_created.connect(_watch_new, dispatch_uid="tenants.tracing.statements")
    for connection in connections.all(initialized_only=True):
        _watch(connection)


def _watch_new(connection: Any, **kwargs: Any) -> None:
    _watch(connection)


def _watch(connection: Any) -> None:
    if _traced not in connection.execute_wrappers:
        connection.execute_wrappers.append(_traced)


def _traced(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
    if not tracing.is_on():
        return execute(sql, params, many, context)
    text = str(sql)
    word = _FIRST_WORD.match(text)
    operation = word[1].upper() if word else "SQL"
    attributes = {
        "db.system.name": "postgresql",
        "db.operation.name": operation,
        "db.query.text": _LITERAL.sub("'?'", text)[:LONGEST_TEXT],
    }
    with tracing.part(f"postgresql {operation}", tracing.CLIENT, **attributes):
        return execute(sql, params, many, context)
