"""Silence: whether PostgreSQL has stopped answering, noticed without asking anything while it answers.

A server that is frozen closes no connection: its kernel goes on taking what is sent, so neither keepalives nor TCP's own time-outs end a
wait. A long wait alone proves nothing either, since a statement may take its time. So whoever has waited for `NOTICE_SECONDS` has a new
connection tried, by one thread per server and process. If that is not made within `PATIENCE_SECONDS`, the server is silent, and all who
wait give up. From then on a statement gets `GRACE_SECONDS` and new connections are refused at once, until the thread, which goes on
trying, is answered. Costs nothing for statements that are answered at once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import psycopg

logger = logging.getLogger(__name__)

NOTICE_SECONDS = 1.0
PATIENCE_SECONDS = (
    3  # whole seconds, for libpq. With NOTICE_SECONDS: how long a silent server keeps anybody waiting.
)
GRACE_SECONDS = 0.3
PAUSE_SECONDS = 0.5  # between two tries
UNWANTED_SECONDS = 10.0  # nobody has asked for anything for so long: whoever does next has it tried again

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
