"""Which tenant the current work is for, and which database role carries it.

`tenant_scope` is the only door to tenant data for requests, workers and commands: one transaction on the alias
`default`, whose role cannot bypass row-level security, with `app.tenant_id` set for that transaction alone. When the
block ends, by success or error, PostgreSQL forgets the setting with the transaction; a reused connection carries nothing over.

`system_scope` sends the ORM to the alias `system`, whose role sees every tenant. Only the modules named in the import
rules may use it: recovery, the promoter, the checker, superusers of the platform who said why.

`admin_scope` is for a request of the admin, which shows rows of several tenants: the role of the alias `admin` sees the rows of
those tenants that the request was given, and no code below can open the scope of another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
from django.db import connections, transaction
from psycopg import generators
from psycopg.pq import ExecStatus, TransactionStatus

from tenants.connection_pool import ConnectionPool
from tenants.current_tenant import CURRENT
from tenants.exceptions import TenantOutOfSight, TenantScopeConflict
from tenants.postgresql.base import BoundedConnection

APP = "default"
SYSTEM = "system"
ADMIN = "admin"
OWNER = "owner"

#: That of `tenant_scope`; a worker whose threads run agents begins it.
POOL = ConnectionPool(APP)

_alias: ContextVar[str] = ContextVar("database_alias", default=APP)
_in_sight: ContextVar[frozenset[UUID] | None] = ContextVar(
    "tenants_in_sight", default=None
)  # None: no admin's request


def current_alias() -> str:
    """The database alias that the ORM uses here."""
    return _alias.get()


A_MOMENT = "50ms"  # that an impatient transaction waits for a lock


@contextmanager
def tenant_scope(tenant_id: UUID, *, is_patient: bool = True) -> Iterator[None]:
    """Work for one tenant, in one transaction. Nested scopes of the same tenant join the outer transaction.

    Unless `is_patient`, the transaction fails when it would have to wait for a lock of others for more than a moment.

    Raises `TenantScopeConflict` when another tenant's scope is already open: a transaction belongs to one tenant.
    """
    outer = CURRENT.get()
    if outer is not None:
        if outer != tenant_id:
            raise TenantScopeConflict(f"{outer} is at work here, {tenant_id} was asked for")
        yield
        return
    in_sight = _in_sight.get()
    if in_sight is not None and tenant_id not in in_sight:
        raise TenantOutOfSight(f"this request of the admin may not look at {tenant_id}")
    with POOL.connection(), transaction.atomic(using=APP):
        set_tenant(tenant_id, is_patient=is_patient)
        tenant_token, alias_token = CURRENT.set(tenant_id), _alias.set(APP)
        try:
            yield
        finally:
            _alias.reset(alias_token)
            CURRENT.reset(tenant_token)


def set_tenant(tenant_id: UUID, *, is_patient: bool = True) -> None:
    """Tell PostgreSQL whose rows this transaction may see. Forgotten at its end.

    A transaction that has not begun learns it together with its first statement, without a round trip of its own.
    """
    connection = connections[APP]
    connection.ensure_connection()
    # The id is a UUID object, so writing it into the text is safe.
    name = UUID(int=tenant_id.int)
    setting = f"SET LOCAL app.tenant_id = '{name}'"
    if not is_patient:
        # One command, as the connection sends it together with others.
        setting = f"SELECT set_config('app.tenant_id', '{name}', true), set_config('lock_timeout', '{A_MOMENT}', true)"
    with connection.wrap_database_errors:
        execute = partial(_execute, connection.connection)
        for wrapper in reversed(connection.execute_wrappers):
            execute = partial(wrapper, execute)
        execute(setting, None, False, {"connection": connection, "cursor": None})


def _execute(
    raw: BoundedConnection, sql: str, parameters: None, many: bool, context: Mapping[str, Any]
) -> None:
    setting = sql.encode()
    raw.send_kept()
    if raw.begins_with(setting):
        return
    if raw.pgconn.transaction_status == TransactionStatus.IDLE:
        setting = b"BEGIN; " + setting  # psycopg sees that it has begun and adds no BEGIN of its own
    # Through `wait`, which ends however silent the server is.
    raw.pgconn.send_query(setting)
    result = raw.wait(generators.execute(raw.pgconn))[-1]
    if result.status == ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(result)


@contextmanager
def system_scope() -> Iterator[None]:
    """Send the ORM to the role that sees every tenant. Not inside a `tenant_scope`."""
    if CURRENT.get() is not None:
        raise TenantScopeConflict("the work of one tenant may not widen to all tenants")
    token, sight_token = _alias.set(SYSTEM), _in_sight.set(None)
    try:
        yield
    finally:
        _in_sight.reset(sight_token)
        _alias.reset(token)


@contextmanager
def admin_scope(*, reads: Collection[UUID], writes: Collection[UUID], platform: bool) -> Iterator[None]:
    """A request of the admin: the ORM sees rows of the tenants in `reads`, and changes those in `writes`.

    With `platform` it also sees and changes the tenants themselves. The setting is the connection's; it is put there by every request that
    uses the connection, and a connection that was replaced meanwhile has none, so that it shows nothing.
    """
    _tell_admin_role(reads, writes, platform)
    token, sight_token = _alias.set(ADMIN), _in_sight.set(frozenset(reads))
    try:
        yield
    finally:
        _in_sight.reset(sight_token)
        _alias.reset(token)
        _tell_admin_role((), (), False)


def _tell_admin_role(reads: Collection[UUID], writes: Collection[UUID], platform: bool) -> None:
    with connections[ADMIN].cursor() as cursor:
        cursor.execute(
            "SELECT set_config('app.admin_reads', %s, false), set_config('app.admin_writes', %s, false),"
            " set_config('app.admin_platform', %s, false)",
            [",".join(map(str, reads)), ",".join(map(str, writes)), "on" if platform else ""],
        )


class DatabaseRouter:
    """Follows the scope: `default` unless a `system_scope` is open. Only `owner` migrates."""

    def db_for_read(self, model: type, **hints: object) -> str:
        return _alias.get()

    def db_for_write(self, model: type, **hints: object) -> str:
        return _alias.get()

    def allow_relation(self, obj1: object, obj2: object, **hints: object) -> bool:
        return True  # All aliases are one database.

    def allow_migrate(self, db: str, app_label: str, **hints: object) -> bool:
        return db == OWNER
