"""The bell: PostgreSQL tells this process that something has happened to a tenant whose log is followed.

One connection of its own, for all streams of the process. It only saves waiting: whoever follows a log looks once a second in any case,
so a lost connection makes events late by a second at most. It is opened again as soon as that is possible.
"""

from __future__ import annotations

import logging
import time
from typing import Any
from uuid import UUID

import psycopg
from django.db import connections

from tenants.context import SYSTEM

CHANNEL = "orchestrator_events"  # also written in sql/record.sql
RETRY_SECONDS = 5.0

logger = logging.getLogger(__name__)


class Bell:
    """Used by one thread."""

    def __init__(self) -> None:
        self._connection: psycopg.Connection[Any] | None = None
        self._tried = -1e9

    def socket(self) -> int | None:
        """What becomes readable when it rings; None while there is no connection, which is tried again now and then."""
        if self._connection is None and time.monotonic() - self._tried >= RETRY_SECONDS:
            self._tried = time.monotonic()
            try:
                self._connection = self._opened()
            except psycopg.Error as error:
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
            return {UUID(told.payload) for told in self._connection.notifies(timeout=0)}
        except psycopg.Error as error:
            self._lost(error)
            return set()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> psycopg.Connection[Any]:
        given = {**connections[SYSTEM].get_connection_params(), "autocommit": True}
        given.pop("cursor_factory", None)
        connection: psycopg.Connection[Any] = psycopg.connect(**given)
        connection.execute(f"LISTEN {CHANNEL}")
        return connection

    def _lost(self, error: psycopg.Error) -> None:
        self.close()
        facts = {"action": "event_bell_lost", "reason": type(error).__name__}
        logger.warning("The bell of events does not ring; logs are looked at once a second", extra=facts)
