"""Passkeys at the login, as a second factor that cannot be given to a page that only looks like ours (WebAuthn, by the package `webauthn`).

They are offered where `ORCHESTRATOR_PASSKEY_ORIGIN` says under which address people open the console: a passkey is bound to its host name.
The browser signs a challenge that its session keeps; a challenge is answered once, and only for some minutes.

Whatever comes from a browser is read strictly, and anything that is wrong with it means the same: it opens nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest

from tenants import clock, strict_json
from tenants.models import Passkey, SecondFactor

CHALLENGE = "passkey_challenge"  # in the session: its hexadecimal digits, and until when it is good
CHALLENGE_BYTES = 32
CHALLENGE_SECONDS = 600
ANSWER_BYTES = 16_384  # an answer with an attestation is far smaller
PASSKEYS_OF_A_PERSON = 10
NAME_LENGTH = 60
RELYING_PARTY = "Orchestrator"


def are_offered() -> bool:
    return bool(settings.ORCHESTRATOR_PASSKEY_ORIGIN)


def challenge_of(request: HttpRequest) -> bytes:
    """What the browser signs next: the one that the session has, or a new one if that is about to end."""
    kept = _kept(request)
    if kept is None or kept[1] - clock.now().timestamp() < CHALLENGE_SECONDS / 2:
        kept = (secrets.token_bytes(CHALLENGE_BYTES), clock.now().timestamp() + CHALLENGE_SECONDS)
        request.session[CHALLENGE] = [kept[0].hex(), kept[1]]
    return kept[0]


def use_challenge(request: HttpRequest) -> bytes | None:
    """The session's challenge, which it has no longer. Nothing if there was none, or one that is too old."""
    kept = _kept(request)
    request.session.pop(CHALLENGE, None)
    return kept[0] if kept is not None and clock.now().timestamp() < kept[1] else None


def _kept(request: HttpRequest) -> tuple[bytes, float] | None:
    found = request.session.get(CHALLENGE)
    return (bytes.fromhex(found[0]), found[1]) if found else None


def to_be_asked(person: Any, challenge: bytes) -> dict[str, Any]:
    """The options with which a browser asks for one of the person's passkeys."""
    import webauthn  # late: not installed where passkeys are not offered
    from webauthn.helpers import options_to_json_dict

    return options_to_json_dict(
        webauthn.generate_authentication_options(
            rp_id=_host(), challenge=challenge, allow_credentials=_described(_of(person))
        )
    )


def to_be_made(person: Any, challenge: bytes) -> dict[str, Any]:
    """The options with which a browser makes a passkey for the person, on a device that has none yet."""
    import webauthn
    from webauthn.helpers import options_to_json_dict

    return options_to_json_dict(
        webauthn.generate_registration_options(
            rp_id=_host(),
            rp_name=RELYING_PARTY,
            user_id=str(person.pk).encode(),
            user_name=person.get_username(),
            challenge=challenge,
            exclude_credentials=_described(_of(person)),
        )
    )


def add(factor: SecondFactor, name: str, answer: str, challenge: bytes) -> bool:
    """Keep the passkey that a browser has made; whether it is right, new, and not one too many. The row of `factor` is locked."""
    import webauthn
    from webauthn.helpers.exceptions import WebAuthnException

    if factor.passkeys.count() >= PASSKEYS_OF_A_PERSON:
        return False
    try:
        made = webauthn.verify_registration_response(
            credential=_read(answer),
            expected_challenge=challenge,
            expected_rp_id=_host(),
            expected_origin=settings.ORCHESTRATOR_PASSKEY_ORIGIN,
        )
    except (WebAuthnException, strict_json.StrictJSONError, ValueError):
        return False
    _, is_new = Passkey.objects.get_or_create(
        credential=made.credential_id,
        defaults={
            "factor": factor,
            "name": name[:NAME_LENGTH] or "Passkey",
            "public_key": made.credential_public_key,
            "uses": made.sign_count,
            "answered": challenge,
        },
    )
    return is_new


def opens(person: Any, answer: str, challenge: bytes) -> bool:
    """Whether one of the person's passkeys has signed the challenge, which it can do once."""
    import webauthn
    from webauthn.helpers.exceptions import WebAuthnException

    with transaction.atomic():
        try:
            given = _read(answer)
            passkey = (
                Passkey.objects.select_for_update(of=("self",))
                .filter(factor_id=person.pk, credential=webauthn.base64url_to_bytes(str(given.get("id"))))
                .first()
            )
            if passkey is None or bytes(passkey.answered) == challenge:
                return False
            shown = webauthn.verify_authentication_response(
                credential=given,
                expected_challenge=challenge,
                expected_rp_id=_host(),
                expected_origin=settings.ORCHESTRATOR_PASSKEY_ORIGIN,
                credential_public_key=bytes(passkey.public_key),
                credential_current_sign_count=passkey.uses,
            )
        except (WebAuthnException, strict_json.StrictJSONError, ValueError):
            return False
        passkey.uses, passkey.answered, passkey.used_at = shown.new_sign_count, challenge, clock.now()
        passkey.save(update_fields=["uses", "answered", "used_at"])
        return True


def _read(answer: str) -> dict[str, Any]:
    value = strict_json.loads(answer.encode(), max_bytes=ANSWER_BYTES, reject_duplicate_keys=True)
    if not isinstance(value, dict):
        raise ValueError("no answer of a browser")
    return value


def _of(person: Any) -> Iterable[Passkey]:
    return Passkey.objects.filter(factor_id=person.pk).order_by("created_at")


def _described(passkeys: Iterable[Passkey]) -> list[Any]:
    from webauthn.helpers.structs import PublicKeyCredentialDescriptor

    return [PublicKeyCredentialDescriptor(id=bytes(each.credential)) for each in passkeys]


def _host() -> str:
    return urlsplit(settings.ORCHESTRATOR_PASSKEY_ORIGIN).hostname or ""
