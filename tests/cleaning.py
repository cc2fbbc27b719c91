"""Empties the database and Redis after a test."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db import OperationalError, connections, transaction

from activities import relay
from activities.admission import Exchange, limits
from agents import configuration, scheduler_settings
from tenants import redis
from tenants.context import OWNER, SYSTEM
from tests import servers

# Tables with rows of migrations, and with the record of migrations.
KEPT = {
    "agents_agent",
    "agents_agentversiondeployment",
    "auth_permission",
    "django_content_type",
    "django_migrations",
}


def empty_database() -> None:
    """Delete all rows except those of migrations."""
    empty = _delete if _owner_is_superuser() else _truncate
    if empty():
        # Without triggers no process is notified that the configuration has changed.
        configuration.forget()
        scheduler_settings.forget()
        limits.forget()


def _delete() -> bool:
    """Delete all rows, return whether there were any. Without foreign keys and triggers this is twenty times as fast as TRUNCATE."""
    cleaner = _cleaner()
    try:
        with cleaner.cursor() as cursor:
            cursor.execute("SELECT pg_temp.delete_rows()")
            return bool(cursor.fetchone()[0])
    except OperationalError:
        if not cleaner.connection.closed:
            raise
    _cleaner.cache_clear()  # because a test has closed all connections
    return _delete()


@lru_cache(maxsize=1)
def _cleaner() -> Any:
    """Return a connection of the owner that caches its plans, because planning for a hundred tables takes longer than deleting."""
    rows = "".join(
        f"IF EXISTS (SELECT FROM {table}) THEN DELETE FROM {table}; found := true; END IF;"
        for table in _tables()
    )
    cleaner = connections[OWNER].copy()
    with cleaner.cursor() as cursor:
        # A thread that a test left in a transaction then causes this error and does not block the tests.
        cursor.execute("SET lock_timeout = '10s'; SET session_replication_role = replica")
        cursor.execute(
            "CREATE FUNCTION pg_temp.delete_rows() RETURNS boolean LANGUAGE plpgsql AS"
            f" $$ DECLARE found boolean := false; BEGIN {rows} RETURN found; END $$"
        )
    return cleaner


def _truncate() -> bool:
    """Do the same as `_delete` for an owner who may not disable foreign keys."""
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(
            " UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in _tables())
        )
        used = [table for (table,) in cursor.fetchall()]
    if used:
        with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '10s'; TRUNCATE {', '.join(used)} CASCADE")
    return bool(used)


@lru_cache(maxsize=1)
def _owner_is_superuser() -> bool:
    with connections[OWNER].cursor() as cursor:
        cursor.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        return bool(cursor.fetchone()[0])


def _tables() -> list[str]:
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        return sorted({name for (name,) in cursor.fetchall()} - KEPT)


def empty_redis() -> None:
    """Delete what this process wrote to Redis, and what its relay has not sent yet.

    On a server that was started for the tests this is everything; elsewhere the keys with the prefix of the process.
    """
    _forget_hand_overs()
    client = redis.client()
    if servers.is_ours("redis"):
        client.flushdb()
        return
    pattern = f"{settings.ORCHESTRATOR_REDIS_PREFIX}*"
    if keys := list(client.scan_iter(match=pattern, count=1000)):
        client.unlink(*keys)


def _forget_hand_overs() -> None:
    waiting = relay._relay
    with waiting._changed:
        # Wait for a call that is in progress, because its answer may schedule another one.
        thread = waiting._thread
        waiting._changed.wait_for(lambda: not (waiting._asking and thread and thread.is_alive()), 10.0)
        waiting._waiting, waiting._ask_at = Exchange(), None
        waiting._idle = True
        waiting._changed.notify_all()


def end_connections() -> None:
    """Close all connections to the test database, also those of left threads, so that it can be dropped."""
    with connections[OWNER].cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    connections.close_all()
    if _cleaner.cache_info().currsize:
        _cleaner().close()
