"""The database backend `tenants.postgresql`: Django's own, with bounded waits and fewer round trips.

Every wait ends when an answer arrives, when the server is found to be silent (`Silence`), or after `answer_within_seconds`, an option of
the alias. In the last two cases the connection is closed and `OperationalError` is raised, as for a lost connection: it is unknown whether
the statement was executed. Aliases without the option, which are for migrations, wait without a limit.

A transaction costs no round trip before its first statement, because its BEGIN and its settings are sent with that statement
(`begins_with`, `opening`). A statement whose rows are not needed before the commit is sent with the next statement (`keep`, `together`).

A frozen server closes no connection: its kernel still accepts data, so neither keepalives nor TCP time-outs end a wait. A long wait alone
proves nothing either, because a statement may take long. So after `NOTICE_SECONDS` of waiting, one thread per server and process tries a
new connection. If that fails within `PATIENCE_SECONDS`, the server counts as silent, and all waiting threads give up. From then on, a
statement gets `GRACE_SECONDS` and new connections are refused immediately, until the thread, which keeps trying, gets an answer.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from functools import cache
from typing import Any, Protocol

import psycopg
from django.db.backends.postgresql import base, operations
from django.db.backends.postgresql.psycopg_any import IsolationLevel
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.types.datetime import TimestamptzLoader


class Sent(Protocol):
    """A statement that is sent together with others in one round trip."""

    def prepare(self) -> None:
        """Called before anything is sent. An error raised here leaves the connection unchanged."""

    def send(self, pgconn: PGconn) -> int:
        """Send it in pipeline mode. Returns the number of results to expect."""

    def take(self, answers: Sequence[PGresult]) -> None:
        """Take all results; the last one may be an error. Not called if an earlier statement failed."""


class _Command:
    """A command without parameters and rows."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def prepare(self) -> None:
        pass

    def send(self, pgconn: PGconn) -> int:
        pgconn.send_query_params(self._text, None)
        return 1

    def take(self, answers: Sequence[PGresult]) -> None:
        pass


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose waits are bounded. psycopg resumes its generators every 0.1 s without a result; the time is checked then."""

    answer_within_seconds: float | None = None
    silence: Silence
    _setting: bytes = b""
    kept: Sequence[Sent] = ()  # sent together with the next statement of this transaction

    def begins_with(self, setting: bytes) -> bool:
        """Execute `setting` at the start of the transaction that the next statement begins. Nothing is sent yet.

        Returns False, and keeps nothing, within a transaction or in autocommit mode.
        """
        if self.autocommit or self.pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        self._setting = setting
        return True

    def opening(self) -> list[bytes]:
        """Return the commands to send before the next statement. Empty within a transaction."""
        if self.autocommit or self.pgconn.transaction_status != TransactionStatus.IDLE:
            return []
        setting, self._setting = self._setting, b""
        return [self._get_tx_start_command(), *([setting] if setting else [])]

    def is_to_send_more(self) -> bool:
        """Whether anything must be sent before the next statement."""
        return bool(self.kept) or (
            not self.autocommit and self.pgconn.transaction_status == TransactionStatus.IDLE
        )

    def keep(self, statement: Sent) -> bool:
        """Keep `statement` to send it with the next one of this transaction, at the latest with its commit. A rollback discards it.

        Returns False in autocommit mode: then the caller must send it now.
        """
        if self.autocommit:
            return False
        self.kept = (*self.kept, statement)
        return True

    def together(self, *last: Sent) -> PQGen[None]:
        """Send the opening commands, the kept statements and `last` in one round trip. Each takes its results.

        The first error is raised after all results have arrived. The statements after it were not executed.
        """
        pgconn = self.pgconn
        commands: list[Sent] = [*map(_Command, self.opening()), *self.kept, *last]
        self.kept = ()
        for command in commands:
            command.prepare()
        pgconn.enter_pipeline_mode()
        counts = [command.send(pgconn) for command in commands]
        pgconn.pipeline_sync()
        yield from generators.send(pgconn)
        # All results are read before an error is raised, so that none are left on the connection.
        answers: list[PGresult] = []
        while (found := (yield from generators.fetch_many(pgconn))) and (
            found[0].status != ExecStatus.PIPELINE_SYNC
        ):
            answers += found[-1:]
        if found:
            pgconn.exit_pipeline_mode()
        # If the end of the pipeline is missing, the connection was lost. The last result says so.
        fault = next((answer for answer in answers if answer.status == ExecStatus.FATAL_ERROR), None)
        for command, count in zip(commands, counts, strict=True):
            mine, answers = answers[:count], answers[count:]
            if len(mine) == count and mine[-1].status != ExecStatus.PIPELINE_ABORTED:
                command.take(mine)
        if fault is not None:
            raise psycopg.errors.error_from_result(fault)

    def send_kept(self) -> None:
        if self.kept:
            self.wait(self.together())

    def _start_query(self) -> PQGen[None]:
        """psycopg's hook before every statement of a cursor."""
        if self.kept:
            yield from self.together()
        elif opening := self.opening():
            self.pgconn.send_query(b"; ".join(opening))
            for result in (yield from generators.execute(self.pgconn)):
                if result.status == ExecStatus.FATAL_ERROR:
                    raise psycopg.errors.error_from_result(result)

    def _commit_gen(self) -> PQGen[None]:
        if self.kept:
            yield from self.together(_Command(b"COMMIT"))
            return
        self._setting = b""
        yield from super()._commit_gen()

    def _rollback_gen(self) -> PQGen[None]:
        self._setting, self.kept = b"", ()
        yield from super()._rollback_gen()

    def set_autocommit(self, value: bool) -> None:
        # Django calls this twice per transaction, so it must send nothing. It is also Django's first call for a connection from a pool,
        # whatever state that is in.
        self._setting, self.kept = b"", ()
        if self.pgconn.transaction_status == TransactionStatus.IDLE:
            self._autocommit = bool(value)
        else:
            super().set_autocommit(value)

    def wait(self, gen: PQGen[Any], *arguments: Any, **options: Any) -> Any:
        return super().wait(
            gen if self.answer_within_seconds is None else self._bounded(gen), *arguments, **options
        )

    def _bounded(self, gen: PQGen[Any]) -> PQGen[Any]:
        began = time.monotonic()
        try:
            state = next(gen)
            while True:
                ready = yield state
                if not ready:
                    self._give_up_if_silent(time.monotonic() - began)
                state = gen.send(ready)
        except StopIteration as ended:
            return ended.value

    def _give_up_if_silent(self, waited: float) -> None:
        assert self.answer_within_seconds is not None  # noqa: S101 - asked before
        if waited > NOTICE_SECONDS or self.silence.is_known:
            self.silence.suspect()
        if waited > self.answer_within_seconds or (self.silence.is_known and waited > GRACE_SECONDS):
            self.pgconn.finish()
            raise psycopg.OperationalError(
                f"no answer from PostgreSQL for {waited:.1f} s: connection given up"
            )


class DatabaseOperations(operations.DatabaseOperations):
    compiler_module = "tenants.postgresql.compiler"


class DatabaseWrapper(base.DatabaseWrapper):
    ops_class = DatabaseOperations

    @property
    def pool(self) -> Any:
        options = self.settings_dict["OPTIONS"].get("pool")
        if options:
            parameters = {} if options is True else options
            self.settings_dict["OPTIONS"]["pool"] = {**parameters, "connection_class": BoundedConnection}
        return super().pool

    def get_connection_params(self) -> dict[str, Any]:
        parameters: dict[str, Any] = super().get_connection_params()
        parameters.pop("answer_within_seconds", None)
        if self.timezone is UTC:
            parameters["context"] = _with_quick_times(parameters["context"])
        return parameters

    def get_new_connection(self, conn_params: dict[str, Any]) -> psycopg.Connection[Any]:
        if self.pool:
            return super().get_new_connection(conn_params)
        bound = self.settings_dict["OPTIONS"].get("answer_within_seconds")
        self.isolation_level = IsolationLevel.READ_COMMITTED
        if bound is None:
            return BoundedConnection.connect(**conn_params)
        heard = of(conn_params)
        if heard.is_known:
            heard.suspect()
            raise psycopg.OperationalError("PostgreSQL is silent: no connection is tried")
        try:
            connection = BoundedConnection.connect(**conn_params)
        except psycopg.errors.ConnectionTimeout:
            heard.declare()
            raise
        connection.answer_within_seconds, connection.silence = bound, heard
        return connection

    def create_cursor(self, name: str | None = None) -> Any:
        # Django's reads the time zone of its own loader of times.
        if self.timezone is not UTC:
            return super().create_cursor(name)
        if name:
            cursor: Any = base.ServerSideCursor  # its stub has no arguments
            return cursor(self.connection, name=name, scrollable=False, withhold=self.connection.autocommit)
        return self.connection.cursor()


@cache
def _with_quick_times(adapters: AdaptersMap) -> AdaptersMap:
    """Return these adapters with psycopg's loader of times, which is compiled.

    In UTC it returns the same as Django's, which is in Python and took a hundredth of the time of all requests and work.
    """
    quick = AdaptersMap(adapters)
    quick.register_loader("timestamptz", TimestamptzLoader)
    return quick


logger = logging.getLogger(__name__)

NOTICE_SECONDS = 1.0
# Whole seconds, for libpq. With NOTICE_SECONDS: how long a silent server keeps anybody waiting.
PATIENCE_SECONDS = 3
GRACE_SECONDS = 0.3
PAUSE_SECONDS = 0.5  # between two tries
UNWANTED_SECONDS = 10.0  # without a caller for so long, the thread ends; the next caller starts it again

#: The parameters that identify the server and the login. The others concern connections in use.
_WHERE = {
    "host", "hostaddr", "port", "dbname", "user", "password", "passfile", "service", "sslmode", "sslrootcert", "sslcert", "sslkey",
}  # fmt: skip


class Silence:
    """Whether one server is silent, as far as this process knows. Thread-safe."""

    def __init__(self, answers: Callable[[], bool]) -> None:
        self._answers = answers
        self._lock = threading.Lock()
        self._is_checking = False
        self._last_caller_at = 0.0
        self.is_known = False

    def suspect(self) -> None:
        """Start the thread that checks the server, unless it is running."""
        self._last_caller_at = time.monotonic()
        with self._lock:
            if self._is_checking:
                return
            with suppress(RuntimeError):  # no thread can be started now: the next caller tries again
                threading.Thread(target=self._check, name="postgresql-silence", daemon=True).start()
                self._is_checking = True  # set last: a thread that could not be started would never end

    def declare(self) -> None:
        """Declare the server silent, because a new connection was not made in time."""
        self.is_known = True
        self.suspect()

    def _check(self) -> None:
        while True:
            answers = self._answers()
            if self.is_known == answers:
                facts = {"action": "postgresql_answers" if answers else "postgresql_silent"}
                logger.warning("PostgreSQL answers again" if answers else "PostgreSQL is silent", extra=facts)
            self.is_known = not answers
            with self._lock:
                unused_seconds = time.monotonic() - self._last_caller_at
                if unused_seconds > (PAUSE_SECONDS if answers else UNWANTED_SECONDS):
                    self._is_checking = False
                    return
            time.sleep(PAUSE_SECONDS)


def of(where: Mapping[str, Any]) -> Silence:
    """Return the state of the server that these connection parameters identify."""
    login = {name: value for name, value in where.items() if name in _WHERE}
    key = tuple(sorted((name, str(login.get(name, ""))) for name in ("host", "hostaddr", "port", "service")))
    silence = _servers.get(key)
    if silence is None:
        silence = _servers.setdefault(key, Silence(lambda: _is_answered(login)))
    return silence


def _is_answered(where: Mapping[str, Any]) -> bool:
    """Whether the server accepts a new connection, or refuses it with an error of its own, which is an answer too."""
    try:
        psycopg.connect(**where, connect_timeout=PATIENCE_SECONDS, autocommit=True).close()
    except psycopg.Error as error:
        return "FATAL:" in str(error)
    return True


_servers: dict[tuple[tuple[str, str], ...], Silence] = {}
# The checking thread does not exist in a child, where nobody could release its lock.
os.register_at_fork(after_in_child=_servers.clear)
