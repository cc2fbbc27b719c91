"""Why an answer was not taken. Nothing is done then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError

from tenants import outages

BUSY = "Many answers met at the same moment, and this one was given up. Nothing was done; try again."


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
        if outages.is_contention(error):
            raise Refused(BUSY, status=503) from error
        raise
