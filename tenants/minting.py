"""API tokens as admins of a tenant make and revoke them: each with its entry in the tenant's audit trail, in the same transaction.

A secret is in the answer that makes the token and nowhere else. Nobody gets more than they have: what all tenants share is changed with
tokens that operators make at a shell.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from tenants import audit, clock, tokens
from tenants.audit.redaction import redacted
from tenants.context import tenant_scope
from tenants.exceptions import TenantError
from tenants.models import ApiToken, Role
from tenants.principals import Principal

KIND = "tokens"
MOST_LISTED = 200


class MintingRefused(TenantError):
    """Base of why no token is made or revoked."""

    code = "minting_refused"
    status = 400


class MintingForbidden(MintingRefused):
    """Only admins of the tenant make and revoke its tokens."""

    code = "forbidden"
    status = 403


class TokenNotFound(MintingRefused):
    """The tenant has no such token."""

    code = "not_found"
    status = 404


def tokens_of(tenant_id: UUID) -> list[ApiToken]:
    """Newest first. In the caller's `tenant_scope`."""
    return list(ApiToken.objects.for_tenant(tenant_id).order_by("-created_at", "-pk")[:MOST_LISTED])


def make(
    who: Principal, name: str, role: Role, *, lasting: timedelta | None = None, scopes: Sequence[str] = ()
) -> tuple[ApiToken, str]:
    """A token and its secret, which nobody can read again; the person who makes it stands behind it.

    Raises `MintingForbidden` or `tokens.InvalidScope`.
    """
    _refuse_others(who)
    with tenant_scope(who.tenant_id):
        until = clock.now() + lasting if lasting else None
        token, secret = tokens.create(
            who.tenant_id, role, name, expires_at=until, scopes=scopes, user_id=who.user_id or who.person_id
        )
        made = {
            "name": name,
            "role": str(role),
            "prefix": token.prefix,
            "scopes": token.scopes,
            "expires_at": until,
        }
        audit.record_action(who, "token.created", about=(KIND, token.pk), detail=redacted("", made))
    return token, secret


def revoke(who: Principal, token_id: UUID) -> ApiToken:
    """End a token's power within a second. Raises `MintingForbidden` or `TokenNotFound`."""
    _refuse_others(who)
    with tenant_scope(who.tenant_id):
        token: ApiToken | None = ApiToken.objects.for_tenant(who.tenant_id).filter(pk=token_id).first()
        if token is None:
            raise TokenNotFound(f"There is no token {token_id}.")
        tokens.revoke(token)
        audit.record_action(
            who,
            "token.revoked",
            about=(KIND, token.pk),
            detail=redacted("", {"name": token.name, "prefix": token.prefix}),
        )
    return token


def _refuse_others(who: Principal) -> None:
    if not who.role.includes(Role.ADMIN):
        raise MintingForbidden(f"This needs the role admin; you act as {who.role.value}.")
