"""Hand-written SQL: one statement per file, prepared once per connection, run on Django's own connection.

The statements of the hot path are long, and planning them anew each time would cost more than running them. Django's
cursor binds parameters on the client and so cannot prepare; these run through psycopg's cursor on the same connection and
in the same transaction, and still pass Django's execute wrappers, so query counts and fault injection see them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psycopg
from django.db import connections
from psycopg.rows import namedtuple_row
from psycopg.types.json import JsonbLoader

from tenants.context import current_alias

Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a `sql/` folder. `run` returns its rows as named tuples."""

    name: str
    text: str

    @classmethod
    def load(cls, folder: Path, name: str) -> Statement:
        return cls(name=name, text=(folder / f"{name}.sql").read_text(encoding="utf-8"))

    def run(self, parameters: Parameters, *, using: str | None = None) -> list[Any]:
        """Execute in the current transaction of the alias and fetch all rows (none when the statement returns nothing)."""
        connection = connections[using or current_alias()]
        connection.ensure_connection()
        connection.validate_no_broken_transaction()
        with (
            connection.wrap_database_errors,
            psycopg.Cursor(connection.connection, row_factory=namedtuple_row) as cursor,
        ):
            # Django asks psycopg for JSON as text, since its fields decode it themselves; here nothing else would.
            cursor.adapters.register_loader("jsonb", _JsonbLoader)
            execute = partial(_execute, cursor)
            for wrapper in reversed(connection.execute_wrappers):
                execute = partial(wrapper, execute)
            execute(self.text, parameters, False, {"connection": connection, "cursor": cursor})
            return cursor.fetchall() if cursor.description else []


class _JsonbLoader(JsonbLoader):
    _loads = staticmethod(orjson.loads)


def _execute(
    cursor: psycopg.Cursor[Any], sql: str, parameters: Parameters, many: bool, context: Mapping[str, Any]
) -> None:
    cursor.execute(sql, parameters, prepare=True)  # text comes from our own files
