"""The tenant of the current work. `tenants.context` sets it.

It is a separate module, so that log lines can name the tenant without importing the database clients: the parent of the web
processes only writes log lines.
"""

from __future__ import annotations

from contextvars import ContextVar
from uuid import UUID

CURRENT: ContextVar[UUID | None] = ContextVar("tenant", default=None)


def current_tenant() -> UUID | None:
    """Return the tenant of the open `tenant_scope`, or None outside of one."""
    return CURRENT.get()


def required_tenant() -> UUID:
    """Return the tenant of the open `tenant_scope`. Raises `RuntimeError` outside of one."""
    tenant_id = CURRENT.get()
    if tenant_id is None:
        raise RuntimeError("this needs a tenant_scope")
    return tenant_id
