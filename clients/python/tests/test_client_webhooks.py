"""Signatures: what the server and the scheme's own library sign is accepted, everything else is refused."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timezone

import pytest
import standardwebhooks
from agents import webhook_signing
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator_client import InvalidSignature, verify_job, webhooks

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER = "whsec_" + base64.b64encode(bytes(32)).decode()
NOW = 1_800_000_000
BODY = b'{"type": "activity.settled", "data": {"id": "a"}}'


def signed(body: bytes = BODY, *secrets: str, now: float = NOW) -> dict[str, str]:
    return webhook_signing.sign(message_id="m-1", body=body, secrets=secrets or (SECRET,), now=now)


def test_what_the_server_signs_is_accepted() -> None:
    assert webhooks.verify(signed(), BODY, SECRET, now=NOW) == json.loads(BODY)
    assert webhooks.verify(signed(), BODY.decode(), SECRET, now=NOW) == json.loads(BODY)


def test_what_the_library_of_the_scheme_signs_is_accepted() -> None:
    moment = datetime.fromtimestamp(NOW, timezone.utc)
    signature = standardwebhooks.Webhook(SECRET).sign("m-1", moment, BODY.decode())
    headers = {"Webhook-Id": "m-1", "Webhook-Timestamp": str(NOW), "Webhook-Signature": signature}

    assert webhooks.verify(headers, BODY, SECRET, now=NOW) == json.loads(BODY)
    assert signature == webhooks.sign("m-1", NOW, BODY, SECRET)


def test_one_signature_and_one_secret_that_fit_are_enough() -> None:
    assert webhooks.verify(signed(BODY, OTHER, SECRET), BODY, SECRET, now=NOW)
    assert webhooks.verify(signed(), BODY, [OTHER, SECRET], now=NOW)


@pytest.mark.parametrize("seconds", [-300, 300])
def test_five_minutes_off_is_not_too_much(seconds: int) -> None:
    assert webhooks.verify(signed(), BODY, SECRET, now=NOW + seconds)


@pytest.mark.parametrize("seconds", [-301, 301, 10**9])
def test_more_is(seconds: int) -> None:
    with pytest.raises(InvalidSignature, match="more than 300 seconds"):
        webhooks.verify(signed(), BODY, SECRET, now=NOW + seconds)


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-id": "m-2"},
        {"webhook-id": ""},
        {"webhook-timestamp": str(NOW + 1)},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "-5"},
        {"webhook-timestamp": "9" * 400},
        {"webhook-signature": ""},
        {"webhook-signature": "v2,x"},
        {"webhook-signature": "v1,ä"},
        {"webhook-signature": webhooks.sign("m-1", NOW, BODY, OTHER)},
        {"webhook-signature": webhooks.sign("m-1", NOW, BODY, SECRET).replace("v1,", "v1a,")},
    ],
)
def test_nothing_else_is_accepted(changed: dict[str, str]) -> None:
    with pytest.raises(InvalidSignature):
        webhooks.verify({**signed(), **changed}, BODY, SECRET, now=NOW)


@pytest.mark.parametrize("missing", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_without_a_header_it_is_no_signed_message(missing: str) -> None:
    headers = signed()
    del headers[missing]

    with pytest.raises(InvalidSignature, match="are required"):
        webhooks.verify(headers, BODY, SECRET, now=NOW)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault
@given(place=st.integers(0, len(BODY) - 1), bit=st.integers(0, 7))
def test_no_bit_of_the_body_can_be_changed(place: int, bit: int) -> None:
    body = bytearray(BODY)
    body[place] ^= 1 << bit

    with pytest.raises(InvalidSignature):
        webhooks.verify(signed(), bytes(body), SECRET, now=NOW)


# Also lone surrogates, with which some servers give bytes that are not UTF-8.
ANY_TEXT = st.text(st.characters(exclude_categories=()))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault
@given(timestamp=ANY_TEXT, signature=ANY_TEXT, message_id=ANY_TEXT)
@example(timestamp=str(NOW), signature="v1,\udcff", message_id="m")
@example(timestamp=str(NOW), signature="v1,", message_id="\udcff")
def test_whatever_the_headers_hold_it_is_a_refusal_and_no_fault(
    timestamp: str, signature: str, message_id: str
) -> None:
    headers = {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": signature}

    with pytest.raises(InvalidSignature):
        webhooks.verify(headers, BODY, SECRET, now=NOW)
    with pytest.raises(InvalidSignature):
        webhooks.verify({**headers, "webhook-timestamp": str(NOW)}, BODY, SECRET, now=NOW)


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_!!!", "whsec_" + base64.b64encode(bytes(8)).decode(), "ä"]
)
def test_a_secret_that_is_none_is_the_receivers_mistake(secret: str) -> None:
    with pytest.raises(ValueError, match="whsec_"):
        webhooks.verify(signed(), BODY, secret, now=NOW)


def test_what_is_signed_but_no_job_is_refused() -> None:
    with pytest.raises(InvalidSignature, match="not JSON"):
        webhooks.verify(signed(b"x"), b"x", SECRET, now=NOW)
    for body in (b"[]", b'{"job_id": "x"}'):
        with pytest.raises(InvalidSignature, match="not a job"):
            verify_job(signed(body), body, SECRET, now=NOW)
    body = b'{"job_id": "x", "callback": {"url": "http://h/", "token": "t"}}'
    assert verify_job(signed(body), body, SECRET, now=NOW).callback["token"] == "t"
