"""Pausing a tenant: nothing new of it starts, in any role, until somebody lets it go on. What runs ends normally.

In force within two seconds, when the limits of admission are put in force next. Every switch is in the tenant's audit trail.
"""

from __future__ import annotations

from uuid import UUID

from tenants import audit
from tenants.audit import origin
from tenants.context import tenant_scope
from tenants.exceptions import TenantError
from tenants.models import Role, Tenant
from tenants.principals import Principal


class PausingRefused(TenantError):
    """Only admins of a tenant stop all of its work, and let it go on."""

    code = "forbidden"
    status = 403


def switch(who: Principal, *, paused: bool) -> bool:
    """Pause the tenant that this person acts for, or let it go on; False if it was so before. Raises `PausingRefused`."""
    operation, about = "tenant.paused" if paused else "tenant.resumed", ("tenants", who.tenant_id)
    actor = audit.actor_of(who)
    glass: dict[UUID | None, UUID] = {who.tenant_id: who.break_glass_id} if who.break_glass_id else {}
    with tenant_scope(who.tenant_id), origin.through_glass(glass):
        allowed = who.role.includes(Role.ADMIN)
        rows = Tenant.objects.filter(pk=who.tenant_id).exclude(paused=paused)
        if allowed and not rows.update(paused=paused):
            return False
        changes = {"paused": [not paused, paused]} if allowed else {}
        audit.record(
            operation, actor=actor, tenant_id=who.tenant_id, about=about, changes=changes,
            outcome="done" if allowed else "refused",
        )  # fmt: skip
    if not allowed:
        raise PausingRefused("This needs the role admin; you act as " + who.role.value + ".")
    return True
