"""Pausing a tenant, or one of its pipelines, schedules or model providers: nothing new starts until somebody resumes it. What already runs
ends normally, and new work waits.

It takes effect when it is committed, or within two seconds if Redis does not answer at that moment. Pauses are recorded in the tenant's
audit trail.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db.models import CharField, Exists, OuterRef, QuerySet
from django.db.models.functions import Cast

from tenants import audit
from tenants.context import tenant_scope
from tenants.models import Pause, PauseKind, Role, Tenant
from tenants.principals import Principal
from tenants.signals import pauses_changed, work_resumed


def switch(who: Principal, *, paused: bool) -> bool:
    """Pause or resume the tenant that this person acts for; False if nothing changed. Raises `Forbidden`."""
    operation, about = "tenant.paused" if paused else "tenant.resumed", ("tenants", who.tenant_id)
    with tenant_scope(who.tenant_id):
        allowed = who.role.includes(Role.ADMIN)
        rows = Tenant.objects.filter(pk=who.tenant_id).exclude(paused=paused)
        if allowed and not rows.update(paused=paused):
            return False
        changes = {"paused": [not paused, paused]} if allowed else {}
        outcome = "done" if allowed else "refused"
        audit.record_action(who, operation, about=about, changes=changes, outcome=outcome)
        if allowed and not paused:
            work_resumed.send(sender=Tenant, tenant_id=who.tenant_id, kind=None, subject="")
        if allowed:
            pauses_changed.send(sender=Tenant)
    who.require_admin()
    return True


def switch_part(
    tenant_id: UUID, kind: PauseKind, subject: UUID | str, *, name: str, paused: bool, actor: str
) -> bool:
    """Pause or resume a part of the tenant's work; False if nothing changed. In the caller's `tenant_scope`."""
    rows = Pause.objects.for_tenant(tenant_id).filter(kind=kind, subject=str(subject))
    if not paused:
        was_paused = bool(rows.delete()[0])
        if was_paused:
            work_resumed.send(sender=Pause, tenant_id=tenant_id, kind=kind, subject=str(subject))
            pauses_changed.send(sender=Pause)
        return was_paused
    if rows.exists():
        return False
    pause = Pause(
        tenant_id=tenant_id, kind=kind, subject=str(subject), name=name[:200], paused_by=actor[:200]
    )
    Pause.objects.bulk_create([pause], ignore_conflicts=True)  # somebody else may pause it at the same time
    pauses_changed.send(sender=Pause)
    return True


def parts_of(tenant_id: UUID, kind: PauseKind | None = None) -> dict[tuple[str, str], Pause]:
    """Return what is paused, by kind and subject. Call it within a `tenant_scope`."""
    rows = Pause.objects.for_tenant(tenant_id)
    return {(row.kind, row.subject): row for row in (rows.filter(kind=kind) if kind else rows)}


def with_pauses(rows: QuerySet[Any], kind: PauseKind) -> Any:
    """Annotate rows of a tenant-owned table with `paused`: whether a pause of this kind names the row's id."""
    pauses = Pause.objects.filter(
        tenant_id=OuterRef("tenant_id"), kind=kind, subject=Cast(OuterRef("pk"), CharField())
    )
    return rows.annotate(paused=Exists(pauses))


def scopes_of(pauses: Iterable[Pause]) -> Iterable[str]:
    """Return the scopes of admission that pauses stop. A pause of a provider has none, because it stops the roles that call it."""
    return (
        f"{pause.kind}:{pause.tenant_id}:{pause.subject}"
        for pause in pauses
        if pause.kind != PauseKind.PROVIDER
    )
