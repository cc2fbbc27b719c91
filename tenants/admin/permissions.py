"""Permissions in the admin: rows of tenants by the request's `AdminScope`, rows of the platform only for superusers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any
from uuid import UUID

from django import forms
from django.contrib.admin import AdminSite
from django.contrib.admin.widgets import AutocompleteSelect
from django.core.exceptions import ValidationError
from django.db.models import ForeignKey, Model
from django.http import HttpRequest

from tenants import admin_scope
from tenants.audit import one_line
from tenants.models import Tenant


def is_superuser(request: HttpRequest) -> bool:
    return bool(request.user.is_active and request.user.is_superuser)


def tenant_of(row: Any) -> UUID | None:
    """Return the tenant that the row belongs to, or None for rows of the platform."""
    return row.pk if isinstance(row, Tenant) else getattr(row, "tenant_id", None)


@cache
def is_owned(model: type[Model]) -> bool:
    """Whether the model's rows belong to tenants."""
    return any(each.name == "tenant" for each in model._meta.concrete_fields)


def may_write(request: HttpRequest, row: Any) -> bool:
    """Whether the request may change a row, or the settings of a tenant."""
    tenant_id = tenant_of(row)
    return (
        is_superuser(request) if tenant_id is None else admin_scope.of_request(request).may_write(tenant_id)
    )


FOUND_ROWS = "_found_rows"


def find_row(request: HttpRequest, model: type[Model], row: Any) -> Any:
    """Return the row. It may be passed as the text of its id, because the theme checks permissions with that, many times for a page."""
    if not isinstance(row, str):
        return row
    found = request.__dict__.setdefault(FOUND_ROWS, {})
    if (model, row) not in found:
        found[model, row] = _read_row(model, row)
    return found[model, row]


def _read_row(model: type[Model], row: str) -> Any:
    if "\x00" in row:
        return None
    try:
        return model._default_manager.filter(pk=row).first()
    except (ValueError, ValidationError):
        return None


class ForgivingAutocomplete(AutocompleteSelect):
    """A field with suggestions. It displays a submitted id that no row can have as an empty selection, instead of failing."""

    def optgroups(self, name: str, value: Sequence[str], attr: Any = None) -> Any:
        try:
            return super().optgroups(name, [each for each in value if "\x00" not in each], attr)
        except (ValueError, ValidationError):
            return super().optgroups(name, [], attr)


class RowChoiceField(forms.ModelChoiceField):
    """A field with a row. It refuses ids that the database cannot even compare."""

    def to_python(self, value: Any) -> Any:
        if isinstance(value, str) and "\x00" in value:
            raise ValidationError(
                self.error_messages["invalid_choice"],
                code="invalid_choice",
                params={"value": one_line(value)},
            )
        return super().to_python(value)


class ChosenTenants:
    """A mixin for admins and inlines. The form offers and accepts only tenants that the request may change."""

    def formfield_for_foreignkey(
        self, db_field: ForeignKey[Any, Any], request: HttpRequest, **options: Any
    ) -> Any:
        scope = admin_scope.of_request(request)
        if db_field.remote_field.model is Tenant and not scope.everything:
            options["queryset"] = Tenant.objects.filter(pk__in=scope.writes)
        options.setdefault("form_class", RowChoiceField)
        if db_field.name in self.get_autocomplete_fields(request):  # type: ignore[attr-defined]  # the admin's
            site: AdminSite = self.admin_site  # type: ignore[attr-defined]
            options.setdefault("widget", ForgivingAutocomplete(db_field, site, using=options.get("using")))
        return super().formfield_for_foreignkey(db_field, request, **options)  # type: ignore[misc]  # the admin's


class ScopedPermissions(ChosenTenants):
    """A mixin for admins of tenants' rows. Members see the rows of their tenants, and change those of tenants whose admins they are.

    Rows of the platform are for superusers. The database enforces the same rules.
    """

    model: Any

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
        scope, row = admin_scope.of_request(request), find_row(request, self.model, row)
        if row is None or row._state.adding:
            may_any = bool(scope.writes if write else scope.reads)
            return scope.everything or may_any or (scope.platform and not write)
        return scope.may_write(tenant_of(row)) if write else scope.may_read(tenant_of(row))


class PlatformOnly(ScopedPermissions):
    """A mixin for admins that only superusers can see, whatever permissions others have."""

    def _may(self, request: HttpRequest, row: Any, *, write: bool) -> bool:
        return is_superuser(request)
