"""The tenants that a person can see in the admin, and those that they may change.

Admins of a tenant see and change its rows; staff also see the other tenants of which they are members. Superusers also see
the rows of the platform, and other tenants' rows only in a break-glass session (`tenants.break_glass`). The database enforces this,
whatever a page queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from tenants import audit, break_glass, members
from tenants.context import admin_scope, system_scope
from tenants.models import Role
from tenants.models.audit import BreakGlass


@dataclass(frozen=True, slots=True)
class AdminScope:
    """The tenants that a request may read and write, whether it may read the platform's rows, and its break-glass sessions."""

    reads: frozenset[UUID] = frozenset()
    writes: frozenset[UUID] = frozenset()
    platform: bool = False
    glass: tuple[BreakGlass, ...] = field(default=())

    @property
    def everything(self) -> bool:
        """Whether a break-glass session for all tenants is open."""
        return any(each.opened_for is None for each in self.glass)

    @property
    def is_empty(self) -> bool:
        return not (self.reads or self.platform)

    def may_read(self, tenant_id: UUID | None) -> bool:
        return self.everything or tenant_id in self.reads

    def may_write(self, tenant_id: UUID | None) -> bool:
        return self.everything or tenant_id in self.writes

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Limit the queries in the block, and name the break-glass sessions in its audit entries."""
        limited = partial(admin_scope, reads=self.reads, writes=self.writes, platform=self.platform)
        glass = {each.opened_for: each.pk for each in self.glass}
        with audit.through_glass(glass), system_scope() if self.everything else limited():
            yield


NONE = AdminScope()


def of_user(user: Any) -> AdminScope:
    """Return the person's current scope. It is computed for every request, so the end of a membership takes effect at once."""
    if not user.is_active:
        return NONE
    memberships = members.memberships_of(user)
    if not (user.is_staff or user.is_superuser):
        memberships = [each for each in memberships if each.role == Role.ADMIN]
    glass = break_glass.list_open(user)
    opened = {each.opened_for for each in glass if each.opened_for is not None}
    administered = {each.tenant_id for each in memberships if user.is_superuser or each.role == Role.ADMIN}
    return AdminScope(
        reads=frozenset({each.tenant_id for each in memberships} | opened),
        writes=frozenset(administered | opened),
        platform=user.is_superuser,
        glass=tuple(glass),
    )


def of_request(request: Any) -> AdminScope:
    """Return the scope that the middleware set on a request, or an empty one if it set none."""
    scope = getattr(request, "admin_scope", NONE)
    return scope if isinstance(scope, AdminScope) else NONE


def add_break_glass(request: Any) -> dict[str, Any]:
    """Context processor for the banner of every page of the admin."""
    return {"broken_glass": of_request(request).glass}
