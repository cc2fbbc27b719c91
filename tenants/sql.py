"""Hand-written SQL: one statement per file, prepared once per connection, executed on Django's own connection.

The statements of the hot path are long, and planning them each time would cost more than executing them. Django's cursor binds parameters
on the client, so it cannot prepare statements. These go to libpq directly, on the same connection and in the same transaction. They still
pass through Django's execute wrappers, so that query counts and fault injection see them.

They use no cursor, because it would parse the placeholders and look up converters and column names in each execution. Here this is done
once per text or once per connection.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import orjson
import psycopg
from django.db import connections
from django.db.models import QuerySet
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap, PyFormat, Transformer
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.types.json import JsonbLoader

from tenants.context import current_alias
from tenants.postgresql.base import BoundedConnection

Parameters = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, mostly one of a `sql/` folder, with parameters written as %(name)s."""

    name: str
    text: str

    @classmethod
    def load(cls, folder: Path, name: str) -> Statement:
        return cls(name=name, text=(folder / f"{name}.sql").read_text(encoding="utf-8"))

    @classmethod
    def of_queryset(cls, name: str, rows: QuerySet[Any], *, using: str) -> Statement:
        """Return the statement of a queryset, for queries that run every second: keep it, because compiling and planning it costs more than
        executing it.

        The values of its conditions become literals, because with parameters instead its plan could not use partial indexes.
        """
        operations: Any = connections[using].ops
        return cls(name, operations.compose_sql(*rows.query.sql_with_params()).replace("%", "%%"))

    def with_parts(self, parts: Mapping[str, str]) -> Statement:
        """Return the statement with these texts instead of its placeholders {name}. Parts may contain placeholders of later ones."""
        text = self.text
        for name, part in parts.items():
            text = text.replace(f"{{{name}}}", part)
        return Statement(self.name, text)

    def run(self, parameters: Parameters, *, using: str | None = None) -> list[Any]:
        """Execute the statement in the current transaction of the alias. Returns its rows as named tuples."""
        return self._execute(parameters, using, _PreparedStatements.run)

    def run_with_next(
        self, parameters: Parameters, *, using: str | None = None, lists: Collection[str] = ()
    ) -> Rows:
        """As `run`, but send the statement together with the next one of the transaction, at the latest its commit. Its rows come later.

        `lists`: names of parameters that are lists of rows to process. If the same statement with otherwise equal parameters is still
        pending, both are merged into one, and each returns the rows of both. By this the caller states that the order among the pending
        statements does not matter.

        An error of the statement is raised by the statement that it was sent with, and rolls back the transaction.
        """
        connection = connections[using or current_alias()]
        rows = self._execute(parameters, using, partial(_PreparedStatements.keep, lists=lists))
        rows.errors = connection.wrap_database_errors
        return rows

    def _execute(
        self,
        parameters: Parameters,
        using: str | None,
        way: Callable[[_PreparedStatements, str, Parameters], T],
    ) -> T:
        connection = connections[using or current_alias()]
        if connection.connection is None:
            connection.ensure_connection()
        connection.validate_no_broken_transaction()
        with connection.wrap_database_errors:
            prepared = _PreparedStatements.on(connection.connection)
            if not connection.execute_wrappers:
                return way(prepared, self.text, parameters)
            found: list[T] = []

            def execute(sql: str, parameters: Parameters, many: bool, context: object) -> None:
                found[:] = [way(prepared, sql, parameters)]

            execution: Callable[..., None] = execute
            for wrapper in reversed(connection.execute_wrappers):
                execution = partial(wrapper, execution)
            execution(self.text, parameters, False, {"connection": connection, "cursor": None})
            return found[0]


def lock_name(name: str, *, using: str) -> None:
    """Lock a name until the end of the transaction, where no row can be locked: there is none yet, or others need it meanwhile."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])


def load_parts(folder: Path, name: str) -> dict[str, str]:
    """Return the parts of a file for `Statement.with_parts`. Each begins with a line `-- part: name`."""
    text = (folder / f"{name}.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- part: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], map(str.strip, parts[1::2]), strict=True))


class Array(list[Any]):
    """An array parameter of texts, ids or numbers in PostgreSQL's syntax, which saves psycopg's inspection of each member. The statement
    must cast it to its type."""

    def text(self) -> str:
        return f"{{{','.join(map(_member, self))}}}"


class JsonArray(list[bytes]):
    """A JSON array parameter, as text. Its members are JSON already."""

    def text(self) -> str:
        return (b"[" + b",".join(self) + b"]").decode()


def _member(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


class _JsonbLoader(JsonbLoader):
    _loads = staticmethod(orjson.loads)


#: A statement and the types of its parameters. With other types it is prepared again. (None has no type, and integers have several.)
_Key = tuple[bytes, tuple[int, ...]]
_MOST_PREPARED = 500  # per connection; further statements are parsed each time


class Rows:
    """The rows of a statement that is sent together with another one, or with the commit."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._rows: list[Any] | None = None
        self.pending: _MergedStatement | None = None
        self.errors: AbstractContextManager[Any] = nullcontext()

    def fetch(self) -> list[Any]:
        """Return the rows. Sends the statement if it is still pending. Raises `LookupError` if the transaction was rolled back before."""
        if self._rows is None:
            with self.errors:
                self._send()
        if self._rows is None:
            raise LookupError("the statement was not executed")
        return self._rows

    def replace(self, text: str, parameters: Parameters) -> bool:
        """Send this statement, with these additional parameters, instead of the pending one. Returns False if that was sent already."""
        if self.pending is None or self._rows is not None:
            return False
        self.pending.replace(text, parameters)
        return True

    def set(self, rows: list[Any]) -> None:
        self._rows = rows


# PostgreSQL no longer knows the name, or the columns of a table have changed.
_STALE = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.FeatureNotSupported)


class _PreparedStatements:
    """The prepared statements of one connection, with the converters of their parameters and rows."""

    _ATTRIBUTE = "_orchestrator_prepared"

    @classmethod
    def on(cls, raw: BoundedConnection) -> _PreparedStatements:
        found: _PreparedStatements | None = raw.__dict__.get(cls._ATTRIBUTE)
        if found is None:
            found = raw.__dict__[cls._ATTRIBUTE] = cls(raw)
        return found

    def __init__(self, raw: BoundedConnection) -> None:
        adapters = AdaptersMap(raw.adapters)
        # Django has psycopg return JSON as text, because its fields decode it. Here nothing else would decode it.
        adapters.register_loader("jsonb", _JsonbLoader)
        self._raw = raw
        self._transformer = Transformer.from_context(_Context(adapters, raw))
        self._names: dict[_Key, bytes] = {}
        self._count = 0
        self._rows: dict[_Key, Callable[..., Any]] = {}

    def run(self, text: str, parameters: Parameters) -> list[Any]:
        raw = self._raw
        with raw.lock:
            execution = self._execution(text, parameters)
            raw.wait(self._execute_gen(execution))
            return execution.rows.fetch()

    def keep(self, text: str, parameters: Parameters, lists: Collection[str] = ()) -> Rows:
        """Send the statement together with the next one; immediately if there is no transaction."""
        raw = self._raw
        with raw.lock:
            for kept in raw.kept if lists else ():
                if isinstance(kept, _MergedStatement) and kept.add(text, parameters):
                    return kept.rows
            if lists and raw.keep(
                merged := _MergedStatement(self, text, parameters, lists, Rows(self._send))
            ):
                return merged.rows
            execution = self._execution(text, parameters)
            if lists or not raw.keep(execution):
                raw.wait(self._execute_gen(execution))
            return execution.rows

    def _execution(self, text: str, parameters: Parameters) -> _Execution:
        query, names, formats = _convert(text)
        transformer = self._transformer
        arguments = [
            value.text() if isinstance(value := parameters[name], JsonArray | Array) else value
            for name in names
        ]
        values = transformer.dump_sequence(arguments, formats)
        return _Execution(
            self, (query, tuple(transformer.types or ())), values, transformer.formats, Rows(self._send)
        )

    def _send(self) -> None:
        self._raw.send_kept()

    def _execute_gen(self, execution: _Execution) -> PQGen[None]:
        """Execute in one round trip, together with what must be sent before."""
        raw, name = self._raw, self._names.get(execution.key)
        if name is None or raw.is_to_send_more():
            yield from raw.together(execution)
            return
        raw.pgconn.send_query_prepared(name, execution.values, param_formats=execution.formats)
        answers = yield from generators.execute(raw.pgconn)
        execution.take(answers)
        if answers[-1].status == ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(answers[-1])

    def name(self, key: _Key) -> tuple[bytes, bool]:
        """Return the name of the prepared statement, and whether it must be prepared first."""
        if name := self._names.get(key):
            return name, False
        if self._count == _MOST_PREPARED:
            return b"", True
        self._count += 1
        return f"orchestrator_{self._count}".encode(), True

    def failed(self, key: _Key, result: PGresult) -> None:
        """Forget a statement that PostgreSQL no longer knows, so that it is prepared again the next time."""
        if isinstance(psycopg.errors.error_from_result(result), _STALE):
            self._names.pop(key, None)
            self._rows.pop(key, None)

    def read_rows(self, key: _Key, name: bytes, result: PGresult) -> list[Any]:
        """Return the rows of a result. `name`: the name under which the statement was prepared, or empty."""
        if name:
            self._names[key] = name
        if result.status != ExecStatus.TUPLES_OK:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(
            0, result.ntuples, self._rows.get(key) or self._row_of(key, result)
        )

    def _row_of(self, key: _Key, result: PGresult) -> Callable[..., Any]:
        # The columns of a prepared statement never change, because PostgreSQL would refuse to execute it.
        names = tuple((result.fname(i) or b"").decode() for i in range(result.nfields))
        row_type = self._rows[key] = _row_type(names)
        return row_type


@dataclass(slots=True)
class _Execution:
    """A statement with its values, for `BoundedConnection.together`."""

    prepared: _PreparedStatements
    key: _Key
    values: Any
    formats: Any
    rows: Rows
    name: bytes = b""

    def prepare(self) -> None:
        pass

    def send(self, pgconn: PGconn) -> int:
        self.name, is_new = self.prepared.name(self.key)
        if is_new:
            pgconn.send_prepare(self.name, self.key[0], param_types=self.key[1])
        pgconn.send_query_prepared(self.name, self.values, param_formats=self.formats)
        return 1 + is_new

    def take(self, answers: Sequence[PGresult]) -> None:
        if answers[-1].status == ExecStatus.FATAL_ERROR:
            self.prepared.failed(self.key, answers[-1])
        else:
            self.rows.set(self.prepared.read_rows(self.key, self.name, answers[-1]))


class _MergedStatement:
    """One statement for the lists of several calls. Its values are converted when it is sent."""

    def __init__(
        self,
        prepared: _PreparedStatements,
        text: str,
        parameters: Parameters,
        lists: Collection[str],
        rows: Rows,
    ) -> None:
        self.rows = rows
        self.rows.pending = self
        self._prepared, self._text = prepared, text
        self._lists = {name: type(parameters[name])(parameters[name]) for name in lists}
        self._others = {name: value for name, value in parameters.items() if name not in lists}
        self._execution: _Execution | None = None

    def add(self, text: str, parameters: Parameters) -> bool:
        """Add these lists. Returns False if the statement or its other parameters differ."""
        if text != self._text or any(parameters[name] != value for name, value in self._others.items()):
            return False
        for name, values in self._lists.items():
            values.extend(parameters[name])
        return True

    def replace(self, text: str, parameters: Parameters) -> None:
        self._text = text
        self._others |= parameters

    def prepare(self) -> None:
        self._execution = self._prepared._execution(self._text, {**self._others, **self._lists})
        self._execution.rows = self.rows

    def send(self, pgconn: PGconn) -> int:
        assert self._execution is not None  # noqa: S101 - it was prepared
        return self._execution.send(pgconn)

    def take(self, answers: Sequence[PGresult]) -> None:
        assert self._execution is not None  # noqa: S101 - it was prepared
        self._execution.take(answers)


@dataclass(frozen=True, slots=True)
class _Context:
    adapters: AdaptersMap
    connection: psycopg.Connection[Any]


@lru_cache(maxsize=1024)
def _row_type(names: tuple[str, ...]) -> Callable[..., Any]:
    make: Callable[..., Any] = namedtuple("Row", names, rename=True)._make  # type: ignore[attr-defined]
    return make


_TOKENS = re.compile(r"--[^\n]*|(?P<string>'(?:[^']|'')*')|%\((?P<name>\w+)\)s|%%|(?P<space>\s+)")


@lru_cache(maxsize=1024)
def _convert(text: str) -> tuple[bytes, tuple[str, ...], list[PyFormat]]:
    """Return the statement in PostgreSQL's syntax without comments, the names of its parameters in order, and their formats."""
    numbers: dict[str, int] = {}

    def replaced(token: re.Match[str]) -> str:
        if name := token["name"]:
            return f"${numbers.setdefault(name, len(numbers) + 1)}"
        if string := token["string"]:
            return string.replace("%%", "%")
        return "%" if token[0] == "%%" else " "

    query = _TOKENS.sub(replaced, text).strip().encode()
    return query, tuple(numbers), [PyFormat.AUTO] * len(numbers)
