"""People who signed in: which tenant they act for, and in which role.

A person acts for the tenants that they are a member of. The choice between several is theirs; a name that is
not among them is answered alike whether such a tenant exists or not. Only a superuser may act for any tenant,
and must name it, and have said why (`tenants.break_glass`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from django.db import connections, transaction

from tenants import break_glass
from tenants.context import APP, system_scope
from tenants.exceptions import TenantError
from tenants.models import Membership, Role, Tenant
from tenants.principals import Principal

if TYPE_CHECKING:
    from django.contrib.auth.models import User


class MembershipRefused(TenantError):
    """The person may not act for this tenant, or did not say for which of several."""

    code = "not_a_member"
    status = 403


class TenantNotNamed(MembershipRefused):
    """The person may act for several tenants and named none."""

    code = "tenant_not_named"


def principal_of(user: User, slug: str | None = None, own: Sequence[Membership] | None = None) -> Principal:
    """The person acting for the named tenant, or for their only one. Raises `MembershipRefused`.

    `own` are the person's memberships, for those who have just asked for them.
    """
    own = memberships_of(user) if own is None else own
    for membership in own:
        if membership.tenant.slug == slug or (slug is None and len(own) == 1):
            return _as_member(user, membership)
    if slug is None:
        raise _nothing_named(user, own)
    if user.is_superuser and (tenant := _any_tenant(slug)):
        glass = next(
            (each for each in break_glass.broken_by(user) if each.opened_for in (None, tenant.pk)), None
        )
        if glass is not None:
            return replace(_principal(user, tenant, Role.ADMIN), break_glass_id=glass.pk)
        raise MembershipRefused(
            f"You are not a member of the tenant {slug!r}. Break the glass in the admin first."
        )
    raise MembershipRefused(f"You are not a member of a tenant {slug!r}.")


def memberships_of(user: User) -> list[Membership]:
    """The person's memberships in active tenants, by slug. Not inside a transaction of a tenant."""
    with transaction.atomic(using=APP, durable=True):
        with connections[APP].cursor() as cursor:
            cursor.execute("SELECT set_config('app.user_id', %s, true)", [str(user.pk)])
        rows = Membership.objects.using(APP).select_related("tenant")
        return list(rows.filter(user_id=user.pk, tenant__is_active=True).order_by("tenant__slug"))


def _nothing_named(user: User, own: Sequence[Membership]) -> MembershipRefused:
    if own:
        slugs = ", ".join(membership.tenant.slug for membership in own)
        return TenantNotNamed(
            f"You belong to several tenants. Name one of them in the header X-Tenant: {slugs}."
        )
    if user.is_superuser:
        return TenantNotNamed(
            "You are no member of a tenant. As a superuser, name any tenant in the header X-Tenant, after breaking the glass."
        )
    return MembershipRefused("You are not a member of any tenant. Ask an administrator to add you.")


def _any_tenant(slug: str) -> Tenant | None:
    with system_scope():
        return Tenant.objects.filter(slug=slug, is_active=True).first()


def _as_member(user: User, membership: Membership) -> Principal:
    role = Role.ADMIN if user.is_superuser else Role(membership.role)
    return _principal(user, membership.tenant, role, tuple(membership.human_roles))


def _principal(user: User, tenant: Tenant, role: Role, human_roles: tuple[str, ...] = ()) -> Principal:
    return Principal(
        tenant_id=tenant.pk,
        tenant=tenant.slug,
        role=role,
        actor=f"user:{user.get_username()}",
        human_roles=human_roles,
        user_id=user.pk,
        is_platform_admin=user.is_superuser,
    )
