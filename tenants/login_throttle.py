"""People who guess passwords or tokens have to wait, whether the account exists or not, and keep nobody else waiting.

Every attempt takes one unit from each bucket that is about it before anything is looked up, so attempts at the same moment count as
well; only a success gives them back. Buckets are in Redis and shared by all processes; without Redis each process has its own.

At the login wrong guesses from one address make that address wait, for the account first and then for all. Guesses at one account from
ever new addresses slow down who is not known there, to one attempt every few seconds. A browser that has signed in to an account before
brings a signed cookie: it has buckets of its own, so no guesses of others concern it.
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
    """Whether it may be made; if not, in how many seconds the next one may."""

    allowed: bool
    retry_after: int = 0
    take_id: str = ""
    refills: tuple[Bucket, ...] = ()
    gives_back: tuple[Bucket, ...] = ()

    def forgive(self) -> None:
        """Forget the failures of this account, and give back what this attempt took of the address. The other failures of the address
        stay: else somebody with an account could guess at others without limit.
        """
        for bucket in self.refills:
            limiter.refill_with_fallback(bucket)
        for bucket in self.gives_back:
            limiter.give_back_with_fallback(bucket, self.take_id)


def attempt(kind: str, address: str, account: str) -> Attempt:
    """Count an attempt of this kind as a failure, until `forgive` says that it succeeded."""
    of_account = _bucket(
        f"{kind}:account:{_digest(account)}", settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT
    )
    of_address = _of_address(kind, address)
    return _attempt((of_address, of_account), refills=(of_account,), gives_back=(of_address,))


def sign_in_attempt(address: str, account: str, device: str = "") -> Attempt:
    """As `attempt`, for the login. `device`: the id of a browser that has signed in to this account before."""
    failures, name = settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT, _digest(account)
    if device:
        own = _bucket(f"{LOGIN}:device:{_digest(device)}:{name}", failures)
        return _attempt((own,), refills=(own,))
    here = _bucket(f"{LOGIN}:account:{name}:{network_of(address)}", failures)
    of_address, of_strangers = _of_address(LOGIN, address), _of_strangers(name)
    # What is shared with others comes last: who is refused for what they have done themselves takes nothing from it.
    return _attempt((of_address, here, of_strangers), refills=(here,), gives_back=(of_address, of_strangers))


def _attempt(
    buckets: tuple[Bucket, ...], *, refills: tuple[Bucket, ...], gives_back: tuple[Bucket, ...] = ()
) -> Attempt:
    take_id = str(uuid7())
    for bucket in buckets:
        decision = limiter.take_with_fallback(bucket, take_id)
        if not decision.allowed:
            return Attempt(False, max(1, math.ceil(decision.retry_after)))
    return Attempt(True, 0, take_id, refills, gives_back)


def network_of(address: str) -> str:
    """The network that an address stands for: itself, or for IPv6 its first 64 bits, since a subscriber gets all addresses below them."""
    try:
        read = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(read, ipaddress.IPv4Address):
        return str(read)
    return str(read.ipv4_mapped or ipaddress.ip_network((int(read) >> 64 << 64, 64)))


def _of_address(kind: str, address: str) -> Bucket:
    return _bucket(f"{kind}:address:{network_of(address)}", settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS)


def _of_strangers(name: str) -> Bucket:
    """Guesses at one account from everywhere together."""
    rate = 1.0 / settings.ORCHESTRATOR_LOGIN_STRANGERS_SECONDS
    burst = float(settings.ORCHESTRATOR_LOGIN_FAILURES_OF_STRANGERS)
    return Bucket(f"lockout:{LOGIN}:strangers:{name}", rate, burst, PATIENCE_SECONDS)


def _digest(name: str) -> str:
    # Names are what somebody typed: they may be of any length, and must not be readable in Redis.
    return hashlib.sha256(name.strip().lower().encode("utf-8", "replace")).hexdigest()[:32]


def _bucket(name: str, failures: int) -> Bucket:
    rate = 1.0 / settings.ORCHESTRATOR_LOGIN_FORGIVEN_SECONDS
    return Bucket(f"lockout:{name}", rate, float(failures), PATIENCE_SECONDS)


# Browsers that have signed in before. What the cookie says is signed, names the account, and ends with its password.

DEVICE_COOKIE = "orchestrator_device"
_SALT = "tenants.login_throttle.device"


def find_device(request: HttpRequest, account: str) -> str:
    """The id under which the browser is known for this account; "" if it never signed in to it, too long ago, or with another password."""
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
    """Set the cookie by which the browser is known from now on. An id that it had is kept."""
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


# The pages where people sign in, of the admin and of the console: failed attempts are limited, and every attempt is audited.


SIGN_IN_PATHS = ("/admin/login/", "/login/")
SIGN_OUT_PATHS = ("/admin/logout/", "/logout/")
LOGIN = "login"


class SigningInMiddleware:
    """Answers 429 after too many failures, before the password is looked at, and writes every attempt to the audit trail.

    An unknown name is treated like any other: the same answers, the same counting, and Django hashes the password all the same.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method == "POST" and request.path in SIGN_IN_PATHS:
            return self._sign_in(request)
        if request.method == "POST" and request.path in SIGN_OUT_PATHS and request.user.is_authenticated:
            leaving = audit.actor_of(request.user)
            response = self.get_response(request)
            note_sign_in("login.ended", leaving)
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
    """In the chain of the platform, since a person who signs in belongs to no tenant yet.

    When the database cannot be written, people can still sign in.
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
