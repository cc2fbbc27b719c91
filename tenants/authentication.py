"""Authenticates requests by a bearer token, or by the session of a person who signed in.

Both return a `Principal`, and the credential determines the tenant. The header `X-Tenant` only
chooses among the tenants that a signed-in person may act for; no other part of a request can choose
a tenant.
"""

from __future__ import annotations

import logging
from typing import Any

from rest_framework import status
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, get_authorization_header
from rest_framework.exceptions import APIException, AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from tenants import login_throttle, members, tokens
from tenants.audit import Actor, address_of
from tenants.principals import Principal

logger = logging.getLogger(__name__)

#: Headers in which clients of other systems name their tenant.
TENANT_HEADERS = ("X-Tenant", "X-Tenant-Id", "X-Organization-Id", "X-Account-Id")

# Addresses are written to logs, histories and Referer headers, so a secret in an address may already have leaked.
NAMES_OF_SECRETS = frozenset({"token", "access_token", "api_token", "api_key", "apikey", "authorization"})


class SecretInAddress(APIException):
    """The token was sent in the query string, where logs and histories keep it."""

    status_code = status.HTTP_400_BAD_REQUEST
    default_code = "token_in_query"
    default_detail = "Send the token in the header Authorization, and replace this one: addresses are logged."


class TooManyFailures(APIException):
    """Too many wrong secrets came from this address, or begin like this one. Valid secrets still work."""

    status_code = status.HTTP_429_TOO_MANY_REQUESTS
    default_code = "too_many_failures"
    default_detail = "Too many requests from here had an invalid secret. Try again later."

    def __init__(self, retry_after: int) -> None:
        super().__init__()
        self.retry_after = retry_after


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer orc_...`."""

    def authenticate(self, request: Request) -> tuple[Principal, Any] | None:
        refuse_secret_in_address(request)
        scheme, _, secret = get_authorization_header(request).decode("latin-1").strip().partition(" ")
        if scheme.lower() != "bearer":
            return None
        try:
            principal = tokens.principal_of(secret.strip())
        except tokens.TokenRefused as refusal:
            raise refuse_secret(request, secret.strip(), str(refusal), refusal.code) from refusal
        _note_foreign_tenant(request, principal)
        return principal, None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class MemberAuthentication(SessionAuthentication):
    """Django's session, with CSRF protection for all requests that change something."""

    def authenticate(self, request: Request) -> tuple[Principal, Any] | None:
        signed_in = super().authenticate(request)
        if signed_in is None:
            return None
        return members.principal_of(signed_in[0], request.headers.get("X-Tenant")), None

    def enforce_csrf(self, request: Request) -> None:
        try:
            super().enforce_csrf(request)
        except PermissionDenied as refusal:
            raise PermissionDenied(str(refusal.detail), "csrf_failed") from refusal


def _note_foreign_tenant(request: Request, principal: Principal) -> None:
    """Log a request that names another tenant than its token's. The name has no effect, but operators should know."""
    named = {request.headers.get(name, "") for name in TENANT_HEADERS} - {""}
    if named - {principal.tenant, str(principal.tenant_id)}:
        logger.warning(
            "Request names another tenant than its token",
            extra={"action": "foreign_tenant_named", "tenant": principal.tenant, "actor": principal.actor},
        )


def refuse_secret(
    request: Request, secret: str, detail: str, code: str, *, account: str = ""
) -> APIException:
    """Return the error for an invalid secret. It is counted by address and by `account` (by default the beginning of the secret), and
    recorded in the audit trail.

    A valid secret is never locked out: 256 random bits cannot be guessed, and a lock would also stop other callers at an attacker's
    address.
    """
    beginning = secret[: tokens.SHOWN_CHARACTERS]
    attempt = login_throttle.attempt("token", address_of(request._request), account or beginning)
    if not attempt.allowed:
        return TooManyFailures(attempt.retry_after)
    login_throttle.note_sign_in("token.refused", Actor("nobody", "", beginning), outcome="failed")
    return AuthenticationFailed(detail, code)


def refuse_secret_in_address(request: Request) -> None:
    for name, values in request.query_params.lists():
        if name.lower() in NAMES_OF_SECRETS or any(
            value.startswith(tokens.SECRET_PREFIX) for value in values
        ):
            raise SecretInAddress
