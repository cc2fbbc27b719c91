"""The tenant whose work is done here. `tenants.context` sets it.

It stands apart from there, so that lines of the log can name it without loading the clients of the database: the parent of the web's
processes writes lines, and does nothing else.
"""

from __future__ import annotations

from contextvars import ContextVar
from uuid import UUID

CURRENT: ContextVar[UUID | None] = ContextVar("tenant", default=None)


def current_tenant() -> UUID | None:
    """The tenant of the innermost `tenant_scope`, or None outside of one."""
    return CURRENT.get()
