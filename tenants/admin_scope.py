"""Sight: which tenants a person sees in the admin, which of them they may change, and what admins ask of it.

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

from django.core.exceptions import ValidationError
from django.db.models import ForeignKey, Model
from django.http import HttpRequest

from tenants import audit, break_glass, members
from tenants.context import admin_scope, system_scope
from tenants.models import Role, Tenant
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
    """The scope that the middleware gave to a request; an empty one if it gave none."""
    found = getattr(request, "sight", NONE)
    return found if isinstance(found, Sight) else NONE


def add_break_glass(request: Any) -> dict[str, Any]:
    """For the banner of every page of the admin."""
    return {"broken_glass": of_request(request).glass}


def is_superuser(request: HttpRequest) -> bool:
    return bool(request.user.is_active and request.user.is_superuser)


def tenant_of(row: Any) -> UUID | None:
    """The tenant whose row it is; None for what belongs to the platform."""
    return row.pk if isinstance(row, Tenant) else getattr(row, "tenant_id", None)


def is_owned(model: type[Model]) -> bool:
    """Whether its rows belong to tenants."""
    return any(each.name == "tenant" for each in model._meta.concrete_fields)


def may_write(request: HttpRequest, row: Any) -> bool:
    """Whether the request may do something to a row, or to the settings of a tenant."""
    tenant_id = tenant_of(row)
    return is_superuser(request) if tenant_id is None else of_request(request).may_write(tenant_id)


def find_row(model: type[Model], row: Any) -> Any:
    """The row, also for the text of its id: the theme asks for permissions with that."""
    if not isinstance(row, str):
        return row
    try:
        return model._default_manager.filter(pk=row).first()
    except (ValueError, ValidationError):
        return None


class ChosenTenants:
    """Mixed into an admin or an inline: its form offers and accepts only tenants that the request may change."""

    def formfield_for_foreignkey(
        self, db_field: ForeignKey[Any, Any], request: HttpRequest, **options: Any
    ) -> Any:
        seen = of_request(request)
        if db_field.remote_field.model is Tenant and not seen.everything:
            options["queryset"] = Tenant.objects.filter(pk__in=seen.writes)
        return super().formfield_for_foreignkey(db_field, request, **options)  # type: ignore[misc]  # the admin's


class PlatformOnly(ChosenTenants):
    """Mixed into an admin that only superusers see, whatever permissions others have."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return is_superuser(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_superuser(request)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_superuser(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_superuser(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_superuser(request)


class BySight(ChosenTenants):
    """Mixed into an admin of rows that belong to tenants: members see theirs, and change those of tenants that they are admins of.

    Rows of the platform are for superusers. The database holds the request to the same.
    """

    model: type[Model]

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self._may(request, None, write=False)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may(request, obj, write=False)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may(request, None, write=True)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may(request, obj, write=True)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may(request, obj, write=True)

    def _may(self, request: HttpRequest, row: Any, *, write: bool) -> bool:
        if not is_owned(self.model):
            return is_superuser(request)
        seen, row = of_request(request), find_row(self.model, row)
        if row is None or row._state.adding:
            return (
                seen.everything or bool(seen.writes if write else seen.reads) or (seen.platform and not write)
            )
        return seen.may_write(tenant_of(row)) if write else seen.may_read(tenant_of(row))
