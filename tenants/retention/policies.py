"""How long a tenant's rows of a kind are kept: its own wish, or the platform's default. Days, or None for ever."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import F

from tenants import clock
from tenants.context import system_scope, tenant_scope
from tenants.exceptions import TenantError
from tenants.models import Tenant
from tenants.models.retention import LONGEST_DAYS, DepartedTenant, RetentionPolicy
from tenants.retention.kinds import all_kinds

NEVER = "never"


class RetentionInvalid(TenantError):
    """A policy names an unknown kind, or days that are no days. `faults` has each by its path."""

    code = "invalid_retention"
    status = 400

    def __init__(self, faults: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {message}" for path, message in faults))
        self.faults = faults


def days_of(tenant_id: UUID) -> dict[str, float | None]:
    """By kind, what is in force for a tenant."""
    own = own_of(tenant_id)
    return {name: own.get(name, kind.default_days) for name, kind in all_kinds().items()}


def own_of(tenant_id: UUID) -> dict[str, int | None]:
    """By kind, what the tenant has set itself."""
    with tenant_scope(tenant_id):
        return dict(RetentionPolicy.objects.for_tenant(tenant_id).values_list("kind", "days"))


def before(days: float | None, *, now: datetime | None = None) -> datetime | None:
    """Rows older than this may go; None when none may."""
    return None if days is None else (now or clock.now()) - timedelta(days=days)


def replace(tenant_id: UUID, wanted: Mapping[str, object], *, actor: str) -> None:
    """Set the tenant's own policies: days, or "never", by kind. What is left out has the default again. Raises `RetentionInvalid`."""
    if faults := [(kind, fault) for kind, value in wanted.items() if (fault := _fault(kind, value))]:
        raise RetentionInvalid(faults)
    days = {kind: value if isinstance(value, int) else None for kind, value in wanted.items()}
    with tenant_scope(tenant_id):
        rows = RetentionPolicy.objects.for_tenant(tenant_id)
        rows.exclude(kind__in=days).delete()
        for kind, value in days.items():
            row, made = RetentionPolicy.objects.get_or_create(
                tenant_id=tenant_id, kind=kind, defaults={"days": value, "updated_by": actor}
            )
            if not made and row.days != value:
                rows.filter(pk=row.pk).update(days=value, version=F("version") + 1, updated_by=actor)


def overrides(kind: str) -> dict[UUID, int | None]:
    """By tenant, what tenants have set for one kind: for files, which are swept for all tenants at once."""
    with system_scope():
        return dict(RetentionPolicy.objects.filter(kind=kind).values_list("tenant_id", "days"))


def tenants() -> list[UUID]:
    """Every tenant, in the order in which a pass goes through them."""
    with system_scope():
        return list(Tenant.objects.order_by("pk").values_list("pk", flat=True))


def departed() -> set[UUID]:
    """Tenants that were off-boarded: whatever is found of them may go."""
    with system_scope():
        return set(DepartedTenant.objects.values_list("pk", flat=True))


def _fault(kind: str, value: object) -> str:
    if kind not in all_kinds():
        return f"is not a kind that is kept for a time; these are: {', '.join(all_kinds())}"
    if value == NEVER:
        return ""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LONGEST_DAYS:
        return f'must be "{NEVER}" or whole days from 1 to {LONGEST_DAYS}'
    return ""
