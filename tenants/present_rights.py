"""The rights that a credential has now, for work that continues after the request that started it."""

from __future__ import annotations

from uuid import UUID

from django.contrib.auth.models import User
from django.db.models import Q

from tenants import break_glass, clock, tokens
from tenants.context import tenant_scope
from tenants.models import ApiToken, Membership, Role


def role_of(tenant_id: UUID, credential: str) -> Role | None:
    """Return the role with which this `Principal.credential` acts for the tenant now. None if it may not act any more.

    Must not run in a `tenant_scope`, because break-glass sessions belong to the platform.
    """
    kind, _, key = credential.partition(":")
    with tenant_scope(tenant_id):
        if kind == "token":
            valid = ApiToken.objects.for_tenant(tenant_id).filter(
                Q(expires_at=None) | Q(expires_at__gt=clock.now()), pk=key, revoked_at=None
            )
            token = valid.first()
            return tokens.role_of(token, tokens.membership_of(token)) if token else None
        members = Membership.objects.for_tenant(tenant_id).select_related("user")
        if member := members.filter(user_id=key, user__is_active=True).first():
            return member.acting_role
    user = User.objects.filter(pk=key).first()  # who may have been deleted
    sessions = break_glass.list_open(user) if user else []
    return Role.ADMIN if any(glass.opened_for in (None, tenant_id) for glass in sessions) else None
