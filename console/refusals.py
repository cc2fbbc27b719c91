"""Why an answer was not taken. Nothing is done then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import OperationalError

BUSY = "Many answers met at the same moment, and this one was given up. Nothing was done; try again."
#: How the database ends a transaction that others stand in the way of.
_MET = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.SerializationFailure,
)


class Refused(Exception):
    """Nothing was done, and why. `status` is the HTTP status of the page that says so, `field` what of the form is at fault."""

    def __init__(self, reason: str, *, status: int = 409, field: str = "") -> None:
        super().__init__(reason)
        self.reason, self.status, self.field = reason, status, field


@contextmanager
def refused_when_busy() -> Iterator[None]:
    """The database gives up a transaction that others stand in the way of. Whoever sent it may simply try again."""
    try:
        yield
    except OperationalError as error:
        if isinstance(error.__cause__, _MET):
            raise Refused(BUSY, status=503) from error
        raise
