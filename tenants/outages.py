"""Outages: the one place that decides whether an error means that a server we depend on is unavailable, rather than a wrong request.

PostgreSQL, Redis and MongoDB can be unavailable in many ways: nothing listens, a connection is cut or silent, the server starts, stops, is
full, or is read-only after a failover; and PostgreSQL ends a session that was idle for too long inside a transaction. All of these are
handled alike: the operation may or may not have happened, and should be repeated later. Web processes answer 503 with Retry-After;
workers keep what they have and repeat it for as long as their lease lasts. So every operation that is repeated must be harmless when it
has happened already: results carry the fencing number of their run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import redis
from django.db import Error as DjangoDatabaseError
from django.db import InterfaceError, OperationalError

from tenants.lazy_import import lazy_import

if TYPE_CHECKING:
    from pymongo import errors as mongodb
else:
    mongodb = lazy_import("pymongo.errors")

#: By the package that raises the error: the server, and the variable with its address.
SERVERS = {
    "django": ("PostgreSQL", "DATABASE_URL"),
    "redis": ("Redis", "REDIS_URL"),
    "pymongo": ("MongoDB", "MONGODB_URI"),
}
_HINT = "Start the servers with `manage.py up`, or set {variable} to their address. Details: `manage.py check --database default`."

#: SQLSTATEs, or prefixes of them, with which PostgreSQL says that it cannot serve anybody now, or no longer this session.
AWAY = (
    "08",  # the connection failed
    "25006",  # read-only: after a failover this is a replica
    "25P03",  # the session was idle for too long inside a transaction, and was ended
    "25P04",  # the transaction took too long, and its session was ended
    "53",  # too many connections, no memory, no disk
    "57P",  # shut down, crashed, starting, or the session was ended by an administrator
    "58",  # an error of the operating system, such as a disk that cannot be read
)
#: Conflicts between transactions. The server is well, and repeating the transaction at once usually succeeds.
_REPEATED = ("40001", "40P01")  # serialization failure, deadlock
CONTENTION = (*_REPEATED, "55P03")  # a lock could not be taken in time
#: A statement took longer than allowed: the server is reachable but overloaded.
_OVERLOADED = ("57014",)


def is_away(error: BaseException) -> bool:
    """Whether the error says that PostgreSQL, Redis or MongoDB is unavailable. Then it is unknown whether the operation has happened."""
    match error:
        case DjangoDatabaseError() | psycopg.Error():
            state = _sqlstate(error)
            if state is None:
                # Raised by the client itself: the connection could not be made, was lost, or is closed.
                return isinstance(
                    error,
                    OperationalError | InterfaceError | psycopg.OperationalError | psycopg.InterfaceError,
                )
            return state.startswith(AWAY)
        case redis.DataError():
            return False  # a mistake of ours: nothing was sent
        case redis.RedisError():
            return True  # down, silent, loading, full, a replica, without its master, or busy
        case mongodb.PyMongoError():
            is_unreachable = isinstance(
                error, mongodb.ConnectionFailure | mongodb.ExecutionTimeout | mongodb.WaitQueueTimeoutError
            )
            return is_unreachable or error.timeout or error.has_error_label("RetryableWriteError")
    return False


def is_contention(error: BaseException) -> bool:
    """Whether a transaction was aborted because it conflicted with others. None of it has happened."""
    return (_sqlstate(error) or "") in CONTENTION


def asks_for_repetition(error: BaseException) -> bool:
    """Whether to repeat the transaction at once. Not after waiting in vain for a lock, which may be held for longer."""
    return (_sqlstate(error) or "") in _REPEATED


def may_pass(error: BaseException) -> bool:
    """Whether the same may succeed later: a server is unavailable or overloaded, or transactions conflicted."""
    return is_away(error) or (_sqlstate(error) or "") in CONTENTION + _OVERLOADED


def reason_of(error: BaseException) -> str:
    """Return for the person at a shell which server does not answer and what to do, or nothing if the error has another cause."""
    if not is_away(error):
        return ""
    server, variable = SERVERS.get(type(error).__module__.partition(".")[0], SERVERS["django"])
    return f"{server} does not answer. {_HINT.format(variable=variable)}"


@contextmanager
def one_of_many(logger: logging.Logger, message: str, **facts: Any) -> Iterator[None]:
    """Log an error of the block, which processes one of many rows, instead of raising it, so that it does not stop the other rows.

    A conflict with another transaction is not even logged: the row is processed in a later turn. An outage is raised, because it concerns
    all rows.
    """
    try:
        yield
    except Exception as error:
        if is_contention(error):
            return
        if may_pass(error):
            raise
        logger.exception(message, extra=facts)


def _sqlstate(error: BaseException) -> str | None:
    """Return PostgreSQL's code for an error of Django or psycopg; None if the error did not come from the server."""
    cause = error.__cause__ if isinstance(error, DjangoDatabaseError) else error
    return cause.sqlstate if isinstance(cause, psycopg.Error) else None
