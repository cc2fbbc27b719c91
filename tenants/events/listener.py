"""The bell: PostgreSQL tells this process that something has happened to a tenant whose log is followed.

One connection of its own, for all streams of the process. It only saves waiting: whoever follows a log looks once a second in any case,
so a lost connection makes events late by a second at most. It is opened again as soon as that is possible.

A connection that nothing comes from may as well be one that nothing can come from any more, because something between forgot it. So every
few seconds the bell has itself rung, on a channel that nobody else listens to and by way of another connection; when it does not hear
that, it takes a new one. Nobody ever waits for an answer on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
from django.db import DatabaseError, connections

from tenants.context import SYSTEM

CHANNEL = "orchestrator_events"  # also written in sql/record.sql
RETRY_SECONDS = 5.0
PROOF_SECONDS = 5.0  # between two times that it is rung to see whether it can be heard
SILENT_SECONDS = 12.0  # without having been heard: more than two of these

logger = logging.getLogger(__name__)


class Listener:
    """Used by one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._connection: psycopg.Connection[Any] | None = None
        self._tried = self._heard = float("-inf")
        self._own = f"{CHANNEL}_{uuid4().hex}"

    def socket(self) -> int | None:
        """What becomes readable when it rings; None while there is no connection, which is tried again now and then."""
        if self._connection is None and self._clock() - self._tried >= RETRY_SECONDS:
            self._tried = self._clock()
            try:
                self._connection = self._opened()
                self._heard = self._clock()
            except (psycopg.Error, DatabaseError) as error:
                self._lost(error)
        return None if self._connection is None else self._connection.fileno()

    @property
    def rings(self) -> bool:
        return self._connection is not None

    def heard(self) -> set[UUID]:
        """The tenants that it rang for since the last time. Does not wait."""
        if self._connection is None:
            return set()
        try:
            told = list(self._connection.notifies(timeout=0))
        except psycopg.Error as error:
            self._lost(error)
            return set()
        if told:
            self._heard = self._clock()
        return {UUID(one.payload) for one in told if one.channel == CHANNEL}

    def prove(self) -> None:
        """Have it rung, to be heard before the next time; a connection on which nothing was heard for too long is given up."""
        if self._connection is None:
            return
        if self._clock() - self._heard > SILENT_SECONDS:
            self._lost(TimeoutError())
            return
        with connections[SYSTEM].cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, '')", [self._own])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> psycopg.Connection[Any]:
        """Made as the connections for statements are, so that it is neither tried nor waited for while PostgreSQL is silent."""
        alias = connections[SYSTEM]
        connection = alias.get_new_connection({**alias.get_connection_params(), "autocommit": True})
        try:
            for channel in (CHANNEL, self._own):
                connection.execute(f"LISTEN {channel}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _lost(self, error: Exception) -> None:
        self.close()
        facts = {"action": "event_bell_lost", "reason": type(error).__name__}
        logger.warning("The bell of events does not ring; logs are looked at once a second", extra=facts)
