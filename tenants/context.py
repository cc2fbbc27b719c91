"""Selects the tenant of the current work, and the database role that it uses.

`tenant_scope` is the only access to tenant data for requests, workers and commands: one transaction on the alias
`default`, whose role cannot bypass row-level security, with `app.tenant_id` set only for that transaction. When the
block ends, by success or error, PostgreSQL drops the setting with the transaction, so a reused connection carries nothing over.

`system_scope` sends the ORM to the alias `system`, whose role sees every tenant. Only listed modules
may use it: recovery, the promoter, the checker, and superusers of the platform who gave a reason.

`admin_scope` is for a request of the admin, which displays rows of several tenants: the role of the alias `admin` sees the rows of
the request's tenants, and no code inside can open the scope of another tenant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from math import inf
from typing import Any
from uuid import UUID

import psycopg
from django.db import connections, transaction
from psycopg import generators
from psycopg.pq import ExecStatus, TransactionStatus

from tenants.connection_pool import ConnectionPool
from tenants.current_tenant import CURRENT
from tenants.exceptions import TenantNotVisible, TenantScopeConflict
from tenants.postgresql.base import BoundedConnection

APP = "default"
SYSTEM = "system"
ADMIN = "admin"
OWNER = "owner"

#: The pool of `tenant_scope`. A worker whose threads run agents starts it.
POOL = ConnectionPool(APP)

_alias: ContextVar[str] = ContextVar("database_alias", default=APP)
# None: not in an `admin_scope`.
_visible_tenants: ContextVar[frozenset[UUID] | None] = ContextVar("visible_tenants", default=None)


def current_alias() -> str:
    """Return the database alias that the ORM uses now."""
    return _alias.get()


A_MOMENT = "50ms"  # the lock timeout of an impatient transaction


@contextmanager
def tenant_scope(tenant_id: UUID, *, is_patient: bool = True) -> Iterator[None]:
    """Run the block for one tenant, in one transaction. Nested scopes of the same tenant join the outer transaction.

    Unless `is_patient`, the transaction fails when it would have to wait for a lock for more than a moment.

    Raises `TenantScopeConflict` when another tenant's scope is already open, because a transaction belongs to one tenant.
    """
    outer = CURRENT.get()
    if outer is not None:
        if outer != tenant_id:
            raise TenantScopeConflict(f"the scope of {outer} is open, {tenant_id} was requested")
        yield
        return
    visible = _visible_tenants.get()
    if visible is not None and tenant_id not in visible:
        raise TenantNotVisible(f"this request of the admin may not access {tenant_id}")
    with POOL.connection(), transaction.atomic(using=APP):
        set_tenant(tenant_id, is_patient=is_patient)
        tenant_token, alias_token = CURRENT.set(tenant_id), _alias.set(APP)
        try:
            yield
        finally:
            _alias.reset(alias_token)
            CURRENT.reset(tenant_token)


def set_tenant(tenant_id: UUID, *, is_patient: bool = True) -> None:
    """Set the tenant whose rows this transaction may see. The setting ends with the transaction.

    For a transaction that has not begun, it is sent together with the first statement, without a separate round trip.
    """
    # The id is a UUID object, so interpolating it is safe.
    name = UUID(int=tenant_id.int)
    setting = f"SET LOCAL app.tenant_id = '{name}'"
    if not is_patient:
        # As one command, because the connection sends it together with others.
        setting = f"SELECT set_config('app.tenant_id', '{name}', true), set_config('lock_timeout', '{A_MOMENT}', true)"
    _set(setting)


def set_person(user_id: int) -> None:
    """Set the person whose own memberships this transaction may see, as `set_tenant` does."""
    _set(f"SET LOCAL app.user_id = '{int(user_id)}'")


def _set(setting: str) -> None:
    connection = connections[APP]
    connection.ensure_connection()
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
        setting = b"BEGIN; " + setting  # psycopg notices the open transaction and adds no BEGIN
    # Through `wait`, which times out if the server is silent.
    raw.pgconn.send_query(setting)
    result = raw.wait(generators.execute(raw.pgconn))[-1]
    if result.status == ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(result)


@contextmanager
def long_statements(alias: str, *, seconds: int = 0) -> Iterator[None]:
    """Let each statement of the open transaction take so many seconds, or any time. If the server is silent, the wait ends anyway.

    For commands of operators about very many rows.
    """
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(seconds * 1000)])
    raw: BoundedConnection = connections[alias].connection
    bound = raw.answer_within_seconds
    if bound is not None:
        raw.answer_within_seconds = seconds + 1.5 if seconds else inf
    try:
        yield
    finally:
        raw.answer_within_seconds = bound


@contextmanager
def system_scope() -> Iterator[None]:
    """Send the ORM to the role that sees every tenant. Must not be used inside a `tenant_scope`."""
    if CURRENT.get() is not None:
        raise TenantScopeConflict("a tenant's scope may not be widened to all tenants")
    token, visible_token = _alias.set(SYSTEM), _visible_tenants.set(None)
    try:
        yield
    finally:
        _visible_tenants.reset(visible_token)
        _alias.reset(token)


@contextmanager
def admin_scope(*, reads: Collection[UUID], writes: Collection[UUID], platform: bool) -> Iterator[None]:
    """Limit the ORM for a request of the admin: it can read rows of the tenants in `reads`, and change those in `writes`.

    With `platform` it can also read and change the tenants themselves. The setting belongs to the connection. Every request sets it on the
    connection that it uses; a connection that was replaced meanwhile has no setting, and returns no rows.
    """
    _set_admin_tenants(reads, writes, platform)
    token, visible_token = _alias.set(ADMIN), _visible_tenants.set(frozenset(reads))
    try:
        yield
    finally:
        _visible_tenants.reset(visible_token)
        _alias.reset(token)
        _set_admin_tenants((), (), False)


def _set_admin_tenants(reads: Collection[UUID], writes: Collection[UUID], platform: bool) -> None:
    with connections[ADMIN].cursor() as cursor:
        cursor.execute(
            "SELECT set_config('app.admin_reads', %s, false), set_config('app.admin_writes', %s, false),"
            " set_config('app.admin_platform', %s, false)",
            [",".join(map(str, reads)), ",".join(map(str, writes)), "on" if platform else ""],
        )


class DatabaseRouter:
    """Selects the alias of the open scope, else `default`. Only `owner` migrates."""

    def db_for_read(self, model: type, **hints: object) -> str:
        return _alias.get()

    def db_for_write(self, model: type, **hints: object) -> str:
        return _alias.get()

    def allow_relation(self, obj1: object, obj2: object, **hints: object) -> bool:
        return True  # All aliases are one database.

    def allow_migrate(self, db: str, app_label: str, **hints: object) -> bool:
        return db == OWNER
