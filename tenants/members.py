"""Members: the tenant for which a signed-in person acts, and their role; and changes of memberships.

A person may act for the tenants of which they are a member, and chooses between several. Other names
get the same answer whether such a tenant exists or not. Only a superuser may act for any tenant,
by naming it, and with an open break-glass session (`tenants.break_glass`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import Model

from tenants import audit, break_glass
from tenants.audit import changes_between
from tenants.context import APP, set_person, system_scope, tenant_scope
from tenants.exceptions import Forbidden, TenantError
from tenants.models import Membership, Role, Tenant
from tenants.principals import Principal
from tenants.sql import Statement

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
    """Return the person's principal for the named tenant, or for their only one. Raises `MembershipRefused`.

    `own` are the person's memberships, if the caller has already read them.
    """
    own = memberships_of(user) if own is None else own
    for membership in own:
        if membership.tenant.slug == slug or (slug is None and len(own) == 1):
            return _as_member(user, membership)
    if slug is None:
        raise _nothing_named(user, own)
    if user.is_superuser and (tenant := _any_tenant(slug)):
        glass = next(
            (each for each in break_glass.list_open(user) if each.opened_for in (None, tenant.pk)), None
        )
        if glass is not None:
            return replace(_principal(user, tenant, Role.ADMIN), break_glass_id=glass.pk)
        raise MembershipRefused(
            f"You are not a member of the tenant {slug!r}. First open a break-glass session in the admin."
        )
    raise MembershipRefused(f"You are not a member of a tenant {slug!r}.")


def memberships_of(user: User) -> list[Membership]:
    """Return the person's memberships in active tenants, by slug. Must not run in a transaction of a tenant.

    Every page of a person reads them. Without Django's own query this takes an eighth of the processor time.
    """
    with transaction.atomic(using=APP, durable=True):
        set_person(user.pk)
        rows = _memberships().run({"user_id": user.pk}, using=APP)
    return [_membership(user, row) for row in rows]


@cache
def _memberships() -> Statement:
    columns = (
        f"{alias}.{column}"
        for alias, model in (("m", Membership), ("t", Tenant))
        for column in _columns(model)
    )
    text = f"""
        SELECT {", ".join(columns)} FROM tenants_membership m JOIN tenants_tenant t ON t.id = m.tenant_id
        WHERE m.user_id = %(user_id)s AND t.is_active ORDER BY t.slug
    """  # noqa: S608  # names of our columns
    return Statement("memberships", text)


@cache
def _columns(model: type[Model]) -> list[str]:
    return [field.attname for field in model._meta.concrete_fields]


def _membership(user: User, row: tuple[Any, ...]) -> Membership:
    names = _columns(Membership)
    membership = Membership.from_db(APP, names, row[: len(names)])
    membership.user, membership.tenant = user, Tenant.from_db(APP, _columns(Tenant), row[len(names) :])
    return membership


def _nothing_named(user: User, own: Sequence[Membership]) -> MembershipRefused:
    if own:
        slugs = ", ".join(membership.tenant.slug for membership in own)
        return TenantNotNamed(
            f"You belong to several tenants. Name one of them in the header X-Tenant: {slugs}."
        )
    if user.is_superuser:
        return TenantNotNamed(
            "You are not a member of a tenant. As a superuser, open a break-glass session, and name its tenant in the header X-Tenant."
        )
    return MembershipRefused("You are not a member of any tenant. Ask an administrator to add you.")


def _any_tenant(slug: str) -> Tenant | None:
    with system_scope():
        return Tenant.objects.filter(slug=slug, is_active=True).first()


def _as_member(user: User, membership: Membership) -> Principal:
    return _principal(user, membership.tenant, membership.acting_role, tuple(membership.human_roles))


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


# Changes of memberships: admins change roles and end memberships, and superusers add people.
#
# Each change is recorded in the tenant's audit trail, in its transaction, and takes effect with the person's next request. A tenant keeps
# an admin: the last one can neither be removed nor get a lower role, except by a superuser.


KIND = "members"


class MembershipChangeRefused(TenantError):
    """Base of the errors that refuse a change of a membership."""

    code = "membership_refused"


class MemberNotFound(MembershipChangeRefused):
    """The tenant has no such member, or the platform no such person."""

    code = "not_found"
    status = 404


def members_of(tenant_id: UUID) -> list[Membership]:
    """Return all members with their people, by name. Must run in a `tenant_scope`."""
    rows = Membership.objects.for_tenant(tenant_id).select_related("user")
    return list(rows.order_by("user__username"))


def fingerprint_of(member: Membership) -> str:
    """Return a member's roles as text, to detect changes."""
    return " ".join((str(member.role), *member.human_roles))


def change_member(
    who: Principal, membership_id: UUID, role: Role, human_roles: Sequence[str], *, seen: str
) -> Membership:
    """Change a member's roles, if their `fingerprint_of` is still `seen`.

    Raises `Forbidden`, `MemberNotFound` or `MembershipChangeRefused`.
    """
    who.require_admin()
    with tenant_scope(who.tenant_id):
        member = _lock_member(who, membership_id)
        if fingerprint_of(member) != seen:
            raise MembershipChangeRefused(
                f"{member.user} was changed since you opened the page, and is now {member.role}.",
                code="member_changed",
            )
        if role != Role.ADMIN:
            _refuse_last_admin(who, member)
        before = _values_of(member)
        member.role, member.human_roles = role, list(human_roles)
        member.save(update_fields=["role", "human_roles"])
        audit.record_action(
            who,
            "membership.changed",
            about=(KIND, member.pk),
            changes=changes_between(before, _values_of(member)),
            detail=audit.redact("", {"user": str(member.user)}),
        )
    return member


def end_membership(who: Principal, membership_id: UUID) -> str:
    """End a membership. Return the person's name. Raises `Forbidden`, `MemberNotFound` or `MembershipChangeRefused`."""
    who.require_admin()
    with tenant_scope(who.tenant_id):
        member = _lock_member(who, membership_id)
        _refuse_last_admin(who, member)
        audit.record_action(
            who,
            "membership.ended",
            about=(KIND, member.pk),
            changes=changes_between(_values_of(member), None),
        )
        name = str(member.user)
        member.delete()
    return name


def add_member(who: Principal, username: str, role: Role, human_roles: Sequence[str]) -> Membership:
    """Make a person a member. Raises `Forbidden`, `MemberNotFound` or `MembershipChangeRefused`."""
    who.require_admin()
    if not who.is_platform_admin:
        raise Forbidden(
            "Only superusers can add people, because choosing among all people reveals their names."
        )
    user = person(username)
    with tenant_scope(who.tenant_id):
        values = {"role": role, "human_roles": list(human_roles)}
        rows = Membership.objects.for_tenant(who.tenant_id)
        member, is_new = rows.get_or_create(tenant_id=who.tenant_id, user=user, defaults=values)
        if not is_new:
            raise MembershipChangeRefused(f"{username} is already a member.", code="already_exists")
        audit.record_action(
            who,
            "membership.begun",
            about=(KIND, member.pk),
            changes=changes_between(None, _values_of(member)),
        )
    return member


_SLACK_USER = re.compile(r"[TE][A-Z0-9]{1,30}/[UW][A-Z0-9]{1,30}")


def link_slack(tenant_id: UUID, username: str, slack_user: str) -> Membership:
    """Link this Slack user, whose clicks then count as the member's; empty text removes the link. Must run in a `tenant_scope`.

    Only people with a shell of the platform can do this, not admins of a tenant: one person with several names would have several votes.
    Raises `MemberNotFound`, or `MembershipChangeRefused` for an invalid id or another member's.
    """
    if slack_user and not _SLACK_USER.fullmatch(slack_user):
        raise MembershipChangeRefused(
            f"{slack_user!r} is not <workspace id>/<user id>, such as T012AB3CD/U045EF6GH.",
            code="slack_user_refused",
        )
    rows = Membership.objects.for_tenant(tenant_id)
    locked = rows.select_related("user").select_for_update(of=("self",)).filter(user__username=username)
    member: Membership = locked.first_or_raise(MemberNotFound(f"{username} is not a member."))
    if slack_user and rows.filter(slack_user=slack_user).exclude(pk=member.pk).exists():
        raise MembershipChangeRefused(
            f"{slack_user} is already linked to another member.", code="slack_user_refused"
        )
    member.slack_user = slack_user
    member.save(update_fields=["slack_user"])
    return member


def member_of_slack(tenant_id: UUID, slack_user: str) -> Principal | None:
    """Return the principal of the member with this Slack user, or None if no member is linked. Must run in a `tenant_scope`."""
    if not _SLACK_USER.fullmatch(slack_user):
        return None  # PostgreSQL accepts no NUL characters
    rows = Membership.objects.for_tenant(tenant_id).select_related("user", "tenant")
    member = rows.filter(slack_user=slack_user, user__is_active=True, tenant__is_active=True).first()
    return _as_member(member.user, member) if member else None


def first_admin(tenant_id: UUID, user: User) -> Membership:
    """Create the first member of a new tenant, for a person with a shell of the platform. Must run in the new tenant's `tenant_scope`."""
    member = Membership(tenant_id=tenant_id, user=user, role=Role.ADMIN, human_roles=[])
    member.save(force_insert=True)
    return member


def person(username: str) -> User:
    """Return a person who may sign in. Raises `MemberNotFound`."""
    user: User | None = get_user_model().objects.filter(username=username, is_active=True).first()
    if user is None:
        raise MemberNotFound(f"There is no person {username!r}.")
    return user


def _lock_member(who: Principal, membership_id: UUID) -> Membership:
    """Lock the member and all admins of the tenant, so that two admins cannot demote each other at the same time."""
    rows = Membership.objects.for_tenant(who.tenant_id).select_for_update(of=("self",)).order_by("pk")
    list(rows.filter(role=Role.ADMIN).values_list("pk"))
    named = rows.select_related("user").filter(pk=membership_id)
    member: Membership = named.first_or_raise(MemberNotFound(f"There is no member {membership_id}."))
    return member


def _refuse_last_admin(who: Principal, member: Membership) -> None:
    if who.is_platform_admin:
        return
    admins = Membership.objects.for_tenant(who.tenant_id).filter(role=Role.ADMIN, user__is_active=True)
    others = admins.exclude(pk=member.pk)
    if not others.exists():
        raise MembershipChangeRefused(
            f"{member.user} is the only admin. Make somebody else an admin first.", code="last_admin"
        )


def _values_of(member: Membership) -> dict[str, object]:
    return {"user": str(member.user), "role": str(member.role), "human_roles": member.human_roles}
