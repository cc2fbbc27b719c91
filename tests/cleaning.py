"""How a test's traces are removed: rows by the owner of the tables, keys by their prefix."""

from __future__ import annotations

from functools import lru_cache

from django.conf import settings
from django.db import connections, transaction

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
    used = _tables_in_use()
    if not used:
        return
    # A thread that a test left behind in a transaction is named by this error instead of hanging the suite.
    statements = ["SET LOCAL lock_timeout = '10s'"]
    if _owner_is_superuser():
        # Without foreign keys and triggers, deleting a few rows takes a twentieth of the time of TRUNCATE.
        statements += [
            "SET LOCAL session_replication_role = replica",
            *(f"DELETE FROM {table}" for table in used),
        ]
    else:
        statements.append(f"TRUNCATE {', '.join(used)} CASCADE")
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("; ".join(statements))
    # Without triggers nothing notes that the configuration has changed.
    configuration.forget()
    limits.forget()


@lru_cache(maxsize=1)
def _owner_is_superuser() -> bool:
    with connections[OWNER].cursor() as cursor:
        cursor.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        return bool(cursor.fetchone()[0])


def _tables_in_use() -> list[str]:
    """Asked with a prepared statement: planning a question about a hundred tables takes far longer than answering it."""
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute("SELECT FROM pg_prepared_statements WHERE name = 'tables_in_use'")
        if not cursor.rowcount:
            cursor.execute(f"PREPARE tables_in_use AS {_each_with_rows()}")
        cursor.execute("EXECUTE tables_in_use")
        return [table for (table,) in cursor.fetchall()]


@lru_cache(maxsize=1)
def _each_with_rows() -> str:
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        tables = sorted({name for (name,) in cursor.fetchall()} - KEPT)
    return " UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in tables)


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
