"""Pausing a tenant: nothing new of it starts, in any role, until somebody lets it go on. What runs ends normally.

In force within two seconds, when the limits of admission are put in force next. Every switch is in the tenant's audit trail.
"""

from __future__ import annotations

from tenants import audit
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
    with tenant_scope(who.tenant_id):
        allowed = who.role.includes(Role.ADMIN)
        rows = Tenant.objects.filter(pk=who.tenant_id).exclude(paused=paused)
        if allowed and not rows.update(paused=paused):
            return False
        changes = {"paused": [not paused, paused]} if allowed else {}
        outcome = "done" if allowed else "refused"
        audit.record_action(who, operation, about=about, changes=changes, outcome=outcome)
    if not allowed:
        raise PausingRefused("This needs the role admin; you act as " + who.role.value + ".")
    return True
