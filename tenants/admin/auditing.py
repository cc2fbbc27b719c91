"""Everything that is changed in the admin goes to the audit trail, where Django's own admin writes its history: once per row, in the same
transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Model, QuerySet
from django.http import HttpRequest

from tenants import admin_scope, audit
from tenants.admin.permissions import tenant_of
from tenants.audit.recording import one_line, redacted

KEPT = "_audited_changes"


class Audited:
    """Mixed into an admin. Rows of a tenant stand in its trail, those of the platform in the platform's own."""

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        setattr(request, KEPT, _changes_of(form))
        return super().construct_change_message(request, form, formsets, add)  # type: ignore[misc]  # the admin's

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        note(request, obj, "add", message)
        return super().log_addition(request, obj, message)  # type: ignore[misc]

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        note(request, obj, "change", message)
        return super().log_change(request, obj, message)  # type: ignore[misc]

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[Any] | list[Any]) -> Any:
        for row in queryset:
            note(request, row, "delete", "")
        return super().log_deletions(request, queryset)  # type: ignore[misc]


def note(request: HttpRequest, row: Model, verb: str, message: Any) -> None:
    """Write down what was done to a row. A message of ours begins with the deed; what people said beside it is theirs."""
    tenant_id = tenant_of(row)
    if tenant_id is not None and not admin_scope.of_request(request).may_write(tenant_id):
        tenant_id = None  # a tenant's own row, changed by the platform
    deed = one_line(message.partition(".")[0]) if isinstance(message, str) and message else ""
    kind = f"{row._meta.app_label}.{row._meta.model_name}"
    audit.record(
        f"admin {kind} {verb}",
        actor=audit.actor_of(request.user),
        tenant_id=tenant_id,
        about=(kind, row.pk),
        changes=getattr(request, KEPT, {}) if not deed else {},
        detail={"deed": deed} if deed else {},
    )


def _changes_of(form: Any) -> Mapping[str, Any]:
    cleaned = getattr(form, "cleaned_data", {})
    return {
        one_line(name, 100): [
            redacted(name, _plain(form.initial.get(name))),
            redacted(name, _plain(cleaned.get(name))),
        ]
        for name in form.changed_data
    }


def _plain(value: Any) -> Any:
    if isinstance(value, QuerySet):
        return [str(row.pk) for row in value[:100]]
    return str(value.pk) if isinstance(value, Model) else value
