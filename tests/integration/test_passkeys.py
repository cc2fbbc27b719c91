"""Passkeys as second factors: valid for our address only, and neither added nor removed by a password alone."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connections
from django.test import Client

from console import second_factor
from tenants import clock
from tenants.context import system_scope
from tenants.models import Passkey, SecondFactor
from tenants.models.audit import AuditEntry
from tests import pages
from tests.authenticator import Authenticator, text
from tests.integration.test_second_factor import PAGE, code, set_up, sign_in

ORIGIN = "https://console.example"
PASSWORD = "a long enough password"


@pytest.fixture(autouse=True)
def _passkeys_enabled(settings: Any) -> None:
    settings.ORCHESTRATOR_SECOND_FACTOR = "required"
    settings.ORCHESTRATOR_PASSKEY_ORIGIN = ORIGIN


@pytest.fixture
def root(database: None) -> User:
    return User.objects.create_superuser("root", password=PASSWORD)


@pytest.fixture
def device() -> Authenticator:
    return Authenticator(ORIGIN)


def options(client: Client, name: str) -> dict[str, Any]:
    """The options that the page passes to the browser."""
    page = client.get(PAGE).content.decode()
    match = re.search(rf'<script id="{name}" type="application/json">(.*?)</script>', page)
    assert match, page
    values: dict[str, Any] = json.loads(match[1])
    return values


def add(client: Client, device: Authenticator, name: str = "Laptop") -> Any:
    return client.post(
        PAGE, {"new_passkey": device.create_passkey(options(client, "to-be-made")), "name": name}
    )


def use(client: Client, device: Authenticator, **wrong: bytes) -> Any:
    return client.post(PAGE, {"passkey": device.sign(options(client, "to-be-asked"), **wrong)})


def is_admitted(client: Client) -> bool:
    return client.get("/admin/auth/user/").status_code == 200


def test_a_passkey_can_be_the_only_second_factor_and_is_required_at_each_sign_in(
    root: User, device: Authenticator
) -> None:
    first = sign_in(root)
    set_up_answer = add(first, device)
    assert "Save these recovery codes" in set_up_answer.content.decode()
    assert is_admitted(first)

    later = sign_in(root)
    assert not is_admitted(later)
    session = later.cookies["sessionid"].value
    assert use(later, device).status_code == 302

    assert is_admitted(later)
    assert later.cookies["sessionid"].value != session
    with system_scope():
        operations = list(AuditEntry.objects.filter(tenant=None).values_list("operation", flat=True))
    assert {"second_factor.set_up", "second_factor.passed"} <= set(operations)


def test_recovery_codes_work_for_a_person_with_only_a_passkey(root: User, device: Authenticator) -> None:
    codes = re.findall(r"[A-Z2-7]{5}-[A-Z2-7]{5}", add(sign_in(root), device).content.decode())
    client = sign_in(root)

    assert client.post(PAGE, {"code": codes[0]}).status_code == 302

    assert is_admitted(client)
    assert sign_in(root).post(PAGE, {"code": codes[0]}).status_code == 400


def test_a_passkey_works_while_the_key_of_the_recovery_codes_is_missing(
    root: User, device: Authenticator, settings: Any
) -> None:
    add(sign_in(root), device)
    client = sign_in(root)
    settings.FIELD_ENCRYPTION_KEYS = ["other:" + "0" * 64]

    assert use(client, device).status_code == 302

    assert is_admitted(client)
    page = client.get(PAGE).content.decode()
    assert "the server does not have the key" in page
    assert "Remove Laptop" not in page, "nothing can be changed"
    assert client.post(PAGE, {"remove": "app"}).status_code == 400


def test_a_signature_for_another_site_is_refused(root: User, device: Authenticator) -> None:
    add(sign_in(root), device)
    client = sign_in(root)

    device.origin = "https://console.example.evil"
    assert use(client, device).status_code == 400
    device.origin, device.host = ORIGIN, "console.example.evil"
    assert use(client, device).status_code == 400
    device.host = ""
    assert use(client, device, signature=secrets.token_bytes(70)).status_code == 400
    assert not is_admitted(client)

    assert use(client, device).status_code == 302


def test_an_answer_is_valid_once_in_its_own_session_and_in_time(root: User, device: Authenticator) -> None:
    add(sign_in(root), device)
    one, other = sign_in(root), sign_in(root)
    answer = device.sign(options(one, "to-be-asked"))
    options(other, "to-be-asked")

    assert other.post(PAGE, {"passkey": answer}).status_code == 400, "another session's challenge"
    assert one.post(PAGE, {"passkey": answer}).status_code == 302
    assert second_factor.CHALLENGE not in one.session, "the challenge is removed"
    assert one.post(PAGE, {"passkey": answer}).status_code == 400

    late = sign_in(root)
    answer = device.sign(options(late, "to-be-asked"))
    session = late.session
    session[second_factor.CHALLENGE] = [session[second_factor.CHALLENGE][0], clock.now().timestamp() - 1]
    session.save()
    assert late.post(PAGE, {"passkey": answer}).status_code == 400
    assert not is_admitted(late)


@pytest.mark.parametrize("counts", [True, False], ids=["it counts its uses", "it does not"])
def test_an_answer_that_is_sent_several_times_at_once_is_accepted_once(
    counts: bool, root: User, device: Authenticator
) -> None:
    device.counts = counts
    add(sign_in(root), device)
    challenge = secrets.token_bytes(32)
    answer = device.sign(second_factor.options_to_verify(root, challenge))
    barrier = Barrier(4)

    def verify(_: int) -> bool:
        barrier.wait()
        try:
            return second_factor.verify_passkey(root, answer, challenge)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(verify, range(4))) == [False, False, False, True]


def test_a_cloned_device_with_a_lower_counter_is_refused(root: User, device: Authenticator) -> None:
    add(sign_in(root), device)
    copy = Authenticator(ORIGIN, credential=device.credential, key=device.key, uses=device.uses)
    for _ in range(3):
        assert use(sign_in(root), device).status_code == 302

    assert use(sign_in(root), copy).status_code == 400


def test_a_passkey_is_valid_for_its_owner_only(root: User, device: Authenticator) -> None:
    other = User.objects.create_superuser("other", password=PASSWORD)
    add(sign_in(root), device)
    set_up(sign_in(other))
    theirs = Authenticator(ORIGIN)
    client = sign_in(other)

    options_of_root = options(sign_in(root), "to-be-asked")
    client.get(PAGE)
    request_options = {**options_of_root, "challenge": _challenge(client)}

    assert client.post(PAGE, {"passkey": device.sign(request_options)}).status_code == 400
    client.get(PAGE)
    request_options = {**options_of_root, "challenge": _challenge(client)}
    assert client.post(PAGE, {"passkey": theirs.sign(request_options)}).status_code == 400
    assert not is_admitted(client)


def _challenge(client: Client) -> str:
    return text(bytes.fromhex(client.session[second_factor.CHALLENGE][0]))


def test_a_registered_passkey_cannot_be_added_again(root: User, device: Authenticator) -> None:
    other = User.objects.create_superuser("other", password=PASSWORD)
    mine = sign_in(root)
    add(mine, device)

    assert add(mine, device).status_code == 400
    assert add(sign_in(other), device).status_code == 400
    assert Passkey.objects.get().factor_id == root.pk


@pytest.mark.parametrize("required", ["required", "optional"])
def test_a_password_alone_can_neither_add_nor_remove_passkeys(
    required: str, root: User, device: Authenticator, settings: Any
) -> None:
    settings.ORCHESTRATOR_SECOND_FACTOR = required
    before = sign_in(root)  # while a second factor is optional, this session needs none
    owner = sign_in(root)
    add(owner, device)
    add(owner, Authenticator(ORIGIN), "Key ring")
    key = Passkey.objects.get(name="Laptop")

    for thief in (before, sign_in(root)):
        thief.get(PAGE)
        request_options = {"rp": {"id": urlsplit(ORIGIN).hostname}, "challenge": _challenge(thief)}
        attestation = Authenticator(ORIGIN).create_passkey(request_options)
        assert thief.post(PAGE, {"new_passkey": attestation, "name": "Mine"}).status_code == 400
        assert thief.post(PAGE, {"remove": str(key.pk)}).status_code == 400
        assert thief.post(PAGE, {"begin": "1"}).status_code == 400
        assert "to-be-made" not in thief.get(PAGE).content.decode()

    assert Passkey.objects.count() == 2


def test_second_factors_can_be_removed_except_the_last(root: User, device: Authenticator) -> None:
    client = sign_in(root)
    secret, _ = set_up(client)
    assert client.post(PAGE, {"remove": "app"}).status_code == 400, "it is the only one"
    assert client.post(PAGE, {"remove": "nonsense"}).status_code == 400
    add(client, device)

    assert client.post(PAGE, {"remove": "app"}).status_code == 302
    assert sign_in(root).post(PAGE, {"code": code(secret, later=1)}).status_code == 400
    assert client.post(PAGE, {"remove": str(Passkey.objects.get().pk)}).status_code == 400, (
        "it is the only one"
    )
    assert use(sign_in(root), device).status_code == 302

    set_up_again = client.post(PAGE, {"begin": "1"})
    assert set_up_again.status_code == 302
    assert "<code>" in client.get(PAGE).content.decode()
    second = Authenticator(ORIGIN)
    add(client, second)
    assert client.post(PAGE, {"remove": str(Passkey.objects.earliest("created_at").pk)}).status_code == 302
    assert use(sign_in(root), device).status_code == 400
    assert use(sign_in(root), second).status_code == 302


@pytest.mark.parametrize(
    "answer",
    [
        "", "{", "[]", "null", '{"id": 1}', '{"id": "a", "id": "b"}',
        '{"id": "AAAA", "rawId": "AAAA", "type": "public-key", "response": {}}', "x" * 100_000,
        '{"id": "' + "A" * 5000 + '"}', '{"id": "\\u0000"}', "[" * 5000,
    ],
    ids=["empty", "cut", "list", "null", "number", "twice", "hollow", "huge", "long", "nul", "deep"],
)  # fmt: skip
def test_malformed_answers_are_refused(answer: str, root: User, device: Authenticator) -> None:
    add(sign_in(root), device)
    client, mine = sign_in(root), sign_in(User.objects.create_superuser("new", password=PASSWORD))
    client.get(PAGE)
    mine.get(PAGE)

    assert client.post(PAGE, {"passkey": answer}).status_code == 400
    assert mine.post(PAGE, {"new_passkey": answer, "name": "x"}).status_code == 400
    assert not is_admitted(client)


def test_an_answer_with_any_changed_byte_is_refused_without_an_error(
    root: User, device: Authenticator
) -> None:
    factor = SecondFactor.objects.create(user=root, secret_sealed="")
    challenge = secrets.token_bytes(32)
    attestation = json.loads(device.create_passkey(second_factor.options_to_create(root, challenge)))
    for changed in _changed(attestation, "attestationObject"):
        # Some changes only make another passkey, because model, counter, name and key are not signed.
        second_factor.store_passkey(factor, "x", changed, challenge)
    Passkey.objects.all().delete()
    assert second_factor.store_passkey(factor, "Laptop", json.dumps(attestation), challenge)

    challenge = secrets.token_bytes(32)
    signed = json.loads(device.sign(second_factor.options_to_verify(root, challenge)))
    for part in ("authenticatorData", "signature", "clientDataJSON"):
        for changed in _changed(signed, part):
            assert not second_factor.verify_passkey(root, changed, challenge)
    assert second_factor.verify_passkey(root, json.dumps(signed), challenge)


def _changed(answer: dict[str, Any], part: str) -> Iterator[str]:
    right = _bytes(answer["response"][part])
    for at, byte in enumerate(right):
        broken = right[:at] + bytes([byte ^ 0xFF]) + right[at + 1 :]
        yield json.dumps({**answer, "response": {**answer["response"], part: text(broken)}})


def _bytes(coded: str) -> bytes:
    return base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4))


def test_wrong_passkeys_lock_the_account_like_wrong_passwords(root: User, device: Authenticator) -> None:
    add(sign_in(root), device)
    client = sign_in(root)

    statuses = [use(client, device, signature=b"wrong").status_code for _ in range(5)]

    assert statuses == [400] * 5
    assert use(client, device).status_code == 429


def test_a_person_can_have_at_most_ten_passkeys(root: User) -> None:
    client = sign_in(root)
    statuses = [add(client, Authenticator(ORIGIN)).status_code for _ in range(11)]

    assert statuses == [200, *[302] * 9, 400]


def test_a_reset_removes_the_passkeys(root: User, device: Authenticator) -> None:
    add(sign_in(root), device)

    call_command("reset_second_factor", "root")

    assert not Passkey.objects.exists()
    assert "Set it up" in sign_in(root).get(PAGE).content.decode()


def test_without_a_configured_address_passkeys_are_neither_offered_nor_accepted(
    root: User, device: Authenticator, settings: Any
) -> None:
    client = sign_in(root)
    attestation = device.create_passkey(options(client, "to-be-made"))
    settings.ORCHESTRATOR_PASSKEY_ORIGIN = ""

    assert client.post(PAGE, {"new_passkey": attestation, "name": "x"}).status_code == 400
    assert "passkey" not in client.get(PAGE).content.decode().lower()
    assert second_factor.is_set_up(root) is False


@pytest.mark.ui
def test_a_passkey_is_created_in_a_browser_and_used_at_the_next_sign_in(root: User, settings: Any) -> None:
    with pages.browser() as chromium, pages.serve_site() as served:
        address = served.replace("127.0.0.1", "localhost")
        settings.ORCHESTRATOR_PASSKEY_ORIGIN = address
        window = chromium.new_context(base_url=address)
        page = window.new_page()
        devices = window.new_cdp_session(page)
        devices.send("WebAuthn.enable")
        devices.send(
            "WebAuthn.addVirtualAuthenticator",
            {
                "options": {
                    "protocol": "ctap2", "transport": "internal", "hasResidentKey": True,
                    "hasUserVerification": True, "isUserVerified": True, "automaticPresenceSimulation": True,
                }
            },
        )  # fmt: skip

        def sign_in() -> None:
            page.goto("/login/?next=/workers/")
            page.fill("[name=username]", "root")
            page.fill("[name=password]", PASSWORD)
            page.click("button:has-text('Sign in')")

        sign_in()
        page.fill("[name=name]", "This laptop")
        page.click("button:has-text('Create passkey')")
        page.click("text=I have saved them. Continue")
        page.goto("/second-factor/")
        assert "This laptop" in page.inner_text("main, body")

        window.clear_cookies()
        sign_in()
        page.click("button:has-text('Use a passkey')")
        page.wait_for_url("**/workers/**")

        assert "passkey" not in page.inner_text("body")
        pages.close(window)
