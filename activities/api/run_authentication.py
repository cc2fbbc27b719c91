"""How an agent proves which run it reports about: with the token that came with the job, and with nothing else.

The token names tenant, activity, run and fencing number. Whether the run still counts is not decided here but by what is done.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, ClassVar

from django.http import Http404
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from activities import run_tokens
from activities.run_tokens import RunToken
from tenants.authentication import refuse_secret_in_address, refused

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunCaller:
    """An agent, as far as it is known: whoever holds the token of this run."""

    token: RunToken

    is_authenticated: ClassVar[bool] = True

    @property
    def actor(self) -> str:
        return f"run:{self.token.run_id}"


class RunTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer <callback.token>`. Tokens of people and programs open nothing here."""

    def authenticate(self, request: Request) -> tuple[RunCaller, Any] | None:
        refuse_secret_in_address(request)
        scheme, _, text = get_authorization_header(request).decode("latin-1").strip().partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = run_tokens.read(text.strip())
        if token is None:
            logger.warning("Run token refused", extra={"action": "run_token_refused"})
            # Tokens of runs all begin alike, so each is counted by itself.
            raise refused(
                request,
                text.strip(),
                "This is not the token of a run.",
                "invalid_token",
                account=text.strip(),
            )
        return RunCaller(token), None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class RunPermission(BasePermission):
    """The token opens the address of its own run; every other run is not there."""

    def has_permission(self, request: Request, view: Any) -> bool:
        caller: Any = request.user
        if not isinstance(caller, RunCaller):
            return False
        if caller.token.run_id != view.kwargs["run_id"]:
            logger.warning(
                "Token of another run", extra={"action": "run_token_misused", "run": str(caller.token.run_id)}
            )
            raise Http404
        return True


class RunTokenScheme(OpenApiAuthenticationExtension):
    target_class = "activities.api.run_authentication.RunTokenAuthentication"
    name = "run_token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "`callback.token` of a job; counts for its run alone.",
        }
