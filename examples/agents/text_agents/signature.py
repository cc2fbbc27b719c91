"""Signatures: checks that a request comes from an orchestrator that knows one of our secrets.

Follows the Standard Webhooks specification: HMAC-SHA256 over `id.timestamp.body`, base64, prefix `v1,`.
Several secrets, and several signatures in one header, let either side rotate without an interruption.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence

from .problem import Problem

PREFIX = "whsec_"
TOLERANCE_SECONDS = 300  # older requests may be replays


def key_of(secret: str) -> bytes:
    """Return the bytes of a `whsec_...` secret. Raises `ValueError` if it is not one."""
    if not secret.startswith(PREFIX):
        raise ValueError(f"A secret starts with {PREFIX}")
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("A secret is base64 after its prefix") from error


def verify(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes) -> None:
    """Raise a 401 `Problem` unless one of the keys signed this body within the tolerance."""
    message_id = headers.get("webhook-id", "")
    timestamp = headers.get("webhook-timestamp", "")
    if not message_id or not _is_recent(timestamp):
        raise _refused("webhook-id and a webhook-timestamp of the last five minutes are needed")
    signed = f"{message_id}.{timestamp}.".encode() + body
    expected = [_signature(key, signed) for key in keys]
    for given in headers.get("webhook-signature", "").split():
        version, _, value = given.partition(",")
        # In constant time, so that the duration does not reveal how much of it was right.
        if version == "v1" and any(hmac.compare_digest(value.encode(), known) for known in expected):
            return
    raise _refused("webhook-signature does not match")


def _is_recent(timestamp: str) -> bool:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 12):
        return False
    return abs(time.time() - int(timestamp)) <= TOLERANCE_SECONDS


def _signature(key: bytes, signed: bytes) -> bytes:
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())


def _refused(detail: str) -> Problem:
    return Problem(401, "bad_signature", detail)
