"""A pool of connections to PostgreSQL for the threads of a worker, which need one for moments only.

A thread that waits for its agent has none; it takes one for a transaction and puts it back. The one that was used last is taken first, so
few are ever open, and those know the statements of the hot path already: a new connection reads and plans each of them at its first use.
So a thread that finds none waits a moment for one to come back before it opens another: many threads that begin at once would all
plan the same statements otherwise.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

OPENED_AT_ONCE = 2  # connections of a process that nobody waits for
PATIENCE_SECONDS = 0.1  # more than a new connection needs to plan the statements of a run


class ConnectionPool:
    """Connections of one alias of Django's. Nobody waits for longer than a moment, so it has no largest size. Safe for threads."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """A forked child shares none with its parent."""
        self._changed = threading.Condition(threading.Lock())
        self._idle: list[BaseDatabaseWrapper] = []
        self._lent: set[BaseDatabaseWrapper] = set()
        self._thread = threading.local()
        self.is_on = False

    def begin(self) -> None:
        """From now on threads of this process share connections."""
        self.is_on = True

    def end(self) -> None:
        """Each thread has its own again, as Django has it."""
        self.is_on = False
        with self._changed:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def stay_out(self) -> None:
        """The calling thread keeps the connection that it has: it sets something there that lasts longer than a transaction."""
        self._thread.stays_out = True

    @contextmanager
    def connection(self) -> Iterator[None]:
        """Within the block `connections[alias]` is one of the pool; for a transaction that is under way it stays what it is.

        One that this thread has opened for itself before comes to the pool with that.
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
            self._put_back(lent)

    def _take(self, own: BaseDatabaseWrapper | None) -> BaseDatabaseWrapper:
        with self._changed:
            if own is None and not self._idle and len(self._lent) >= OPENED_AT_ONCE:
                self._changed.wait_for(lambda: self._idle, PATIENCE_SECONDS)
            lent = own or (self._idle.pop() if self._idle else connections.create_connection(self._alias))
            self._lent.add(lent)
        if not lent.allow_thread_sharing:
            lent.inc_thread_sharing()
        return lent

    def _put_back(self, lent: BaseDatabaseWrapper) -> None:
        is_usable = True
        if lent.errors_occurred:
            try:
                lent.close_if_unusable_or_obsolete()
            except Error:
                is_usable = False
        with self._changed:
            self._lent.discard(lent)
            if is_usable:
                self._idle.append(lent)
                self._changed.notify()
