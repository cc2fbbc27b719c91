"""Who may see and do what in the admin: rows of tenants by the request's `Sight`, rows of the platform superusers alone."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db.models import ForeignKey, Model
from django.http import HttpRequest

from tenants import admin_scope
from tenants.models import Tenant


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
    return (
        is_superuser(request) if tenant_id is None else admin_scope.of_request(request).may_write(tenant_id)
    )


def find_row(model: type[Model], row: Any) -> Any:
    """The row itself, also when only the text of its id is given, with which the theme asks for permissions."""
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
        seen = admin_scope.of_request(request)
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
        seen, row = admin_scope.of_request(request), find_row(self.model, row)
        if row is None or row._state.adding:
            return (
                seen.everything or bool(seen.writes if write else seen.reads) or (seen.platform and not write)
            )
        return seen.may_write(tenant_of(row)) if write else seen.may_read(tenant_of(row))
