"""Signatures agree with the reference implementation, and every malformed one is refused without an exception."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from agents import webhook_signing
from agents.exceptions import ConfigurationError

SECRET = webhook_signing.new_secret()
OTHER = webhook_signing.new_secret()
BODY = '{"output": {"content": "Grüße"}}'.encode()


def sign(
    *secrets: str, message_id: str = "run-1", body: bytes = BODY, now: float | None = None
) -> dict[str, str]:
    return webhook_signing.sign(message_id=message_id, body=body, secrets=secrets or (SECRET,), now=now)


def is_valid(headers: dict[str, Any], *secrets: str, body: bytes = BODY, now: float | None = None) -> bool:
    return webhook_signing.verify(headers=headers, body=body, secrets=secrets or (SECRET,), now=now)


def test_the_reference_implementation_accepts_our_signature() -> None:
    Webhook(SECRET).verify(BODY, sign())


def test_the_reference_implementation_accepts_our_signature_during_rotation() -> None:
    headers = sign(SECRET, OTHER)

    Webhook(SECRET).verify(BODY, headers)
    Webhook(OTHER).verify(BODY, headers)


@given(st.text(st.characters(codec="utf-8")))
def test_we_accept_the_signature_of_the_reference_implementation(text: str) -> None:
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    headers = {
        "Webhook-Id": "msg_1",
        "Webhook-Timestamp": str(int(now.timestamp())),
        "Webhook-Signature": Webhook(SECRET).sign("msg_1", now, text),
    }

    assert is_valid(headers, body=text.encode())
    assert not is_valid(headers, body=text.encode() + b" ")


def test_a_secret_without_prefix_or_padding_is_accepted_on_both_sides() -> None:
    bare = SECRET.removeprefix("whsec_").rstrip("=")

    assert is_valid(sign(bare))
    Webhook(bare).verify(BODY, sign(SECRET))


def test_a_signature_with_any_active_secret_is_accepted() -> None:
    assert is_valid(sign(OTHER), SECRET, OTHER)
    assert is_valid(sign(SECRET, OTHER), OTHER)
    assert not is_valid(sign(SECRET), OTHER)
    assert not webhook_signing.verify(headers=sign(), body=BODY, secrets=())


@pytest.mark.parametrize("age", [-300, -299, 0, 299, 300])
def test_a_message_of_at_most_five_minutes_either_way_is_accepted(age: int) -> None:
    assert is_valid(sign(now=1_700_000_000), now=1_700_000_000 + age)


@pytest.mark.parametrize("age", [-301, 301, 10**9])
def test_an_older_or_later_message_is_refused(age: int) -> None:
    assert not is_valid(sign(now=1_700_000_000), now=1_700_000_000 + age)


@pytest.mark.parametrize("header", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_changed_or_missing_header_is_refused(header: str) -> None:
    headers = sign()
    other = sign(OTHER, message_id="run-2", now=time.time() - 10)

    assert not is_valid(headers | {header: other[header]})
    assert not is_valid({name: value for name, value in headers.items() if name != header})


@pytest.mark.parametrize(
    "timestamp", ["", " 1", "1_0", "1e9", "-1", "+1", "01", "\u0661\u0662\u0663", "9" * 400, "nan", None, 5]
)
def test_a_malformed_timestamp_is_refused(timestamp: Any) -> None:
    assert not is_valid(sign() | {"webhook-timestamp": timestamp})


@pytest.mark.parametrize(
    "signature",
    [
        "",
        ",",
        "v1",
        "v1,",
        "v1,é",
        "v1,\ud800",
        "v2,x",
        "v1,a,b",
        "v1," + "=" * 100,
        " " * 10_000,
        None,
        b"v1,x",
    ],
)
def test_a_malformed_signature_is_refused(signature: Any) -> None:
    assert not is_valid(sign() | {"webhook-signature": signature})


@pytest.mark.parametrize("message_id", ["", "a.b", "a b", "ü", "x" * 257, "a\n", None, 7])
def test_a_malformed_id_is_refused(message_id: Any) -> None:
    assert not is_valid(sign() | {"webhook-id": message_id})


@given(st.dictionaries(st.sampled_from(list(sign())), st.text()), st.binary())
def test_verification_never_raises_for_any_headers(headers: dict[str, str], body: bytes) -> None:
    assert not is_valid(sign() | {"webhook-signature": "v1,none"} | headers, body=body)


def test_signatures_of_other_versions_are_skipped() -> None:
    headers = sign()

    assert is_valid(headers | {"webhook-signature": "v1a,xyz " + headers["webhook-signature"]})
    assert not is_valid(headers | {"webhook-signature": headers["webhook-signature"].replace("v1,", "v2,")})


def test_surplus_signatures_are_ignored() -> None:
    headers = sign()

    assert not is_valid(headers | {"webhook-signature": "v1,x " * 16 + headers["webhook-signature"]})


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_short", "whsec_ö", "whsec_####", "whsec_" + "A" * 200]
)
def test_an_unusable_secret_cannot_sign_and_verifies_nothing(secret: str) -> None:
    assert webhook_signing._key_of(secret) is None
    assert not is_valid(sign(), secret)
    with pytest.raises(ConfigurationError) as caught:
        sign(secret)
    assert len(secret) < 8 or secret not in str(caught.value)


def test_an_id_with_a_dot_is_never_signed() -> None:
    with pytest.raises(ConfigurationError):
        sign(message_id="a.b")


def test_new_secrets_are_usable_and_different() -> None:
    secrets = {webhook_signing.new_secret() for _ in range(10)}

    assert len(secrets) == 10
    assert all(map(webhook_signing._key_of, secrets))
