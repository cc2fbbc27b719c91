"""A pool of connections to PostgreSQL for the threads of a worker, which need one only for short transactions.

A thread that waits for its agent has no connection. It takes one for a transaction and returns it. The connection that was used last is
taken first, so few are ever open, and those have already prepared the statements of the hot path, which is expensive for a new connection.
For the same reason, a thread that finds no idle connection waits a moment before it opens another: otherwise many threads that begin at
once would all prepare the same statements.

This is not psycopg's pool, which Django supports: that one uses connections in turn, opens another as soon as none is idle, and Django
reconnects for each use, which took 238 µs of processor time for a transaction of one statement. This pool takes 148, and a thread's own
connection 143.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

OPENED_AT_ONCE = 2  # connections of a process that are opened without waiting
PATIENCE_SECONDS = 0.1  # more than a new connection needs to prepare the statements of a run


class ConnectionPool:
    """A pool of connections of one Django alias. No thread waits for longer than a moment, so it has no maximum size. Thread-safe."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Start with an empty pool, because a forked child must not share connections with its parent."""
        self._changed = threading.Condition(threading.Lock())
        self._idle: list[BaseDatabaseWrapper] = []
        self._lent: set[BaseDatabaseWrapper] = set()
        self._thread = threading.local()
        self.is_on = False

    def begin(self) -> None:
        """Let threads of this process share connections from now on."""
        self.is_on = True

    def end(self) -> None:
        """Give each thread its own connection again, as in Django. Idle connections are closed now, others when they are returned."""
        with self._changed:
            self.is_on = False
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def stay_out(self) -> None:
        """Exclude the calling thread, which uses its own connection, because its settings there last longer than a transaction."""
        self._thread.stays_out = True

    @contextmanager
    def connection(self) -> Iterator[None]:
        """Use a connection of the pool as `connections[alias]` in the block. An open transaction keeps its own connection.

        If the thread has opened a connection outside of the pool, it is used, and then belongs to the pool, unless the pool has an idle
        one: then it is closed. Otherwise the pool would grow with every such connection.
        """
        own = getattr(connections._connections, self._alias, None)  # type: ignore[attr-defined]
        is_kept = own is not None and (own.in_atomic_block or own in self._lent)
        if not self.is_on or is_kept or hasattr(self._thread, "stays_out"):
            yield
            return
        lent = connections[self._alias] = self._take(own)
        try:
            yield
        finally:
            del connections[self._alias]
            self._return(lent)

    def _take(self, own: BaseDatabaseWrapper | None) -> BaseDatabaseWrapper:
        with self._changed:
            if own is None and not self._idle and len(self._lent) >= OPENED_AT_ONCE:
                self._changed.wait_for(lambda: self._idle, PATIENCE_SECONDS)
            lent = self._idle.pop() if self._idle else own or connections.create_connection(self._alias)
            self._lent.add(lent)
        if own is not None and own is not lent:
            own.close()
        if not lent.allow_thread_sharing:
            lent.inc_thread_sharing()
        return lent

    def _return(self, lent: BaseDatabaseWrapper) -> None:
        if lent.errors_occurred:
            with suppress(Error):  # then it is disconnected, and its next user connects again
                lent.close_if_unusable_or_obsolete()
        with self._changed:
            self._lent.discard(lent)
            if self.is_on:
                self._idle.append(lent)
                self._changed.notify()
                return
        lent.close()
