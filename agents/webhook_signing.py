"""Signs outgoing messages and verifies incoming ones by the Standard Webhooks scheme (HMAC-SHA256, version
v1).

Several secrets may be valid at once, so that they can be rotated without refusing messages. Verification
returns False for anything malformed, and never raises. It is stateless, so the caller must recognise
repeated messages by their `webhook-id`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets as randomness
from collections.abc import Mapping, Sequence

from agents.exceptions import ConfigurationError
from tenants import clock

ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"

# In both directions, for slow networks and wrong clocks, but too short to replay an old message.
TOLERANCE_SECONDS = 300
SECRET_PREFIX = "whsec_"  # noqa: S105 - only the prefix of such secrets
SECRET_BYTES = range(24, 65)  # the lengths that the scheme allows
MAX_SIGNATURES = 16  # a sender that rotates its secret sends two; more would only waste time

# The parts are joined with dots before they are signed, so a dot inside a part could make two messages equal.
_ID = re.compile(r"[!-\-/-~]{1,256}")  # printable ASCII without space and dot
_TIMESTAMP = re.compile(r"0|[1-9][0-9]{0,14}")


def new_secret() -> str:
    """Return a random secret in the form that both sides store."""
    return SECRET_PREFIX + base64.b64encode(randomness.token_bytes(32)).decode()


def sign(*, message_id: str, body: bytes, secrets: Sequence[str], now: float | None = None) -> dict[str, str]:
    """Return the three headers that prove to the receiver who sent this body, and when. They have one signature per secret."""
    timestamp = str(int(clock.timestamp() if now is None else now))
    if not _ID.fullmatch(message_id):
        raise ConfigurationError("A webhook id must be printable ASCII without spaces and dots.")
    signatures = []
    for secret in secrets:
        key = _key_of(secret)
        if key is None:
            raise ConfigurationError("A signing secret is not of the form whsec_<base64 of 24 to 64 bytes>.")
        signatures.append("v1," + _signature(key, message_id, timestamp, body).decode())
    return {ID_HEADER: message_id, TIMESTAMP_HEADER: timestamp, SIGNATURE_HEADER: " ".join(signatures)}


def verify(
    *, headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now: float | None = None
) -> bool:
    """Whether one of the secrets signed exactly this message within five minutes of now. Never raises."""
    sent = {name.lower(): value for name, value in headers.items() if isinstance(name, str)}
    message_id, timestamp = sent.get(ID_HEADER), sent.get(TIMESTAMP_HEADER)
    if not isinstance(message_id, str) or not _ID.fullmatch(message_id):
        return False
    if not isinstance(timestamp, str) or not _TIMESTAMP.fullmatch(timestamp):
        return False
    if abs((clock.timestamp() if now is None else now) - int(timestamp)) > TOLERANCE_SECONDS:
        return False
    claimed = _parse_signatures(sent.get(SIGNATURE_HEADER))
    keys = [key for key in map(_key_of, secrets) if key is not None]
    is_valid = False
    for key in keys:
        expected = _signature(key, message_id, timestamp, body)
        for signature in claimed:
            # No early exit, because the time must not reveal which secret or signature came close.
            is_valid |= hmac.compare_digest(expected, signature)
    return is_valid


def _parse_signatures(header: object) -> list[bytes]:
    if not isinstance(header, str) or not header.isascii():
        return []
    versioned = (part.partition(",") for part in header.split(" ", MAX_SIGNATURES)[:MAX_SIGNATURES])
    return [signature.encode() for version, _, signature in versioned if version == "v1"]


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> bytes:
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256))


def _key_of(secret: object) -> bytes | None:
    if not isinstance(secret, str) or not secret.isascii():
        return None
    encoded = secret.removeprefix(SECRET_PREFIX).rstrip("=")
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) in SECRET_BYTES else None
