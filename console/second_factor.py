"""Two-factor authentication: codes of an app (TOTP, RFC 6238), passkeys, and recovery codes in case both are lost.

People who have set it up need it at each sign-in. With `ORCHESTRATOR_SECOND_FACTOR` set to `required`, people with admin rights (staff,
superusers, admins of a tenant) must set it up at their next sign-in. Until the second factor is verified the session is anonymous for every
page except this one and the sign-out.

A code works once, even if it arrives twice at the same time: the row is locked during the check and stores the newest code. The secret and
the recovery codes are sealed with the keys of `FIELD_ENCRYPTION_KEYS` and bound to their person. Wrong codes and passkeys count like wrong
passwords. Only a session that has verified a second factor may add or remove one; a password alone is not enough. For people who have lost
all factors a superuser resets them in the admin, or with `manage.py reset_second_factor`.
"""

from __future__ import annotations

import base64
import hmac
import logging
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

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
from agents.exceptions import ConfigurationError
from tenants import audit, clock, login_throttle, members, strict_json
from tenants.audit import address_of
from tenants.models import Passkey, Role, SecondFactor

logger = logging.getLogger(__name__)

# Passkeys, a second factor that resists phishing (WebAuthn, by the package `webauthn`).
#
# They are available if `ORCHESTRATOR_PASSKEY_ORIGIN` names the address of the console, because a passkey is bound to its host name. The
# browser signs a challenge from its session; a challenge can be used once, within some minutes.
#
# Input from a browser is parsed strictly, and every error has the same result: the verification fails.

CHALLENGE = "passkey_challenge"  # in the session: its hexadecimal digits, and its expiry
CHALLENGE_BYTES = 32
CHALLENGE_SECONDS = 600
ANSWER_BYTES = 16_384  # an answer with an attestation is far smaller
PASSKEYS_OF_A_PERSON = 10
NAME_LENGTH = 60
RELYING_PARTY = "Orchestrator"


def are_passkeys_offered() -> bool:
    return bool(settings.ORCHESTRATOR_PASSKEY_ORIGIN)


def challenge_of(request: HttpRequest) -> bytes:
    """Return the challenge to sign: the session's, or a new one if that expires soon."""
    challenge, ends_at = _read_challenge(request)
    now = clock.now().timestamp()
    if ends_at - now < CHALLENGE_SECONDS / 2:
        challenge, ends_at = secrets.token_bytes(CHALLENGE_BYTES), now + CHALLENGE_SECONDS
        request.session[CHALLENGE] = [challenge.hex(), ends_at]
    return challenge


def use_challenge(request: HttpRequest) -> bytes | None:
    """Remove the challenge from the session and return it; None if there was none, or it has expired."""
    challenge, ends_at = _read_challenge(request)
    request.session.pop(CHALLENGE, None)
    return challenge if clock.now().timestamp() < ends_at else None


def _read_challenge(request: HttpRequest) -> tuple[bytes, float]:
    """Return the session's challenge and its expiry in seconds since 1970, which is 0 if there is none."""
    stored = request.session.get(CHALLENGE)
    return (bytes.fromhex(stored[0]), stored[1]) if stored else (b"", 0.0)


def options_to_verify(person: Any, challenge: bytes) -> dict[str, Any]:
    """Return the browser's options for a sign-in with one of the person's passkeys."""
    import webauthn  # imported late, because the package is optional
    from webauthn.helpers import options_to_json_dict

    return options_to_json_dict(
        webauthn.generate_authentication_options(
            rp_id=_host(), challenge=challenge, allow_credentials=_passkeys_of(person)
        )
    )


def options_to_create(person: Any, challenge: bytes) -> dict[str, Any]:
    """Return the browser's options for the creation of a passkey, on a device without one of the person."""
    import webauthn
    from webauthn.helpers import options_to_json_dict

    return options_to_json_dict(
        webauthn.generate_registration_options(
            rp_id=_host(),
            rp_name=RELYING_PARTY,
            user_id=str(person.pk).encode(),
            user_name=person.get_username(),
            challenge=challenge,
            exclude_credentials=_passkeys_of(person),
        )
    )


def store_passkey(factor: SecondFactor, name: str, answer: str, challenge: bytes) -> bool:
    """Store a passkey that a browser has created. Return whether it is valid, new and within the limit. The row of `factor` is locked."""
    import webauthn
    from webauthn.helpers.exceptions import WebAuthnException

    if factor.passkeys.count() >= PASSKEYS_OF_A_PERSON:
        return False
    try:
        verified = webauthn.verify_registration_response(
            credential=_parse_answer(answer),
            expected_challenge=challenge,
            expected_rp_id=_host(),
            expected_origin=settings.ORCHESTRATOR_PASSKEY_ORIGIN,
        )
    except (WebAuthnException, strict_json.StrictJSONError, ValueError):
        return False
    _, is_new = Passkey.objects.get_or_create(
        credential=verified.credential_id,
        defaults={
            "factor": factor,
            "name": name[:NAME_LENGTH] or "Passkey",
            "public_key": verified.credential_public_key,
            "uses": verified.sign_count,
            "answered": challenge,
        },
    )
    return is_new


def verify_passkey(person: Any, answer: str, challenge: bytes) -> bool:
    """Return whether one of the person's passkeys has signed the challenge. A passkey can sign a challenge once."""
    import webauthn
    from webauthn.helpers.exceptions import WebAuthnException

    with transaction.atomic():
        try:
            credential = _parse_answer(answer)
            passkey = (
                Passkey.objects.select_for_update(of=("self",))
                .filter(
                    factor_id=person.pk, credential=webauthn.base64url_to_bytes(str(credential.get("id")))
                )
                .first()
            )
            if passkey is None or bytes(passkey.answered) == challenge:
                return False
            verified = webauthn.verify_authentication_response(
                credential=credential,
                expected_challenge=challenge,
                expected_rp_id=_host(),
                expected_origin=settings.ORCHESTRATOR_PASSKEY_ORIGIN,
                credential_public_key=bytes(passkey.public_key),
                credential_current_sign_count=passkey.uses,
            )
        except (WebAuthnException, strict_json.StrictJSONError, ValueError):
            return False
        passkey.uses, passkey.answered, passkey.used_at = verified.new_sign_count, challenge, clock.now()
        passkey.save(update_fields=["uses", "answered", "used_at"])
        return True


def _parse_answer(answer: str) -> dict[str, Any]:
    value = strict_json.loads(answer.encode(), max_bytes=ANSWER_BYTES, reject_duplicate_keys=True)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _passkeys_of(person: Any) -> list[Any]:
    from webauthn.helpers.structs import PublicKeyCredentialDescriptor

    passkeys = Passkey.objects.filter(factor_id=person.pk).order_by("created_at")
    return [PublicKeyCredentialDescriptor(id=bytes(each.credential)) for each in passkeys]


def _host() -> str:
    return urlsplit(settings.ORCHESTRATOR_PASSKEY_ORIGIN).hostname or ""


ISSUER = "Orchestrator"
STEP_SECONDS = 30
DIGITS = 6
STEPS_APART = 1  # clocks of phones may be wrong by half a minute
SECRET_BYTES = 20  # as long as the hash, as RFC 4226 advises
RECOVERY_CODES = 10
RECOVERY_CHARACTERS = 10  # of 32: 50 random bits

# In the session, sealed: the secret of an app that is not confirmed by a code yet.
SETTING_UP = "second_factor_secret"
MARK = "second_factor"  # in the session: one of these
ASKED, PASSED, FREE = "asked", "passed", "free"
KIND = "second-factor"  # the counter of wrong codes
ADDRESS = "/second-factor/"
WRONG_CODE = "This code is wrong, or was used before. Wait for the next one."
WRONG_PASSKEY = "The passkey could not be verified. Try again, or use another method."
UNREADABLE = (
    "Your app and recovery codes cannot be verified: the server does not have the key that encrypted them. "
    "Ask an administrator of the platform to restore the key, or to reset your second factor."
)


# When a second factor is required.


class SecondFactorMiddleware:
    """Makes sessions without the required second factor anonymous, and redirects their sign-in to the page that verifies it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path == ADDRESS or request.path in login_throttle.SIGN_OUT_PATHS:
            return self.get_response(request)
        person = request.user
        # Evaluated lazily, because most requests have a token and read no session.
        request.user = SimpleLazyObject(lambda: AnonymousUser() if _is_asked(request, person) else person)  # type: ignore[assignment]
        if (
            request.method == "GET"
            and request.path in login_throttle.SIGN_IN_PATHS
            and _is_asked(request, person)
        ):
            return HttpResponseRedirect(f"{ADDRESS}?{urlencode({'next': _next(request)})}")
        return self.get_response(request)


def ask_at_sign_in(sender: object, request: HttpRequest, user: Any, **more: object) -> None:
    """Receive `user_logged_in`: mark in the session whether a second factor is still required."""
    mark = ASKED if _is_due(user) else FREE
    # If the second factor is optional, only sessions that need one have a mark.
    if mark == ASKED or _is_required():
        request.session[MARK] = mark
    else:
        request.session.pop(MARK, None)


def _is_asked(request: HttpRequest, person: Any) -> bool:
    if not person.is_authenticated:
        return False
    mark = request.session.get(MARK)
    if _is_required() and (mark is None or (mark == FREE and has_admin_rights(person))):
        # The session is older than the setting, or the person got admin rights since.
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


# The factors of a person, and their verification.


def verify(
    person: Any, code: str, *, proven: bool = False, setting_up: bytes = b""
) -> tuple[bool, tuple[str, ...]]:
    """Return whether the code is valid, and new recovery codes if it confirms the first second factor. A valid code is used up.

    A code of the secret in `setting_up` is valid too, and confirms that secret, if the person has no second factor yet or has `proven` one.
    """
    typed = "".join(code.split()).replace("-", "").upper()[:64]
    if not setting_up and not is_set_up(person):
        return False, ()
    with transaction.atomic():
        factor = _lock_factor(person)
        secret, left = _open_secret(factor)
        if secret and (step := _step_of(secret, typed, after=factor.last_step)) is not None:
            factor.last_step = step
        elif used := next((each for each in left if hmac.compare_digest(each.encode(), typed.encode())), ""):
            left = tuple(each for each in left if each != used)
        elif (
            setting_up
            and _may_add(factor, proven)
            and (step := _step_of(setting_up, typed, after=-1)) is not None
        ):
            secret, factor.last_step = setting_up, step
        else:
            return False, ()
        return True, _keep_proven(factor, secret, left)


def add_passkey(
    person: Any, name: str, answer: str, challenge: bytes, *, proven: bool
) -> tuple[bool, tuple[str, ...]]:
    """Return whether the passkey was added, and new recovery codes if it is the first second factor."""
    with transaction.atomic():
        factor = _lock_factor(person)
        secret, left = _open_secret(factor)
        if not _may_add(factor, proven) or not store_passkey(factor, name, answer, challenge):
            return False, ()
        return True, _keep_proven(factor, secret, left)


def remove(person: Any, passkey: UUID | None) -> bool:
    """Remove a passkey, or the app for None. Return False if it does not exist or is the last second factor."""
    with transaction.atomic():
        factor = _lock_factor(person)
        secret, left = _open_secret(factor)
        if passkey is None:
            if not secret or not factor.passkeys.exists():
                return False
            _seal(factor, b"", left)
            factor.save()
            return True
        if not secret and not factor.passkeys.exclude(pk=passkey).exists():
            return False
        return bool(factor.passkeys.filter(pk=passkey).delete()[0])


def _lock_factor(person: Any) -> SecondFactor:
    SecondFactor.objects.get_or_create(user=person, defaults={"secret_sealed": ""})
    return SecondFactor.objects.select_for_update(of=("self",)).get(pk=person.pk)


def _may_add(factor: SecondFactor, proven: bool) -> bool:
    """Return whether a factor may be added: a password alone is enough only for the first one."""
    return proven or factor.confirmed_at is None


def _keep_proven(factor: SecondFactor, secret: bytes, left: tuple[str, ...]) -> tuple[str, ...]:
    """Store the verified factor. Return new recovery codes if it is the first one."""
    fresh: tuple[str, ...] = ()
    if factor.confirmed_at is None:
        factor.confirmed_at, left = clock.now(), (fresh := _recovery_codes())
    _seal(factor, secret, left)
    factor.save()
    return fresh


def renew_recovery_codes(person: Any) -> tuple[str, ...]:
    with transaction.atomic():
        factor = SecondFactor.objects.select_for_update(of=("self",)).get(pk=person.pk)
        fresh = _recovery_codes()
        _seal(factor, _open_secret(factor)[0], fresh)
        factor.save()
        return fresh


def code_at(secret: bytes, step: int) -> str:
    """Return the code of a time step since 1970, by RFC 6238 with SHA-1, which all apps support."""
    digest = hmac.digest(secret, step.to_bytes(8, "big"), "sha1")
    at = digest[-1] & 15
    number = int.from_bytes(digest[at : at + 4], "big") & 0x7FFFFFFF
    return f"{number % 10**DIGITS:0{DIGITS}}"


def _step_of(secret: bytes, typed: str, *, after: int) -> int | None:
    """Return the time step whose code it is, close to now and later than `after`, the newest used one."""
    now = int(clock.now().timestamp()) // STEP_SECONDS
    match = None
    for step in range(now - STEPS_APART, now + STEPS_APART + 1):
        if hmac.compare_digest(code_at(secret, step).encode(), typed.encode()) and step > after:
            match = step
    return match


def _recovery_codes() -> tuple[str, ...]:
    return tuple(
        base64.b32encode(secrets.token_bytes(7)).decode()[:RECOVERY_CHARACTERS] for _ in range(RECOVERY_CODES)
    )


def _seal(factor: SecondFactor, secret: bytes, codes: tuple[str, ...]) -> None:
    fields = {"secret": base64.b32encode(secret).decode(), "codes": " ".join(codes)}
    factor.secret_sealed = credentials.seal(fields, context=credentials.person_context(factor.pk))


def _open_secret(factor: SecondFactor) -> tuple[bytes, tuple[str, ...]]:
    """Return the secret of the app, empty if there is none, and the recovery codes."""
    if factor.confirmed_at is None:
        return b"", ()
    fields = credentials.unseal(factor.secret_sealed, context=credentials.person_context(factor.pk))
    return base64.b32decode(fields["secret"]), tuple(fields["codes"].split())


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Verifies a second factor, adds and removes factors, and creates new recovery codes."""
    person = request.user
    if not person.is_authenticated:
        return HttpResponseRedirect(f"{reverse('console:login')}?{urlencode({'next': ADDRESS})}")
    if request.method != "POST":
        return _show_page(request)
    try:
        if "begin" in request.POST or "remove" in request.POST:
            return _change_factor(request, person)
        return _attempt(request, person)
    except ConfigurationError:
        return _show_page(request, complaint=UNREADABLE)


def _change_factor(request: HttpRequest, person: Any) -> HttpResponse:
    if not _may_change(request, person):
        return _show_page(request, complaint="Verify your present second factor first.")
    if "begin" in request.POST:
        fields = {"secret": base64.b32encode(secrets.token_bytes(SECRET_BYTES)).decode()}
        request.session[SETTING_UP] = credentials.seal(fields, context=credentials.person_context(person.pk))
    elif remove(person, _passkey_named(request.POST["remove"])):
        login_throttle.note_sign_in("second_factor.removed", audit.actor_of(person))
    else:
        return _show_page(
            request,
            complaint="This is your last second factor, or it was already removed. Add another one before you remove the last.",
        )
    return HttpResponseRedirect(f"{ADDRESS}?{urlencode({'next': _next(request)})}")


def _may_change(request: HttpRequest, person: Any) -> bool:
    return _has_proven(request) or not is_set_up(person)


def _has_proven(request: HttpRequest) -> bool:
    return bool(request.session.get(MARK) == PASSED)


def _passkey_named(text: str) -> UUID | None:
    if text == "app":
        return None
    try:
        return UUID(text)
    except ValueError:
        return UUID(int=0)  # no passkey has this id


# The unconfirmed secret exists only in the session, so that another session that knows the password cannot see it.


def _being_set_up(request: HttpRequest, person: Any) -> bytes:
    sealed = request.session.get(SETTING_UP)
    if not sealed:
        return b""
    try:
        fields = credentials.unseal(sealed, context=credentials.person_context(person.pk))
    except ConfigurationError:  # its key has been removed from the key ring
        return b""
    return base64.b32decode(fields["secret"])


def _attempt(request: HttpRequest, person: Any) -> HttpResponse:
    attempt = login_throttle.attempt(KIND, address_of(request), str(person.pk))
    who = audit.actor_of(person)
    if not attempt.allowed:
        login_throttle.note_sign_in(
            "second_factor.locked", who, outcome="refused", retry_after=attempt.retry_after
        )
        return login_throttle.too_many(request, attempt.retry_after)
    right, fresh = _verify(request, person)
    if not right:
        login_throttle.note_sign_in("second_factor.failed", who, outcome="failed")
        is_passkey = "passkey" in request.POST or "new_passkey" in request.POST
        return _show_page(request, complaint=WRONG_PASSKEY if is_passkey else WRONG_CODE)
    attempt.forgive()
    request.session.pop(SETTING_UP, None)
    if "renew" in request.POST and not fresh:
        fresh = renew_recovery_codes(person)
    added = "new_passkey" in request.POST
    login_throttle.note_sign_in("second_factor.set_up" if fresh or added else "second_factor.passed", who)
    if request.session.get(MARK) == ASKED:
        request.session.cycle_key()  # a session id that was stolen before the verification becomes invalid
    request.session[MARK] = PASSED
    if fresh:
        codes = [f"{code[:5]}-{code[5:]}" for code in fresh]
        return render(request, "console/second_factor.html", {"fresh": codes, "next": _next(request)})
    return HttpResponseRedirect(ADDRESS if added else _next(request))


def _verify(request: HttpRequest, person: Any) -> tuple[bool, tuple[str, ...]]:
    sent, proven = request.POST, _has_proven(request)
    if "passkey" not in sent and "new_passkey" not in sent:
        return verify(person, sent.get("code", ""), proven=proven, setting_up=_being_set_up(request, person))
    challenge = use_challenge(request)
    if challenge is None or not are_passkeys_offered():
        return False, ()
    if "passkey" in sent:
        return verify_passkey(person, sent["passkey"], challenge), ()
    return add_passkey(person, sent.get("name", ""), sent["new_passkey"], challenge, proven=proven)


def _show_page(request: HttpRequest, *, complaint: str = "") -> HttpResponse:
    person: Any = request.user
    factor = SecondFactor.objects.filter(pk=person.pk).first() or SecondFactor(user=person)
    is_readable = True
    try:
        secret, left = _open_secret(factor)
    except ConfigurationError as error:
        facts = {"action": "second_factor_unreadable", "reason": str(error)}
        logger.error("A second factor cannot be decrypted", extra=facts)
        is_readable, secret, left = False, b"", ()
    may_change = is_readable and _may_change(request, person)
    context: dict[str, Any] = {
        "complaint": complaint or ("" if is_readable else UNREADABLE),
        "next": _next(request),
        "asked": request.session.get(MARK) == ASKED,
        "is_readable": is_readable,
        "set_up": factor.confirmed_at is not None,
        "required": _is_required(),
        "has_app": bool(secret),
        "passkeys": factor.passkeys.order_by("created_at"),
        "left": len(left),
        "may_change": may_change,
    }
    if may_change and not secret and (new := _being_set_up(request, person)):
        parameters: dict[str, str | int] = {
            "secret": base64.b32encode(new).decode(),
            "issuer": ISSUER,
            "digits": DIGITS,
            "period": STEP_SECONDS,
        }
        context["address"] = f"otpauth://totp/{ISSUER}:{quote(person.get_username())}?{urlencode(parameters)}"
        secret_as_text = base64.b32encode(new).decode()
        context["secret"] = " ".join(secret_as_text[at : at + 4] for at in range(0, len(secret_as_text), 4))
    if are_passkeys_offered():
        challenge = challenge_of(request)
        if context["passkeys"]:
            context["to_be_asked"] = options_to_verify(person, challenge)
        if may_change:
            context["to_be_made"] = options_to_create(person, challenge)
    return render(request, "console/second_factor.html", context, status=400 if complaint else 200)


def _next(request: HttpRequest) -> str:
    """Return the address to continue with: on this site, and not a sign-in or sign-out page."""
    address = request.POST.get("next") or request.GET.get("next") or ""
    ours = url_has_allowed_host_and_scheme(address, allowed_hosts=None)
    is_sign_in = address.startswith((ADDRESS, *login_throttle.SIGN_IN_PATHS, *login_throttle.SIGN_OUT_PATHS))
    return address if ours and not is_sign_in else resolve_url("console:home")
