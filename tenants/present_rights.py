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
        members = Membership.objects.for_tenant(tenant_id).select_related("user").filter(user__is_active=True)
        if kind == "token":
            valid = ApiToken.objects.for_tenant(tenant_id).filter(
                Q(expires_at=None) | Q(expires_at__gt=clock.now()), pk=key, revoked_at=None
            )
            token = valid.first()
            return token and tokens.role_of(token, members.filter(user_id=token.user_id).first())
        if member := members.filter(user_id=key).first():
            return member.acting_role
    user = User.objects.filter(pk=key).first()  # who may have been deleted
    sessions = break_glass.list_open(user) if user else []
    return Role.ADMIN if any(glass.opened_for in (None, tenant_id) for glass in sessions) else None
