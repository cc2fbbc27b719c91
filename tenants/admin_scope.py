"""Sight: which tenants a person sees in the admin, and which of them they may change.

Admins of a tenant see and change what is its; staff besides see the other tenants that they are members of. Superusers also see what
belongs to the platform; other tenants' rows only through broken glass (`tenants.break_glass`). The database holds everybody to it,
whatever a page asks for.
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
class Sight:
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
        """What the request's queries see, and through which glass its entries in the audit trail were made."""
        some = partial(admin_scope, reads=self.reads, writes=self.writes, platform=self.platform)
        glass = {each.opened_for: each.pk for each in self.glass}
        with audit.through_glass(glass), system_scope() if self.everything else some():
            yield


NONE = Sight()


def of(user: Any) -> Sight:
    """What the person may see now. It is computed for every request, so a membership that ends has no effect any more at once."""
    if not user.is_active:
        return NONE
    own = members.memberships_of(user)
    if not (user.is_staff or user.is_superuser):
        own = [each for each in own if each.role == Role.ADMIN]
    glass = break_glass.list_open(user)
    broken = {each.opened_for for each in glass if each.opened_for is not None}
    led = {each.tenant_id for each in own if user.is_superuser or each.role == Role.ADMIN}
    return Sight(
        reads=frozenset({each.tenant_id for each in own} | broken),
        writes=frozenset(led | broken),
        platform=user.is_superuser,
        glass=tuple(glass),
    )


def of_request(request: Any) -> Sight:
    """The sight that the middleware gave to a request; an empty one if it gave none."""
    found = getattr(request, "sight", NONE)
    return found if isinstance(found, Sight) else NONE


def add_break_glass(request: Any) -> dict[str, Any]:
    """For the banner of every page of the admin."""
    return {"broken_glass": of_request(request).glass}
