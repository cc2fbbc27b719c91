"""Which errors count as an outage of a server, and which as a mistake of the program."""

from __future__ import annotations

import logging

import django.db
import psycopg
import pymongo.errors
import pytest
import redis
from psycopg import errors

from tenants import outages

AWAY_BY_POSTGRESQL = (
    errors.IdleInTransactionSessionTimeout,
    errors.TransactionTimeout,
    errors.ReadOnlySqlTransaction,
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.TooManyConnections,
    errors.DiskFull,
    errors.OutOfMemory,
    errors.ConnectionFailure,
    errors.SqlclientUnableToEstablishSqlconnection,
    errors.IoError,
)
MISTAKES = (
    errors.UndefinedTable,
    errors.UniqueViolation,
    errors.InsufficientPrivilege,
    errors.InFailedSqlTransaction,
    errors.InternalError_,
    errors.StatementTooComplex,
)


def _through_django(kind: type[psycopg.Error]) -> django.db.Error:
    """Return the error as Django raises it."""
    theirs = kind("text of the server")
    ours = next(
        getattr(django.db, name)
        for name in (
            "OperationalError", "InternalError", "ProgrammingError", "IntegrityError", "DataError", "NotSupportedError",
        )
        if isinstance(theirs, getattr(psycopg, name))
    )  # fmt: skip
    error: django.db.Error = ours(str(theirs))
    error.__cause__ = theirs
    return error


@pytest.mark.parametrize("kind", AWAY_BY_POSTGRESQL)
def test_errors_that_say_that_postgresql_is_away_count_as_outages(kind: type[psycopg.Error]) -> None:
    assert outages.is_away(kind("text of the server"))
    assert outages.is_away(_through_django(kind))


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_does_not_count_as_an_outage(kind: type[psycopg.Error]) -> None:
    assert not outages.may_pass(kind("text of the server"))
    assert not outages.may_pass(_through_django(kind))


@pytest.mark.parametrize("kind", [psycopg.OperationalError, psycopg.InterfaceError])
def test_a_connection_that_fails_or_is_lost_counts_as_an_outage(kind: type[psycopg.Error]) -> None:
    assert outages.is_away(kind("server closed the connection unexpectedly"))


def test_errors_of_django_itself_are_classified_by_their_class() -> None:
    assert outages.is_away(django.db.InterfaceError("connection already closed"))
    assert not outages.is_away(django.db.ProgrammingError("the last operation didn't produce a result"))


@pytest.mark.parametrize(
    "kind", [errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable]
)
def test_conflicts_of_transactions_are_not_outages_and_may_be_retried(kind: type[psycopg.Error]) -> None:
    error = _through_django(kind)

    assert outages.is_contention(error)
    assert outages.may_pass(error)
    assert not outages.is_away(error)


def test_only_quick_errors_are_repeated_at_once() -> None:
    assert outages.asks_for_repetition(_through_django(errors.DeadlockDetected))
    assert not outages.asks_for_repetition(_through_django(errors.LockNotAvailable))


def test_an_error_of_one_row_is_logged_and_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    rows = []
    for row in (1, 2, 3):
        with outages.one_of_many(logging.getLogger("test"), "A row failed", action="row_failed", row=row):
            rows.append(1 / (row - 2))

    assert rows == [-1, 1]
    assert [(record.message, record.action, record.row) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("A row failed", "row_failed", 2)
    ]


def test_a_row_that_another_transaction_locks_is_left_for_a_later_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with outages.one_of_many(logging.getLogger("test"), "A row failed", action="row_failed"):
        raise _through_django(errors.LockNotAvailable)

    assert not caplog.records


@pytest.mark.parametrize("kind", [errors.AdminShutdown, errors.QueryCanceled])
def test_an_outage_concerns_all_rows(kind: type[psycopg.Error]) -> None:
    with (
        pytest.raises(django.db.OperationalError),
        outages.one_of_many(logging.getLogger("test"), "A row failed", action="row_failed"),
    ):
        raise _through_django(kind)


@pytest.mark.parametrize(
    "error",
    [
        redis.ConnectionError("refused"),
        redis.TimeoutError("silent"),
        redis.BusyLoadingError("loading"),
        redis.ReadOnlyError("a replica"),
        redis.OutOfMemoryError("full"),
        redis.exceptions.MasterDownError("without its master"),
        pymongo.errors.AutoReconnect("cut"),
        pymongo.errors.NetworkTimeout("silent"),
        pymongo.errors.ServerSelectionTimeoutError("down"),
        pymongo.errors.NotPrimaryError("after an election"),
        pymongo.errors.ExecutionTimeout("too slow"),
        pymongo.errors.WaitQueueTimeoutError("no connection is free"),
    ],
)
def test_outages_of_redis_and_mongodb_are_recognised(error: Exception) -> None:
    assert outages.is_away(error)


@pytest.mark.parametrize(
    "error",
    [
        redis.DataError("a value that cannot be sent"),
        pymongo.errors.DuplicateKeyError("there already"),
        pymongo.errors.InvalidDocument("no document"),
        OSError("a file"),
        ValueError("anything else"),
    ],
)
def test_refusals_by_redis_and_mongodb_are_not_outages(error: Exception) -> None:
    assert not outages.may_pass(error)
