"""The backend that `ENGINE: "tenants.postgresql"` names: Django's own, whose connections do not wait for ever.

Every wait ends: an answer arrives, the server is found to be silent (`Silence`), or `answer_within_seconds`, an option
of the alias, is over. In the last two cases the connection is closed and `OperationalError` is raised, as for one that was lost: nobody
knows whether the statement was carried out. Aliases without the option, those of migrations, wait as long as the server takes.

A transaction costs no round trip before its first statement: what it begins with is kept here until then (`begins_with`, `opening`). Nor
does a statement whose rows nobody needs before the commit: it is kept, too, and goes with what is sent next (`keep`, `together`).

A server that is frozen closes no connection: its kernel goes on taking what is sent, so neither keepalives nor TCP's own time-outs end a
wait. A long wait alone proves nothing either, since a statement may take its time. So a thread that waited for `NOTICE_SECONDS` has a new
connection tried, by one thread per server and process. If that is not made within `PATIENCE_SECONDS`, the server is silent, and all who
wait give up. From then on a statement gets `GRACE_SECONDS` and new connections are refused at once, until the thread, which goes on
trying, is answered. Costs nothing for statements that are answered at once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import psycopg
from django.db.backends.postgresql import base
from django.db.backends.postgresql.psycopg_any import IsolationLevel
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult


class Sent(Protocol):
    """What is sent together with others in one round trip."""

    def prepare(self) -> None:
        """Before anything is sent: what fails here leaves the connection as it was."""

    def send(self, pgconn: PGconn) -> int:
        """In pipeline mode; how many answers will come."""

    def take(self, answers: Sequence[PGresult]) -> None:
        """All of them; the last may be an error. Not called when something before it has failed."""


class _Command:
    """One that has no parameters and whose answer says nothing more than whether it was carried out."""

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
    """psycopg tells its generators every 0.1 s that nothing has happened: then we look at the time."""

    answer_within_seconds: float | None = None
    silence: Silence
    _setting: bytes = b""
    kept: Sequence[Sent] = ()  # what goes with the next statement of this transaction

    def begins_with(self, setting: bytes) -> bool:
        """Let the transaction that begins with the next statement carry out `setting` before it; nothing is sent yet.

        False, and nothing is kept, when a transaction is under way or none begins by itself. Forgotten at the transaction's end.
        """
        if self.autocommit or self.pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        self._setting = setting
        return True

    def opening(self) -> list[bytes]:
        """What has to go before the next statement, to be sent together with it: nothing in a transaction."""
        if self.autocommit or self.pgconn.transaction_status != TransactionStatus.IDLE:
            return []
        setting, self._setting = self._setting, b""
        return [self._get_tx_start_command(), *([setting] if setting else [])]

    def is_to_send_more(self) -> bool:
        """Whether something has to go before the next statement, or with it."""
        return bool(self.kept) or (
            not self.autocommit and self.pgconn.transaction_status == TransactionStatus.IDLE
        )

    def keep(self, statement: Sent) -> bool:
        """Let `statement` go with what is sent next in this transaction, at the latest with its commit. False, outside of one, if it has to
        be sent now. A transaction that is rolled back forgets it."""
        if self.autocommit:
            return False
        self.kept = (*self.kept, statement)
        return True

    def together(self, *last: Sent) -> PQGen[None]:
        """Send what has to go before the next statement, what was kept, and `last`, in one round trip; each takes its answers.

        The first error is raised when all answers are there: what came after it was not carried out.
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
        # All answers are read before an error is raised, or the connection would be left with the rest.
        answers: list[PGresult] = []
        while (found := (yield from generators.fetch_many(pgconn))) and (
            found[0].status != ExecStatus.PIPELINE_SYNC
        ):
            answers += found[-1:]
        if found:
            pgconn.exit_pipeline_mode()
        # Without the end of the pipeline the connection was lost, which the last answer says.
        fault = next((answer for answer in answers if answer.status == ExecStatus.FATAL_ERROR), None)
        for command, count in zip(commands, counts, strict=True):
            mine, answers = answers[:count], answers[count:]
            if len(mine) == count and mine[-1].status != ExecStatus.PIPELINE_ABORTED:
                command.take(mine)
        if fault is not None:
            raise psycopg.errors.error_from_result(fault)

    def send_kept(self) -> None:
        """Send now what was kept."""
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
        # Twice for each transaction of Django's, and nothing is sent for it. It is also the first that Django does with a connection from
        # a pool, however that came back to it.
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
                    self._give_up_if_in_vain(time.monotonic() - began)
                state = gen.send(ready)
        except StopIteration as ended:
            return ended.value

    def _give_up_if_in_vain(self, waited: float) -> None:
        assert self.answer_within_seconds is not None  # noqa: S101 - asked before
        if waited > NOTICE_SECONDS or self.silence.is_known:
            self.silence.suspect()
        if waited > self.answer_within_seconds or (self.silence.is_known and waited > GRACE_SECONDS):
            self.pgconn.finish()
            raise psycopg.OperationalError(
                f"no answer from PostgreSQL for {waited:.1f} s: connection given up"
            )


class DatabaseWrapper(base.DatabaseWrapper):
    @property
    def pool(self) -> Any:
        options = self.settings_dict["OPTIONS"].get("pool")
        if options:
            given = {} if options is True else options
            self.settings_dict["OPTIONS"]["pool"] = {**given, "connection_class": BoundedConnection}
        return super().pool

    def get_connection_params(self) -> dict[str, Any]:
        parameters: dict[str, Any] = super().get_connection_params()
        parameters.pop("answer_within_seconds", None)
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


logger = logging.getLogger(__name__)

NOTICE_SECONDS = 1.0
PATIENCE_SECONDS = (
    3  # whole seconds, for libpq. With NOTICE_SECONDS: how long a silent server keeps anybody waiting.
)
GRACE_SECONDS = 0.3
PAUSE_SECONDS = 0.5  # between two tries
UNWANTED_SECONDS = 10.0  # nobody has asked for anything for so long: the next caller has it tried again

#: What says where the server is and who asks. Everything else concerns connections that are used.
_WHERE = {
    "host", "hostaddr", "port", "dbname", "user", "password", "passfile", "service", "sslmode", "sslrootcert", "sslcert", "sslkey",
}  # fmt: skip


class Silence:
    """What this process knows about one server. Threads share it."""

    def __init__(self, answers: Callable[[], bool]) -> None:
        self._answers = answers
        self._lock = threading.Lock()
        self._is_looking = False
        self._wanted = 0.0
        self.is_known = False

    def suspect(self) -> None:
        """Somebody has waited for long: have it found out, unless that is under way."""
        self._wanted = time.monotonic()
        with self._lock:
            if self._is_looking:
                return
            self._is_looking = True
        threading.Thread(target=self._look, name="postgresql-silence", daemon=True).start()

    def declare(self) -> None:
        """A new connection was not made in time, which is proof enough."""
        self.is_known = True
        self.suspect()

    def _look(self) -> None:
        while True:
            answers = self._answers()
            if self.is_known == answers:
                facts = {"action": "postgresql_answers" if answers else "postgresql_silent"}
                logger.warning("PostgreSQL answers again" if answers else "PostgreSQL is silent", extra=facts)
            self.is_known = not answers
            with self._lock:
                wanted = time.monotonic() - self._wanted
                if wanted > (PAUSE_SECONDS if answers else UNWANTED_SECONDS):
                    self._is_looking = False
                    return
            time.sleep(PAUSE_SECONDS)


def of(where: Mapping[str, Any]) -> Silence:
    """The server to which these parameters of a connection lead."""
    known = {name: value for name, value in where.items() if name in _WHERE}
    key = tuple(sorted((name, str(known.get(name, ""))) for name in ("host", "hostaddr", "port", "service")))
    found = _servers.get(key)
    if found is None:
        found = _servers.setdefault(key, Silence(lambda: _is_answered(known)))
    return found


def _is_answered(where: Mapping[str, Any]) -> bool:
    """Whether a new connection is made, or refused by the server's own word, which is an answer too."""
    try:
        psycopg.connect(**where, connect_timeout=PATIENCE_SECONDS, autocommit=True).close()
    except psycopg.Error as error:
        return "FATAL:" in str(error)
    return True


_servers: dict[tuple[tuple[str, str], ...], Silence] = {}
# The thread that looks does not exist in a child, and the lock may be held by nobody there.
os.register_at_fork(after_in_child=_servers.clear)
