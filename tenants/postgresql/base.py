"""The backend that `ENGINE: "tenants.postgresql"` names: Django's own, whose connections do not wait for ever.

Every wait ends: an answer arrives, the server is found to be silent (`tenants.postgresql.silence`), or `answer_within_seconds`, an option
of the alias, is over. In the last two cases the connection is closed and `OperationalError` is raised, as for one that was lost: nobody
knows whether the statement was carried out. Aliases without the option, those of migrations, wait as long as the server takes.

A transaction costs no round trip before its first statement: what it begins with is kept here until then (`begins_with`, `opening`).
"""

from __future__ import annotations

import time
from typing import Any

import psycopg
from django.db.backends.postgresql import base
from django.db.backends.postgresql.psycopg_any import IsolationLevel
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, TransactionStatus

from tenants.postgresql import silence


class BoundedConnection(psycopg.Connection[Any]):
    """psycopg tells its generators every 0.1 s that nothing has happened: then we look at the time."""

    answer_within_seconds: float | None = None
    silence: silence.Silence
    _setting: bytes = b""

    def begins_with(self, setting: bytes) -> bool:
        """Let the transaction that begins with the next statement carry out `setting` before it; nothing is sent yet.

        False, and nothing is kept, when a transaction is under way or none begins by itself. Forgotten at the transaction's end.
        """
        if self.autocommit or self.pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        self._setting = setting
        return True

    def opening(self) -> list[bytes]:
        """What has to go before the next statement, for whoever sends it together with that: nothing in a transaction."""
        if self.autocommit or self.pgconn.transaction_status != TransactionStatus.IDLE:
            return []
        setting, self._setting = self._setting, b""
        return [self._get_tx_start_command(), *([setting] if setting else [])]

    def _start_query(self) -> PQGen[None]:
        """psycopg's hook before every statement of a cursor."""
        if opening := self.opening():
            self.pgconn.send_query(b"; ".join(opening))
            for result in (yield from generators.execute(self.pgconn)):
                if result.status == ExecStatus.FATAL_ERROR:
                    raise psycopg.errors.error_from_result(result)

    def _commit_gen(self) -> PQGen[None]:
        self._setting = b""
        yield from super()._commit_gen()

    def _rollback_gen(self) -> PQGen[None]:
        self._setting = b""
        yield from super()._rollback_gen()

    def set_autocommit(self, value: bool) -> None:
        # Twice for each transaction of Django's, and nothing is sent for it. It is also the first that Django does with a connection from
        # a pool, however that came back to it.
        self._setting = b""
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
        if waited > silence.NOTICE_SECONDS or self.silence.is_known:
            self.silence.suspect()
        if waited > self.answer_within_seconds or (self.silence.is_known and waited > silence.GRACE_SECONDS):
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
        heard = silence.of(conn_params)
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
