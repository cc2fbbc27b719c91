"""How a test's traces are removed: rows by the owner of the tables, keys by their prefix."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db import OperationalError, connections, transaction

from activities import relay
from activities.admission import Exchange, limits
from agents import configuration
from tenants import redis
from tenants.context import OWNER, SYSTEM
from tests import servers

# What migrations put there, and what they need to know about themselves.
KEPT = {
    "agents_agent",
    "agents_agentversiondeployment",
    "auth_permission",
    "django_content_type",
    "django_migrations",
}


def empty_database() -> None:
    """Delete all rows but those of migrations, in the few tables that have any."""
    empty = _delete if _owner_is_superuser() else _truncate
    if empty():
        # Without triggers nothing notes that the configuration has changed.
        configuration.forget()
        limits.forget()


def _delete() -> bool:
    """Whether there was anything. Without foreign keys and triggers, deleting a few rows takes a twentieth of the time of TRUNCATE."""
    cleaner = _cleaner()
    try:
        with cleaner.cursor() as cursor:
            cursor.execute("SELECT pg_temp.delete_rows()")
            return bool(cursor.fetchone()[0])
    except OperationalError:
        if not cleaner.connection.closed:
            raise
    _cleaner.cache_clear()  # a test has ended all connections
    return _delete()


@lru_cache(maxsize=1)
def _cleaner() -> Any:
    """A connection of the owner that keeps its plans: to plan what is asked of a hundred tables takes longer than to do it."""
    rows = "".join(
        f"IF EXISTS (SELECT FROM {table}) THEN DELETE FROM {table}; found := true; END IF;"
        for table in _tables()
    )
    cleaner = connections[OWNER].copy()
    with cleaner.cursor() as cursor:
        # A thread that a test left behind in a transaction is named by this error instead of hanging the suite.
        cursor.execute("SET lock_timeout = '10s'; SET session_replication_role = replica")
        cursor.execute(
            "CREATE FUNCTION pg_temp.delete_rows() RETURNS boolean LANGUAGE plpgsql AS"
            f" $$ DECLARE found boolean := false; BEGIN {rows} RETURN found; END $$"
        )
    return cleaner


def _truncate() -> bool:
    """As `_delete`, for an owner who may not do without foreign keys."""
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
    """Delete what this process wrote: everything when the server is the suite's own, else what bears its
    prefix. With it goes what this process would still write: a relay keeps what nobody was there to admit.
    """
    _forget_hand_overs()
    client = redis.client()
    if servers.redis_is_ours():
        client.flushdb()
        return
    pattern = f"{settings.ORCHESTRATOR_REDIS_PREFIX}*"
    if keys := list(client.scan_iter(match=pattern, count=1000)):
        client.unlink(*keys)


def _forget_hand_overs() -> None:
    waiting = relay._relay
    with waiting._changed:
        # What is being asked just now may still be told when to ask again.
        thread = waiting._thread
        waiting._changed.wait_for(lambda: not (waiting._asking and thread and thread.is_alive()), 10.0)
        waiting._waiting, waiting._ask_at = Exchange(), None  # nor does a rate of an earlier test ask again
        waiting._idle = True
        waiting._changed.notify_all()


def end_connections() -> None:
    """Close all connections to the test database, those of forgotten threads as well, so that it can be
    dropped.
    """
    with connections[OWNER].cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    connections.close_all()
    if _cleaner.cache_info().currsize:
        _cleaner().close()
