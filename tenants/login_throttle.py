"""Lock-out: whoever guesses passwords or tokens has to wait, whether what they guess at exists or not.

Every attempt takes one unit from the bucket of its account and from that of its address before anything is looked up, so attempts at
the same moment count as well; only a success gives them back. Buckets are in Redis and shared by all processes; without Redis each
process has its own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from django.conf import settings
from django.db import DatabaseError, transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from tenants import audit
from tenants.audit import recording
from tenants.audit.recording import address_of, one_line
from tenants.context import APP
from tenants.identifiers import uuid7
from tenants.limiter import Bucket, fallback

PATIENCE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Attempt:
    """Whether it may be made; if not, in how many seconds the next one may."""

    allowed: bool
    retry_after: int = 0
    kind: str = ""
    address: str = ""
    account: str = ""
    take_id: str = ""

    def succeeded(self) -> None:
        """The account's failures are forgotten. Those of the address are not, or guessing at others would be free for who has an account;
        but this was none of them."""
        fallback.refill(_of_account(self.kind, self.account))
        fallback.give_back(_of_address(self.kind, self.address), self.take_id)


def attempt(kind: str, address: str, account: str) -> Attempt:
    """Count an attempt at a kind of door as a failure, until it is said to have been a success."""
    take_id = str(uuid7())
    for bucket in (_of_address(kind, address), _of_account(kind, account)):
        said = fallback.take(bucket, take_id)
        if not said.allowed:
            return Attempt(False, max(1, math.ceil(said.retry_after)))
    return Attempt(True, 0, kind, address, account, take_id)


def _of_address(kind: str, address: str) -> Bucket:
    return _bucket(f"{kind}:address:{address or 'unknown'}", settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS)


def _of_account(kind: str, account: str) -> Bucket:
    # Names are whatever somebody typed: of any length, and not to be read in Redis.
    name = hashlib.sha256(account.strip().lower().encode("utf-8", "replace")).hexdigest()[:32]
    return _bucket(f"{kind}:account:{name}", settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT)


def _bucket(name: str, failures: int) -> Bucket:
    rate = 1.0 / settings.ORCHESTRATOR_LOGIN_FORGIVEN_SECONDS
    return Bucket(f"lockout:{name}", rate, float(failures), PATIENCE_SECONDS)


# Signing in: the doors of the admin and of the console are watched, and so is what is tried at them.


DOORS = ("/admin/login/", "/login/")
WAYS_OUT = ("/admin/logout/", "/logout/")
LOGIN = "login"


class SigningInMiddleware:
    """Answers 429 to whoever has failed too often, before the password is looked at, and writes every attempt to the audit trail.

    A name that nobody has is treated like any other: the same answers, the same counting, and Django hashes the password all the same.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method == "POST" and request.path in DOORS:
            return self._tried(request)
        if request.method == "POST" and request.path in WAYS_OUT and request.user.is_authenticated:
            leaving = audit.actor_of(request.user)
            response = self.get_response(request)
            note_sign_in("login.ended", leaving)
            return response
        return self.get_response(request)

    def _tried(self, request: HttpRequest) -> HttpResponse:
        name, address = request.POST.get("username", "")[:254], address_of(request)
        said = attempt(LOGIN, address, name)
        if not said.allowed:
            note_sign_in(
                "login.locked",
                recording.Actor("nobody", "", name),
                outcome="refused",
                retry_after=said.retry_after,
            )
            return too_many(request, said.retry_after)
        response = self.get_response(request)
        if response.status_code == 302 and request.user.is_authenticated:
            said.succeeded()
            note_sign_in("login.succeeded", audit.actor_of(request.user))
        else:
            note_sign_in("login.failed", recording.Actor("nobody", "", name), outcome="failed")
        return response


def note_sign_in(operation: str, actor: audit.Actor, outcome: str = "done", **detail: int) -> None:
    """In the chain of the platform: who signs in belongs to no tenant yet. A database that is away keeps nobody out."""
    try:
        with transaction.atomic(using=APP):
            about = ("user", one_line(actor.name))
            audit.record(operation, actor=actor, about=about, outcome=outcome, detail=detail)
    except DatabaseError:
        return


def too_many(request: HttpRequest, retry_after: int) -> HttpResponse:
    context = {"minutes": -(-retry_after // 60), "address": request.path}
    response = TemplateResponse(request, "console/locked_out.html", context, status=429)
    response["Retry-After"] = str(retry_after)
    response["Cache-Control"] = "no-store"
    return response.render()
