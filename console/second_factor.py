"""The second factor at the login: one-time codes of an app (TOTP, RFC 6238), and recovery codes for the day on which the app is lost.

Who has set one up is asked for it. People with admin rights (staff, superusers, admins of a tenant) must have one where
`ORCHESTRATOR_SECOND_FACTOR` is `required`: they set it up at their next sign-in. Until the code was right a session is nobody's: every
address but this page and the way out answers it as it answers people who have not signed in.

A code is taken once, also when it comes twice at the same moment: the row is locked while it is looked at, and remembers the newest code.
The secret and the recovery codes are sealed with the keys of `FIELD_ENCRYPTION_KEYS` and bound to their person. Wrong codes count like
wrong passwords. Who lost both is helped by a superuser in the admin, or by `manage.py reset_second_factor`.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render, resolve_url
from django.urls import reverse
from django.utils.functional import SimpleLazyObject
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from agents import credentials
from tenants import audit, clock, login_throttle, members
from tenants.audit.recording import address_of
from tenants.models import Role, SecondFactor

ISSUER = "Orchestrator"
STEP_SECONDS = 30
DIGITS = 6
STEPS_APART = 1  # clocks of people's phones go wrong by half a minute
SECRET_BYTES = 20  # as long as the hash, as RFC 4226 advises
RECOVERY_CODES = 10
RECOVERY_CHARACTERS = 10  # of 32: 50 random bits

MARK = "second_factor"  # in the session: one of these
ASKED, PASSED, FREE = "asked", "passed", "free"
KIND = "second-factor"  # under which wrong codes are counted
ADDRESS = "/second-factor/"


# Who is asked.


class SecondFactorMiddleware:
    """A session whose code is still to come belongs to nobody; its way to a login leads to the page that asks for the code."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path == ADDRESS or request.path in login_throttle.WAYS_OUT:
            return self.get_response(request)
        person = request.user
        # Found out when somebody asks who it is: most requests bring a token, and read no session.
        request.user = SimpleLazyObject(lambda: AnonymousUser() if _is_asked(request, person) else person)  # type: ignore[assignment]
        if request.method == "GET" and request.path in login_throttle.DOORS and _is_asked(request, person):
            return HttpResponseRedirect(f"{ADDRESS}?{urlencode({'next': _next(request)})}")
        return self.get_response(request)


def ask_at_sign_in(sender: object, request: HttpRequest, user: Any, **more: object) -> None:
    """Receives `user_logged_in`: the session begins with whether a code is still to come."""
    mark = ASKED if _is_due(user) else FREE
    # Where nobody must, a session says nothing unless somebody is asked, as it did before.
    if mark == ASKED or _is_required():
        request.session[MARK] = mark
    else:
        request.session.pop(MARK, None)


def _is_asked(request: HttpRequest, person: Any) -> bool:
    if not person.is_authenticated:
        return False
    mark = request.session.get(MARK)
    if _is_required() and (mark is None or (mark == FREE and has_admin_rights(person))):
        # A session from before, or rights that came later.
        mark = request.session[MARK] = ASKED if _is_due(person) else FREE
    return bool(mark == ASKED)


def _is_due(person: Any) -> bool:
    return (_is_required() and has_admin_rights(person)) or is_set_up(person)


def _is_required() -> bool:
    return bool(settings.ORCHESTRATOR_SECOND_FACTOR != "optional")


def has_admin_rights(person: Any) -> bool:
    if person.is_staff or person.is_superuser:
        return True
    return any(each.role == Role.ADMIN for each in members.memberships_of(person))


def is_set_up(person: Any) -> bool:
    return SecondFactor.objects.filter(pk=person.pk, confirmed_at__isnull=False).exists()


# What a person has, and what opens.


def begin(person: Any) -> None:
    """Make a secret for a person who has none yet, or has never used it."""
    with transaction.atomic():
        factor, _ = SecondFactor.objects.get_or_create(user=person, defaults={"secret_sealed": ""})
        factor = SecondFactor.objects.select_for_update(of=("self",)).get(pk=factor.pk)
        if factor.confirmed_at is None and not factor.secret_sealed:
            _seal(factor, secrets.token_bytes(SECRET_BYTES), ())
            factor.save()


def verify(person: Any, code: str) -> tuple[bool, tuple[str, ...]]:
    """Whether the code opens, which uses it up; and the recovery codes that the first right code brings."""
    typed = "".join(code.split()).replace("-", "").upper()[:64]
    with transaction.atomic():
        factor = SecondFactor.objects.select_for_update(of=("self",)).filter(pk=person.pk).first()
        if factor is None or not factor.secret_sealed or not typed:
            return False, ()
        secret, left = _opened(factor)
        step = _step_of(secret, typed, after=factor.last_step)
        if step is not None:
            factor.last_step = step
        elif factor.confirmed_at is not None and (found := _found(typed, left)):
            left = tuple(each for each in left if each != found)
        else:
            return False, ()
        fresh: tuple[str, ...] = ()
        if factor.confirmed_at is None:
            factor.confirmed_at, left = clock.now(), (fresh := _recovery_codes())
        _seal(factor, secret, left)
        factor.save()
        return True, fresh


def renew_recovery_codes(person: Any) -> tuple[str, ...]:
    """Other recovery codes; those from before open nothing any more."""
    with transaction.atomic():
        factor = SecondFactor.objects.select_for_update(of=("self",)).get(pk=person.pk)
        fresh = _recovery_codes()
        _seal(factor, _opened(factor)[0], fresh)
        factor.save()
        return fresh


def code_at(secret: bytes, step: int) -> str:
    """The code of a moment, counted in steps since 1970, by RFC 6238 with SHA-1, which is what apps know."""
    digest = hmac.digest(secret, step.to_bytes(8, "big"), "sha1")
    at = digest[-1] & 15
    number = int.from_bytes(digest[at : at + 4], "big") & 0x7FFFFFFF
    return f"{number % 10**DIGITS:0{DIGITS}}"


def _address_for_apps(secret: bytes, name: str) -> str:
    told: dict[str, str | int] = {
        "secret": base64.b32encode(secret).decode(),
        "issuer": ISSUER,
        "digits": DIGITS,
        "period": STEP_SECONDS,
    }
    return f"otpauth://totp/{ISSUER}:{quote(name)}?{urlencode(told)}"


def _step_of(secret: bytes, typed: str, *, after: int) -> int | None:
    """The moment whose code it is, near to now and later than the newest that was taken."""
    now = int(clock.now().timestamp()) // STEP_SECONDS
    found = None
    for step in range(now - STEPS_APART, now + STEPS_APART + 1):
        if hmac.compare_digest(code_at(secret, step).encode(), typed.encode()) and step > after:
            found = step
    return found


def _found(typed: str, codes: tuple[str, ...]) -> str:
    return next((each for each in codes if hmac.compare_digest(each.encode(), typed.encode())), "")


def _recovery_codes() -> tuple[str, ...]:
    return tuple(
        base64.b32encode(secrets.token_bytes(7)).decode()[:RECOVERY_CHARACTERS] for _ in range(RECOVERY_CODES)
    )


def _seal(factor: SecondFactor, secret: bytes, codes: tuple[str, ...]) -> None:
    holds = {"secret": base64.b32encode(secret).decode(), "codes": " ".join(codes)}
    factor.secret_sealed = credentials.seal(holds, context=credentials.person_context(factor.pk))


def _opened(factor: SecondFactor) -> tuple[bytes, tuple[str, ...]]:
    holds = credentials.unseal(factor.secret_sealed, context=credentials.person_context(factor.pk))
    return base64.b32decode(holds["secret"]), tuple(holds["codes"].split())


# The page.


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Asks for the code, sets the second factor up, and makes new recovery codes."""
    person = request.user
    if not person.is_authenticated:
        return HttpResponseRedirect(f"{reverse('console:login')}?{urlencode({'next': ADDRESS})}")
    if request.method != "POST":
        return _shown(request)
    if "begin" in request.POST:
        begin(person)
        return HttpResponseRedirect(f"{ADDRESS}?{urlencode({'next': _next(request)})}")
    return _tried(request, person)


def _tried(request: HttpRequest, person: Any) -> HttpResponse:
    said = login_throttle.attempt(KIND, address_of(request), str(person.pk))
    who = audit.actor_of(person)
    if not said.allowed:
        login_throttle.note_sign_in(
            "second_factor.locked", who, outcome="refused", retry_after=said.retry_after
        )
        return login_throttle.too_many(request, said.retry_after)
    right, fresh = verify(person, request.POST.get("code", ""))
    if not right:
        login_throttle.note_sign_in("second_factor.failed", who, outcome="failed")
        return _shown(request, wrong=True)
    said.succeeded()
    if "renew" in request.POST and not fresh:
        fresh = renew_recovery_codes(person)
    login_throttle.note_sign_in("second_factor.set_up" if fresh else "second_factor.passed", who)
    if request.session.get(MARK) == ASKED:
        request.session.cycle_key()  # whoever knew the session before the code knows none after it
    request.session[MARK] = PASSED
    if fresh:
        shown = [f"{code[:5]}-{code[5:]}" for code in fresh]
        return render(request, "console/second_factor.html", {"fresh": shown, "next": _next(request)})
    return HttpResponseRedirect(_next(request))


def _shown(request: HttpRequest, *, wrong: bool = False) -> HttpResponse:
    person: Any = request.user
    factor = SecondFactor.objects.filter(pk=person.pk).first()
    context: dict[str, Any] = {
        "wrong": wrong,
        "next": _next(request),
        "asked": request.session.get(MARK) == ASKED,
        "set_up": factor is not None and factor.confirmed_at is not None,
        "required": _is_required(),
    }
    if factor is not None and factor.secret_sealed:
        secret, left = _opened(factor)
        context["left"] = len(left)
        if factor.confirmed_at is None:
            context["address"] = _address_for_apps(secret, person.get_username())
            context["secret"] = " ".join(_in_fours(base64.b32encode(secret).decode()))
    return render(request, "console/second_factor.html", context, status=400 if wrong else 200)


def _in_fours(text: str) -> list[str]:
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def _next(request: HttpRequest) -> str:
    """Where the person was going: a page of ours, never one that asks who they are."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    ours = url_has_allowed_host_and_scheme(wanted, allowed_hosts=None)
    asking = wanted.startswith((ADDRESS, *login_throttle.DOORS, *login_throttle.WAYS_OUT))
    return wanted if ours and not asking else resolve_url("console:home")
