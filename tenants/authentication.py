"""How a request proves whose it is: a bearer token, or the session of a person who signed in.

Either way the outcome is a `Principal`, and the tenant is the credential's. The header `X-Tenant` only
chooses among the tenants that a signed-in person may act for anyway; no other part of a request is ever asked
for a tenant.
"""

from __future__ import annotations

from typing import Any

from rest_framework import status
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, get_authorization_header
from rest_framework.exceptions import APIException, AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from tenants import members, tokens
from tenants.principals import Principal

__all__ = ("MemberAuthentication", "Principal", "TokenAuthentication")

# Addresses are written to logs, histories and Referer headers: a secret in one is already half lost.
NAMES_OF_SECRETS = frozenset({"token", "access_token", "api_token", "api_key", "apikey", "authorization"})


class SecretInAddress(APIException):
    """The token was sent in the query string, where logs and histories keep it."""

    status_code = status.HTTP_400_BAD_REQUEST
    default_code = "token_in_query"
    default_detail = "Send the token in the header Authorization, and replace this one: addresses are logged."


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer orc_...`."""

    def authenticate(self, request: Request) -> tuple[Principal, Any] | None:
        refuse_secret_in_address(request)
        scheme, _, secret = get_authorization_header(request).decode("latin-1").strip().partition(" ")
        if scheme.lower() != "bearer":
            return None
        try:
            return tokens.principal_of(secret.strip()), None
        except tokens.TokenRefused as refusal:
            raise AuthenticationFailed(str(refusal), refusal.code) from refusal

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class MemberAuthentication(SessionAuthentication):
    """Django's session, with CSRF protection for everything that changes something."""

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


def refuse_secret_in_address(request: Request) -> None:
    for name, values in request.query_params.lists():
        if name.lower() in NAMES_OF_SECRETS or any(
            value.startswith(tokens.SECRET_PREFIX) for value in values
        ):
            raise SecretInAddress
