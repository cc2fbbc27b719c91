"""Break-glass sessions: a superuser gets access to a tenant of which they are not a member, for an hour and with a reason.

Their beginning and end, and all changes during the session, are in the audit trail, with the id of the session. A session for one tenant
is in that tenant's own trail, where its admins can read it.
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
        raise GlassRefused(f"Enter a reason of at least {LEAST_REASON} characters.")
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
        _record(
            "break_glass.opened", glass, audit.actor_of(user), {"reason": text, "until": until.isoformat()}
        )
    return glass


def end(user: User, glass_id: UUID) -> bool:
    """End the user's own break-glass session early. Return False if it was already over."""
    with system_scope(), transaction.atomic(using=SYSTEM):
        glass = BreakGlass.objects.filter(pk=glass_id, user_id=user.pk).first()
        return glass is not None and _end_glass(glass, audit.actor_of(user), "ended")


def list_open(user: User) -> list[BreakGlass]:
    """Return the superuser's open break-glass sessions, and end their expired ones."""
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
        _record(f"break_glass.{how}", glass, actor, {"reason": glass.reason})
    return bool(over)


def _record(operation: str, glass: BreakGlass, actor: audit.Actor, detail: dict[str, str]) -> None:
    with audit.through_glass({glass.opened_for: glass.pk}):
        about = ("break_glass", glass.pk)
        audit.record(operation, actor=actor, tenant_id=glass.opened_for, about=about, detail=detail)
