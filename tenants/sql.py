"""Hand-written SQL: one statement per file, prepared once per connection, run on Django's own connection.

The statements of the hot path are long, and planning them anew each time would cost more than running them. Django's
cursor binds parameters on the client and so cannot prepare; these go to libpq on the same connection and in the same
transaction, and still pass Django's execute wrappers, so query counts and fault injection see them.

No cursor is made for them. One would look for placeholders in the text, for the ways to write parameters and to read columns, and for the
names of columns each time; here that happens once for each text, or once for each connection.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import orjson
import psycopg
from django.db import connections
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap, PyFormat, Transformer
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult
from psycopg.types.json import JsonbLoader

from tenants.context import current_alias
from tenants.postgresql.base import BoundedConnection

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
        if connection.connection is None:
            connection.ensure_connection()
        connection.validate_no_broken_transaction()
        with connection.wrap_database_errors:
            prepared = _Prepared.on(connection.connection)
            if not connection.execute_wrappers:
                return prepared.run(self.text, parameters)
            rows: list[Any] = []

            def execute(sql: str, parameters: Parameters, many: bool, context: object) -> None:
                rows[:] = prepared.run(sql, parameters)

            execution: Callable[..., None] = execute
            for wrapper in reversed(connection.execute_wrappers):
                execution = partial(wrapper, execution)
            execution(self.text, parameters, False, {"connection": connection, "cursor": None})
            return rows


class _JsonbLoader(JsonbLoader):
    _loads = staticmethod(orjson.loads)


#: A statement and the types of its parameters; with others it is prepared anew. None has no type, a number that of its size.
_Key = tuple[bytes, tuple[int, ...]]
_MOST_PREPARED = 500  # on one connection; those that come after are parsed each time

# PostgreSQL does not know a name any more, or a table has changed its columns since.
_STALE = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.FeatureNotSupported)


class _Prepared:
    """The statements that are prepared on one connection, and how their parameters are written and their rows read."""

    _ATTRIBUTE = "_orchestrator_prepared"

    @classmethod
    def on(cls, raw: BoundedConnection) -> _Prepared:
        found: _Prepared | None = raw.__dict__.get(cls._ATTRIBUTE)
        if found is None:
            found = raw.__dict__[cls._ATTRIBUTE] = cls(raw)
        return found

    def __init__(self, raw: BoundedConnection) -> None:
        adapters = AdaptersMap(raw.adapters)
        # Django asks psycopg for JSON as text, since its fields decode it themselves; here nothing else would.
        adapters.register_loader("jsonb", _JsonbLoader)
        self._raw = raw
        self._transformer = Transformer.from_context(_Context(adapters, raw))
        self._names: dict[_Key, bytes] = {}
        self._given = 0
        self._rows: dict[_Key, Callable[..., Any]] = {}

    def run(self, text: str, parameters: Parameters) -> list[Any]:
        query, names, formats = _converted(text)
        raw, transformer = self._raw, self._transformer
        with raw.lock:
            values = transformer.dump_sequence([parameters[name] for name in names], formats)
            key = (query, tuple(transformer.types or ()))
            try:
                result = raw.wait(self._executed(key, values))
            except _STALE:
                self._names.pop(key, None)
                self._rows.pop(key, None)
                raise
            if result.status != ExecStatus.TUPLES_OK:
                return []
            transformer.set_pgresult(result)
            return transformer.load_rows(0, result.ntuples, self._rows.get(key) or self._row_of(key, result))

    def _executed(self, key: _Key, values: Any) -> PQGen[PGresult]:
        """Send the statement together with what has to go before it, in one round trip, and read its result."""
        pgconn = self._raw.pgconn
        opening = self._raw.opening()
        name, is_new = self._names.get(key), False
        if name is None:
            name = b""
            if self._given < _MOST_PREPARED:
                self._given += 1
                name = f"orchestrator_{self._given}".encode()
            is_new = True
        if not opening and not is_new:
            pgconn.send_query_prepared(name, values, param_formats=self._transformer.formats)
            return _checked((yield from generators.execute(pgconn)))
        pgconn.enter_pipeline_mode()
        for each in opening:
            pgconn.send_query_params(each, None)
        if is_new:
            pgconn.send_prepare(name, key[0], param_types=key[1])
        pgconn.send_query_prepared(name, values, param_formats=self._transformer.formats)
        pgconn.pipeline_sync()
        yield from generators.send(pgconn)
        # All answers are read before the first of them that is an error is raised, or the connection would be left with the rest.
        answers = []
        while (found := (yield from generators.fetch_many(pgconn))) and found[
            0
        ].status != ExecStatus.PIPELINE_SYNC:
            answers.append(found)
        if found:
            pgconn.exit_pipeline_mode()
        # Without the end of the pipeline the connection was lost, which the last answer says.
        for before in answers[:-1]:
            _checked(before)
        if is_new and name:
            self._names[key] = name
        return _checked(answers[-1])

    def _row_of(self, key: _Key, result: PGresult) -> Callable[..., Any]:
        # The columns of a prepared statement stay the same: PostgreSQL refuses it when they would be others.
        names = tuple((result.fname(i) or b"").decode() for i in range(result.nfields))
        made = self._rows[key] = _row_type(names)
        return made


@dataclass(frozen=True, slots=True)
class _Context:
    adapters: AdaptersMap
    connection: psycopg.Connection[Any]


def _checked(results: list[PGresult]) -> PGresult:
    result = results[-1]
    if result.status == ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(result)
    return result


@lru_cache(maxsize=1024)
def _row_type(names: tuple[str, ...]) -> Callable[..., Any]:
    made: Callable[..., Any] = namedtuple("Row", names, rename=True)._make  # type: ignore[attr-defined]
    return made


_TOKENS = re.compile(r"--[^\n]*|(?P<string>'(?:[^']|'')*')|%\((?P<name>\w+)\)s|%%|(?P<space>\s+)")


@lru_cache(maxsize=1024)
def _converted(text: str) -> tuple[bytes, tuple[str, ...], list[PyFormat]]:
    """The statement for PostgreSQL, without comments; its parameters' names in the order of their numbers, and how they are written."""
    numbers: dict[str, int] = {}

    def replaced(token: re.Match[str]) -> str:
        if name := token["name"]:
            return f"${numbers.setdefault(name, len(numbers) + 1)}"
        if string := token["string"]:
            return string.replace("%%", "%")
        return "%" if token[0] == "%%" else " "

    query = _TOKENS.sub(replaced, text).strip().encode()
    return query, tuple(numbers), [PyFormat.AUTO] * len(numbers)
