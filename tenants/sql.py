"""Hand-written SQL: one statement per file, prepared once per connection, run on Django's own connection.

The statements of the hot path are long, and planning them anew each time would cost more than running them. Django's
cursor binds parameters on the client and so cannot prepare; these run through psycopg's cursor on the same connection and
in the same transaction, and still pass Django's execute wrappers, so query counts and fault injection see them.

psycopg would look for placeholders in the text at every execution (it remembers short texts only). Here that happens once per text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import orjson
import psycopg
from django.db import connections
from psycopg.adapt import AdaptersMap
from psycopg.pq import ExecStatus
from psycopg.rows import namedtuple_row
from psycopg.types.json import JsonbLoader

from tenants.context import current_alias

Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a `sql/` folder, with parameters as %(name)s. `run` returns its rows as named tuples."""

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
        with connection.wrap_database_errors, _Cursor(connection.connection) as cursor:
            if not connection.execute_wrappers:
                _execute(cursor, self.text, parameters)
            else:
                execute = partial(_execute, cursor)
                for wrapper in reversed(connection.execute_wrappers):
                    execute = partial(wrapper, execute)
                execute(self.text, parameters, False, {"connection": connection, "cursor": cursor})
            result = cursor.pgresult
            return cursor.fetchall() if result and result.status == ExecStatus.TUPLES_OK else []


class _JsonbLoader(JsonbLoader):
    _loads = staticmethod(orjson.loads)


class _Cursor(psycopg.RawCursor[Any]):
    """Takes the parameters of PostgreSQL itself ($1), and decodes JSON."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection, row_factory=namedtuple_row)
        self._adapters = _adapters_of(connection)  # each cursor would make its own


_adapters: WeakKeyDictionary[psycopg.Connection[Any], AdaptersMap] = WeakKeyDictionary()


def _adapters_of(connection: psycopg.Connection[Any]) -> AdaptersMap:
    found = _adapters.get(connection)
    if found is None:
        found = _adapters[connection] = AdaptersMap(connection.adapters)
        # Django asks psycopg for JSON as text, since its fields decode it themselves; here nothing else would.
        found.register_loader("jsonb", _JsonbLoader)
    return found


def _execute(
    cursor: psycopg.Cursor[Any], sql: str, parameters: Parameters, many: bool = False, context: object = None
) -> None:
    query, names = _converted(sql)
    cursor.execute(query, [parameters[name] for name in names], prepare=True)  # text comes from our own files


_TOKENS = re.compile(r"--[^\n]*|(?P<string>'(?:[^']|'')*')|%\((?P<name>\w+)\)s|%%|(?P<space>\s+)")


@lru_cache(maxsize=1024)
def _converted(text: str) -> tuple[bytes, tuple[str, ...]]:
    """The statement for PostgreSQL, without comments, and the names of its parameters in the order of their numbers."""
    numbers: dict[str, int] = {}

    def replaced(token: re.Match[str]) -> str:
        if name := token["name"]:
            return f"${numbers.setdefault(name, len(numbers) + 1)}"
        if string := token["string"]:
            return string.replace("%%", "%")
        return "%" if token[0] == "%%" else " "

    return _TOKENS.sub(replaced, text).strip().encode(), tuple(numbers)
