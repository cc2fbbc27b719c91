"""Slows down attackers who guess passwords or tokens, for existing and unknown accounts alike, without slowing down others.

Every attempt takes one unit from each of its buckets before anything is looked up, so concurrent attempts count as
well; only a success returns them. All processes share the buckets in Redis; without Redis each process has its own.

At the login, wrong guesses from one address make that address wait, first for the account and then for all accounts. Guesses for one
account from many addresses slow down unknown browsers, to one attempt every few seconds. A browser that has signed in to an account before
sends a signed cookie and has its own buckets, so other people's guesses do not affect it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core import signing
from django.db import DatabaseError, transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.crypto import constant_time_compare

from tenants import audit, limiter
from tenants.audit import address_of, one_line
from tenants.context import APP
from tenants.identifiers import uuid7
from tenants.limiter import Bucket

PATIENCE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Attempt:
    """Whether the attempt is allowed; if not, in how many seconds the next one is."""

    allowed: bool
    retry_after: int = 0
    take_id: str = ""
    refills: tuple[Bucket, ...] = ()
    returns: tuple[Bucket, ...] = ()

    def forgive(self) -> None:
        """Reset the failures of this account, and return this attempt's unit of the address. The other failures of the address still
        count; otherwise somebody with an account could guess other accounts without limit.
        """
        for bucket in self.refills:
            limiter.refill_with_fallback(bucket)
        for bucket in self.returns:
            limiter.give_back_with_fallback(bucket, self.take_id)


def attempt(kind: str, address: str, account: str) -> Attempt:
    """Count an attempt of this kind as a failure. Call `forgive` if it succeeds."""
    of_account = _bucket(
        f"{kind}:account:{_digest(account)}", settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT
    )
    of_address = _of_address(kind, address)
    return _attempt((of_address, of_account), refills=(of_account,), returns=(of_address,))


def sign_in_attempt(address: str, account: str, device: str = "") -> Attempt:
    """Like `attempt`, for the login. `device` is the id of a browser that has signed in to this account before."""
    failures, name = settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT, _digest(account)
    if device:
        own = _bucket(f"{LOGIN}:device:{_digest(device)}:{name}", failures)
        return _attempt((own,), refills=(own,))
    here = _bucket(f"{LOGIN}:account:{name}:{network_of(address)}", failures)
    of_address, of_strangers = _of_address(LOGIN, address), _of_strangers(name)
    # The shared bucket is last, so that attempts that are refused by their own buckets take nothing from it.
    return _attempt((of_address, here, of_strangers), refills=(here,), returns=(of_address, of_strangers))


def _attempt(
    buckets: tuple[Bucket, ...], *, refills: tuple[Bucket, ...], returns: tuple[Bucket, ...] = ()
) -> Attempt:
    take_id = str(uuid7())
    for bucket in buckets:
        decision = limiter.take_with_fallback(bucket, take_id)
        if not decision.allowed:
            return Attempt(False, max(1, math.ceil(decision.retry_after)))
    return Attempt(True, 0, take_id, refills, returns)


def network_of(address: str) -> str:
    """Return the address, or for IPv6 the network of its first 64 bits, because one subscriber has all addresses in it."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))


def _of_address(kind: str, address: str) -> Bucket:
    return _bucket(f"{kind}:address:{network_of(address)}", settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS)


def _of_strangers(name: str) -> Bucket:
    """Return the bucket of guesses for one account from all addresses."""
    rate = 1.0 / settings.ORCHESTRATOR_LOGIN_STRANGERS_SECONDS
    burst = float(settings.ORCHESTRATOR_LOGIN_FAILURES_OF_STRANGERS)
    return Bucket(f"lockout:{LOGIN}:strangers:{name}", rate, burst, PATIENCE_SECONDS)


def _digest(name: str) -> str:
    # Names are user input: they may have any length, and must not be readable in Redis.
    return hashlib.sha256(name.strip().lower().encode("utf-8", "replace")).hexdigest()[:32]


def _bucket(name: str, failures: int) -> Bucket:
    rate = 1.0 / settings.ORCHESTRATOR_LOGIN_FORGIVEN_SECONDS
    return Bucket(f"lockout:{name}", rate, float(failures), PATIENCE_SECONDS)


# Browsers that have signed in before. The cookie is signed, names the account, and becomes invalid with a new password.

DEVICE_COOKIE = "orchestrator_device"
_SALT = "tenants.login_throttle.device"


def find_device(request: HttpRequest, account: str) -> str:
    """Return the browser's id for this account, or "" if it never signed in to it, too long ago, or with another password."""
    cookie = request.COOKIES.get(DEVICE_COOKIE, "")
    if not cookie or len(cookie) > 1_000:
        return ""
    try:
        device, name, password = signing.loads(
            cookie, salt=_SALT, max_age=settings.ORCHESTRATOR_LOGIN_DEVICE_SECONDS
        )
    except (signing.BadSignature, ValueError, TypeError):
        return ""
    if name != _digest(account):
        return ""
    user = get_user_model().objects.filter(username=account, is_active=True).first()
    return str(device) if user is not None and constant_time_compare(password, _of_password(user)) else ""


def remember_device(response: HttpResponse, user: Any, device: str) -> None:
    """Set the cookie that identifies the browser. An existing id is kept."""
    response.set_cookie(
        DEVICE_COOKIE,
        signing.dumps(
            [device or secrets.token_hex(16), _digest(user.get_username()), _of_password(user)], salt=_SALT
        ),
        max_age=int(settings.ORCHESTRATOR_LOGIN_DEVICE_SECONDS),
        httponly=True,
        secure=settings.SESSION_COOKIE_SECURE,
        samesite="Lax",
    )


def _of_password(user: Any) -> str:
    return str(user.get_session_auth_hash())[:16]


# The sign-in pages of the admin and of the console: failed attempts are limited, and every attempt is recorded in the audit trail.


SIGN_IN_PATHS = ("/admin/login/", "/login/")
SIGN_OUT_PATHS = ("/admin/logout/", "/logout/")
LOGIN = "login"


class SigningInMiddleware:
    """Answers 429 after too many failures, before the password is checked, and records every attempt in the audit trail.

    An unknown name is treated like any other: the same answers and the same counting, and Django hashes the password anyway.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method == "POST" and request.path in SIGN_IN_PATHS:
            return self._sign_in(request)
        if request.method == "POST" and request.path in SIGN_OUT_PATHS and request.user.is_authenticated:
            actor = audit.actor_of(request.user)
            response = self.get_response(request)
            note_sign_in("login.ended", actor)
            return response
        return self.get_response(request)

    def _sign_in(self, request: HttpRequest) -> HttpResponse:
        name, address = request.POST.get("username", "")[:254], address_of(request)
        device = find_device(request, name)
        attempt = sign_in_attempt(address, name, device)
        if not attempt.allowed:
            note_sign_in(
                "login.locked",
                audit.Actor("nobody", "", name),
                outcome="refused",
                retry_after=attempt.retry_after,
            )
            return too_many(request, attempt.retry_after)
        response = self.get_response(request)
        if response.status_code == 302 and request.user.is_authenticated:
            attempt.forgive()
            remember_device(response, request.user, device)
            note_sign_in("login.succeeded", audit.actor_of(request.user))
        else:
            note_sign_in("login.failed", audit.Actor("nobody", "", name), outcome="failed")
        return response


def note_sign_in(operation: str, actor: audit.Actor, outcome: str = "done", **detail: int) -> None:
    """Record a sign-in in the chain of the platform, because a person who signs in has no tenant yet.

    Ignores failures of the database, so that people can still sign in.
    """
    try:
        with transaction.atomic(using=APP):
            about = ("user", one_line(actor.name))
            audit.record(operation, actor=actor, about=about, outcome=outcome, detail=detail)
    except DatabaseError:
        return


def too_many(request: HttpRequest, retry_after: int) -> HttpResponse:
    context = {"seconds": retry_after, "minutes": -(-retry_after // 60), "address": request.path}
    response = TemplateResponse(request, "console/locked_out.html", context, status=429)
    response["Retry-After"] = str(retry_after)
    response["Cache-Control"] = "no-store"
    return response.render()
