"""Verifies messages from an Orchestrator, as defined by Standard Webhooks: HMAC-SHA256, version v1.

    payload = webhooks.verify(headers, body, "whsec_...")

The body must be the received bytes, because JSON that was parsed and serialized again has another signature. A signature proves origin
and age, but a message may be repeated: if it has side effects, remember each `webhook-id` for longer than the tolerance.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator_client.errors import InvalidSignature

PREFIX = "whsec_"
# Allows for a slow network and an inaccurate clock, but not for a replay of yesterday's message.
TOLERANCE_SECONDS = 300
MOST_SIGNATURES = 16  # a sender that rotates its keys sends two; more would only waste computing time


def verify(
    headers: Mapping[str, str],
    body: bytes | str,
    secrets: str | Iterable[str],
    *,
    tolerance: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> Any:
    """Return the JSON of the body, if this message was signed with one of the secrets, at most `tolerance` seconds ago.

    Pass both secrets during a rotation. Raises InvalidSignature with the reason, and ValueError if a secret is malformed, which is an
    error of the receiver.
    """
    sent = {name.lower(): value for name, value in headers.items()}
    message_id, timestamp = sent.get("webhook-id", ""), sent.get("webhook-timestamp", "")
    raw = body.encode() if isinstance(body, str) else bytes(body)
    keys = [_key(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    if not message_id or not timestamp or "webhook-signature" not in sent:
        raise InvalidSignature(
            "The headers webhook-id, webhook-timestamp and webhook-signature are required."
        )
    _check_age(timestamp, tolerance, time.time() if now is None else now)
    try:
        fits = _fits(sent["webhook-signature"], keys, message_id, timestamp, raw)
    except UnicodeEncodeError as error:
        # Some servers give the bytes of a header that are not UTF-8 as lone surrogates.
        raise InvalidSignature("The headers contain characters that no signed message has.") from error
    if not fits:
        raise InvalidSignature("None of the signatures matches.")
    try:
        return json.loads(raw)
    except ValueError as error:
        raise InvalidSignature("The signed body is not JSON.") from error


def sign(message_id: str, timestamp: int, body: bytes, secret: str) -> str:
    """Return a `webhook-signature` that `verify` accepts; for tests of receivers."""
    return "v1," + _signature(_key(secret), message_id, str(timestamp), body).decode()


def _check_age(timestamp: str, tolerance: float, now: float) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 15):
        raise InvalidSignature("webhook-timestamp is not a number of seconds.")
    if abs(now - int(timestamp)) > tolerance:
        raise InvalidSignature(f"The timestamp of the message differs by more than {tolerance:g} seconds.")


def _fits(header: str, keys: list[bytes], message_id: str, timestamp: str, body: bytes) -> bool:
    claimed = [part.partition(",") for part in header.split(" ")[:MOST_SIGNATURES]]
    found = False
    for key in keys:
        expected = _signature(key, message_id, timestamp, body)
        for version, _, signature in claimed:
            # No early exit: the time taken must not tell which secret or signature came close.
            found |= version == "v1" and hmac.compare_digest(expected, signature.encode())
    return found


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> bytes:
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())


def _key(secret: str) -> bytes:
    encoded = secret.removeprefix(PREFIX).rstrip("=")
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not 24 <= len(key) <= 64:
        raise ValueError("A signing secret must be whsec_ and the base64 of 24 to 64 bytes.")
    return key
