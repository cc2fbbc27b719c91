"""Breaking the glass: a superuser says why they must see a tenant that they are no member of, and does, for an hour.

Beginning and end stand in the audit trail, as does everything that was changed meanwhile, with the id of the glass. One tenant's glass
is in that tenant's own trail, where its admins read it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from django.conf import settings
from django.db import transaction

from tenants import audit, clock
from tenants.audit import one_line
from tenants.context import SYSTEM, system_scope
from tenants.exceptions import TenantError
from tenants.models import Tenant
from tenants.models.audit import BreakGlass

if TYPE_CHECKING:
    from django.contrib.auth.models import User

LEAST_REASON, LONGEST_REASON = 10, 500  # characters


class GlassRefused(TenantError):
    """Only superusers open a break-glass session, for a tenant that exists and with a reason."""

    code = "break_glass_refused"
    status = 400


def open_for(user: User, slug: str, reason: str) -> BreakGlass:
    """Open a break-glass session for one tenant, or with an empty slug for all. Raises `GlassRefused`."""
    text = one_line(" ".join(reason.split()), LONGEST_REASON)
    if not (user.is_active and user.is_superuser):
        raise GlassRefused("Only superusers may do this.")
    if len(text) < LEAST_REASON:
        raise GlassRefused(f"Say why, in at least {LEAST_REASON} characters.")
    with system_scope(), transaction.atomic(using=SYSTEM):
        tenant = Tenant.objects.filter(slug=slug).first() if slug else None
        if slug and tenant is None:
            raise GlassRefused(f"There is no tenant {one_line(slug)!r}.")
        until = clock.now() + timedelta(seconds=settings.ORCHESTRATOR_BREAK_GLASS_SECONDS)
        glass = BreakGlass.objects.create(
            user_id=user.pk,
            opened_for=tenant.pk if tenant else None,
            slug=slug,
            reason=text,
            expires_at=until,
        )
        _note("break_glass.opened", glass, audit.actor_of(user), {"reason": text, "until": until.isoformat()})
    return glass


def end(user: User, glass_id: UUID) -> bool:
    """End the user's own break-glass session early. False if it was over already."""
    with system_scope(), transaction.atomic(using=SYSTEM):
        glass = BreakGlass.objects.filter(pk=glass_id, user_id=user.pk).first()
        return glass is not None and _end_glass(glass, audit.actor_of(user), "ended")


def list_open(user: User) -> list[BreakGlass]:
    """The superuser's open break-glass sessions. Those of the user that have expired are ended here; nobody else's are."""
    if not (user.is_active and user.is_superuser):
        return []
    with system_scope(), transaction.atomic(using=SYSTEM):
        rows = list(BreakGlass.objects.filter(user_id=user.pk, ended_at=None).order_by("opened_at"))
        now = clock.now()
        for glass in rows:
            if glass.expires_at <= now:
                _end_glass(glass, audit.actor_of(user), "expired")
        return [glass for glass in rows if glass.expires_at > now]


def _end_glass(glass: BreakGlass, actor: audit.Actor, how: str) -> bool:
    over = BreakGlass.objects.filter(pk=glass.pk, ended_at=None).update(ended_at=clock.now())
    if over:
        _note(f"break_glass.{how}", glass, actor, {"reason": glass.reason})
    return bool(over)


def _note(operation: str, glass: BreakGlass, actor: audit.Actor, detail: dict[str, str]) -> None:
    with audit.through_glass({glass.opened_for: glass.pk}):
        about = ("break_glass", glass.pk)
        audit.record(operation, actor=actor, tenant_id=glass.opened_for, about=about, detail=detail)
