"""API tokens: creates, looks up and revokes the secrets with which callers act for a tenant.

The secret is only in the answer to its creation. The database holds its SHA-256: 256 random bits cannot be guessed, so a slow hash would
not add protection. Each process caches a token for a second, so that frequent use costs no queries; a revocation takes effect in every
process within that second.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Q
from django.urls import URLResolver, get_resolver

from tenants import audit, caches, clock
from tenants.audit import redact
from tenants.context import APP, set_tenant, tenant_scope
from tenants.exceptions import NotFound, TenantError
from tenants.models import ApiToken, Membership, Role, Tenant
from tenants.principals import Principal

SECRET_PREFIX = "orc_"  # noqa: S105 - lets people and scanners recognise a leaked token
SECRET_SHAPE = re.compile(r"orc_[A-Za-z0-9_-]{43}")
SHOWN_CHARACTERS = 12  # enough to tell tokens apart in a list, 48 bits of them random, 208 stay secret
SCOPE_SHAPE = re.compile(r"([a-z0-9][a-z0-9-]*:)?(read|write)|mailboxes:(read|write):[^\s\x00]{1,200}")
LONGEST_DAYS = 3650  # of a token that expires: ten years, because a date too far in the future would overflow
TOUCH_INTERVAL = timedelta(minutes=1)  # `last_used_at` is for people, so not every request writes it


class TokenRefused(TenantError):
    """The token is not valid: it is unknown, expired or revoked, its tenant is inactive, or its person is no longer a member."""

    code = "invalid_token"
    status = 401


class InvalidScope(TenantError):
    """A scope is written as `read`, `write`, `<resource>:read` or `<resource>:write`, or for one mailbox `mailboxes:write:<key>`.

    The API must have the resource, because the scope would allow nothing otherwise.
    """

    code = "invalid_scope"
    status = 400


def create(
    tenant: Tenant | UUID,
    role: Role | str,
    name: str,
    *,
    expires_at: datetime | None = None,
    scopes: Sequence[str] = (),
    platform: bool = False,
    user_id: int | None = None,
) -> tuple[ApiToken, str]:
    """Create a token and return it with its secret, which nobody can read again.

    `user_id` is the person to whom it belongs: what it submits and decides counts as theirs while they are a member of the tenant.
    """
    if errors := list(_errors_of_scopes(scopes)):
        raise InvalidScope("; ".join(errors))
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    tenant_id = tenant.pk if isinstance(tenant, Tenant) else tenant
    with tenant_scope(tenant_id):
        token = ApiToken.objects.create(
            tenant_id=tenant_id,
            name=name,
            role=Role(role),
            prefix=secret[:SHOWN_CHARACTERS],
            secret_hash=hash_of(secret),
            scopes=list(scopes),
            expires_at=expires_at,
            platform=platform,
            user_id=user_id,
        )
    return token, secret


def _errors_of_scopes(scopes: Sequence[str]) -> Iterator[str]:
    for scope in scopes:
        resource, names_resource, _ = scope.partition(":")
        if not SCOPE_SHAPE.fullmatch(scope):
            yield (
                f"{scope!r} is not a scope; use read, write, <resource>:read, <resource>:write or mailboxes:write:<key>"
            )
        elif names_resource and resource not in (known := set(_resources(get_resolver()))):
            yield f"{scope!r} names no resource; the resources are {', '.join(sorted(known))}"


def _resources(resolver: URLResolver) -> Iterator[str]:
    """Yield the resources of the API that scopes can name, as its views declare them."""
    for pattern in resolver.url_patterns:
        if isinstance(pattern, URLResolver):
            yield from _resources(pattern)
        elif resource := getattr(getattr(pattern.callback, "cls", None), "scope", None):
            yield resource


def revoke(token: ApiToken) -> bool:
    """Revoke a token, in all processes within a second. Return whether it was valid until now: the time of the first revocation stays."""
    with tenant_scope(token.tenant_id):
        rows = ApiToken.objects.for_tenant(token.tenant_id).filter(pk=token.pk, revoked_at=None)
        is_first = bool(rows.update(revoked_at=clock.now()))
        transaction.on_commit(lambda: _known.forget(token.secret_hash), using=APP)
    return is_first


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def principal_of(secret: str) -> Principal:
    """Return the caller with this secret. Raises `TokenRefused`. Must not run in a transaction, because there is no tenant yet."""
    if not SECRET_SHAPE.fullmatch(secret):
        raise TokenRefused("The token is not valid.")
    digest = hash_of(secret)
    principal, expires_at = _known.recall(digest) or _known.keep(digest, _look_up(digest))
    if expires_at is not None and expires_at <= clock.now():
        raise TokenRefused(f"The token expired at {expires_at:%Y-%m-%dT%H:%M:%SZ}.")
    return principal


def _look_up(digest: str) -> tuple[Principal, datetime | None]:
    with transaction.atomic(using=APP, durable=True):
        with connections[APP].cursor() as cursor:
            cursor.execute("SELECT set_config('app.token_hash', %s, true)", [digest])
        token = ApiToken.objects.using(APP).select_related("tenant").filter(secret_hash=digest).first()
        if token is None:
            raise TokenRefused("The token is not valid.")
        if token.revoked_at is not None:
            raise TokenRefused("The token was revoked.")
        if not token.tenant.is_active:
            raise TokenRefused("The token's tenant is not active.")
        member = membership_of(token)
        role = role_of(token, member)
        if role is None:
            raise TokenRefused("The token's person is no longer a member of the tenant.")
        _touch(token)
    return _principal(token, role, member), token.expires_at


def role_of(token: ApiToken, member: Membership | None) -> Role | None:
    """Return the role as which a token acts, which is never more than that of its person. None if they are no longer a member."""
    role = Role(token.role)
    if token.user_id is None:
        return role
    if member is None:
        return None
    return role if member.acting_role.includes(role) else member.acting_role


def membership_of(token: ApiToken) -> Membership | None:
    """Return the membership of the person to whom a token belongs. None if it belongs to nobody, or they are no longer a member."""
    if token.user_id is None:
        return None
    set_tenant(token.tenant_id)
    rows = Membership.objects.using(APP).for_tenant(token.tenant_id).select_related("user")
    return rows.filter(user_id=token.user_id, user__is_active=True).first()


def _touch(token: ApiToken) -> None:
    now = clock.now()
    if token.last_used_at is not None and token.last_used_at > now - TOUCH_INTERVAL:
        return
    set_tenant(token.tenant_id)
    due = Q(last_used_at=None) | Q(last_used_at__lte=now - TOUCH_INTERVAL)
    ApiToken.objects.using(APP).for_tenant(token.tenant_id).filter(due, pk=token.pk).update(last_used_at=now)


def _principal(token: ApiToken, role: Role, member: Membership | None) -> Principal:
    return Principal(
        tenant_id=token.tenant_id,
        tenant=token.tenant.slug,
        role=role,
        actor=f"token:{token.name}",
        human_roles=tuple(member.human_roles) if member else (),
        person_id=member.user_id if member else None,
        scopes=tuple(token.scopes),
        token_id=token.pk,
        is_platform_admin=token.platform,
    )


_known: caches.TtlCache[tuple[Principal, datetime | None]] = caches.TtlCache(seconds=1.0, entries=10_000)


# How admins of a tenant create and revoke tokens: each change has an entry in the tenant's audit trail, in the same transaction.
#
# Nobody can create a token that may do more than they may. To change what all tenants share takes a token that an operator created at a
# shell.


KIND = "tokens"
MOST_LISTED = 200


def tokens_of(tenant_id: UUID) -> list[ApiToken]:
    """Newest first. In the caller's `tenant_scope`."""
    return list(ApiToken.objects.for_tenant(tenant_id).order_by("-created_at", "-pk")[:MOST_LISTED])


def mint(
    who: Principal, name: str, role: Role, *, lasting: timedelta | None = None, scopes: Sequence[str] = ()
) -> tuple[ApiToken, str]:
    """Create a token that belongs to the caller, if they are a member; returns it with its secret, which nobody can read again.

    Raises `Forbidden` or `tokens.InvalidScope`.
    """
    who.require_admin()
    with tenant_scope(who.tenant_id):
        until = clock.now() + lasting if lasting else None
        person = None if who.break_glass_id else who.user_id or who.person_id
        token, secret = create(who.tenant_id, role, name, expires_at=until, scopes=scopes, user_id=person)
        values = {
            "name": name,
            "role": str(role),
            "prefix": token.prefix,
            "scopes": token.scopes,
            "expires_at": until,
        }
        audit.record_action(who, "token.created", about=(KIND, token.pk), detail=redact("", values))
    return token, secret


def revoke_by_admin(who: Principal, token_id: UUID) -> ApiToken:
    """Revoke a token, within a second. Repetitions change nothing. Raises `Forbidden` or `NotFound`."""
    who.require_admin()
    with tenant_scope(who.tenant_id):
        own = ApiToken.objects.for_tenant(who.tenant_id)
        token: ApiToken = own.get_or_raise(NotFound, "token", token_id)
        if revoke(token):
            audit.record_action(
                who,
                "token.revoked",
                about=(KIND, token.pk),
                detail=redact("", {"name": token.name, "prefix": token.prefix}),
            )
    return token
