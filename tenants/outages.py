"""Outages: the one place that knows how it shows that a server we depend on is away, and not that something is wrong with a request.

PostgreSQL, Redis and MongoDB can go away in many ways: nobody listens, a connection is cut or silent, the server starts, stops, is full,
or may only be read after a failover; and a session that was silent for too long inside a transaction is ended by PostgreSQL. All of them
are one case with one answer: what was asked may or may not have happened, and asking again later is right. Web processes answer 503 with
Retry-After; workers keep what they have and try again for as long as their lease lasts. Everything that is asked again must therefore be
harmless when it has happened already: results carry the fencing number of their run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import redis
from django.db import Error as DjangoDatabaseError
from django.db import InterfaceError, OperationalError

from tenants.lazy_import import lazy_import

if TYPE_CHECKING:
    from pymongo import errors as mongodb
else:
    mongodb = lazy_import("pymongo.errors")

#: SQLSTATEs, or the two characters of a class of them, with which PostgreSQL says that it cannot serve anybody now, or not this session.
AWAY = (
    "08",  # the connection failed
    "25006",  # read-only: after a failover this is a replica
    "25P03",  # the session was silent for too long inside a transaction, and was ended
    "25P04",  # the transaction took too long, and its session was ended
    "53",  # too many connections, no memory, no disk
    "57P",  # shut down, crashed, starting, or the session was ended by an administrator
    "58",  # an error of the system below it, such as a disk that cannot be read
)
#: Transactions that met others. The server is well, and the same again at once usually succeeds.
_REPEATED = ("40001", "40P01")  # serialization failure, deadlock
CONTENTION = (*_REPEATED, "55P03")  # a lock was not to be had in time
#: A statement that took longer than it may: with a server that is well, one that is overloaded.
_OVERLOADED = ("57014",)


def is_away(error: BaseException) -> bool:
    """Whether the error says that PostgreSQL, Redis or MongoDB is away. Whether the request has had an effect is then not known."""
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
            return (
                True  # down, silent, loading, full, a replica, without its master, busy, or not what it was
            )
        case mongodb.PyMongoError():
            gone = isinstance(
                error, mongodb.ConnectionFailure | mongodb.ExecutionTimeout | mongodb.WaitQueueTimeoutError
            )
            return gone or error.timeout or error.has_error_label("RetryableWriteError")
    return False


def is_contention(error: BaseException) -> bool:
    """Whether a transaction was given up because it met others. Nothing of it has happened."""
    return (_sqlstate(error) or "") in CONTENTION


def asks_for_repetition(error: BaseException) -> bool:
    """Whether PostgreSQL asks for the same transaction again at once. Not for a lock that was waited for in vain: that takes its time."""
    return (_sqlstate(error) or "") in _REPEATED


def may_pass(error: BaseException) -> bool:
    """Whether asking again later may well succeed: a server is away or overloaded, or transactions met."""
    return is_away(error) or (_sqlstate(error) or "") in CONTENTION + _OVERLOADED


def _sqlstate(error: BaseException) -> str | None:
    """PostgreSQL's own word about an error of Django or psycopg; None when it has said nothing."""
    cause = error.__cause__ if isinstance(error, DjangoDatabaseError) else error
    return cause.sqlstate if isinstance(cause, psycopg.Error) else None
