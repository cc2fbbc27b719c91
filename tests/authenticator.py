"""A device with a passkey, by WebAuthn level 3 with ES256 and no attestation. It returns what a browser would send."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

import cbor2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

PRESENT, KEY_INCLUDED = 0x01, 0x40


def text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass
class Authenticator:
    """One key on one device. It counts its uses unless `counts` is false."""

    origin: str
    host: str = ""
    credential: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    uses: int = 0
    counts: bool = True
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def create_passkey(self, options: dict[str, Any]) -> str:
        """Return what the browser sends after the passkey was created."""
        numbers = self.key.public_key().public_numbers()
        public = cbor2.dumps({1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32), -3: numbers.y.to_bytes(32)})
        kept = bytes(16) + len(self.credential).to_bytes(2) + self.credential + public
        attested = cbor2.dumps(
            {"fmt": "none", "attStmt": {}, "authData": self._data(options["rp"]["id"], KEY_INCLUDED) + kept}
        )
        return self._answer(
            {
                "clientDataJSON": text(self._client("webauthn.create", options)),
                "attestationObject": text(attested),
            }
        )

    def sign(self, options: dict[str, Any], **wrong: bytes) -> str:
        """Return what the browser sends after the passkey was used. `wrong` replaces parts of it."""
        self.uses += self.counts
        client, data = self._client("webauthn.get", options), self._data(options["rpId"])
        signature = self.key.sign(data + hashlib.sha256(client).digest(), ec.ECDSA(hashes.SHA256()))
        parts = {"clientDataJSON": client, "authenticatorData": data, "signature": signature, **wrong}
        return self._answer({name: text(value) for name, value in parts.items()})

    def _client(self, kind: str, options: dict[str, Any]) -> bytes:
        return json.dumps(
            {"type": kind, "challenge": options["challenge"], "origin": self.origin, "crossOrigin": False}
        ).encode()

    def _data(self, host: str, flags: int = 0) -> bytes:
        return (
            hashlib.sha256((self.host or host).encode()).digest()
            + bytes([PRESENT | flags])
            + self.uses.to_bytes(4)
        )

    def _answer(self, response: dict[str, str]) -> str:
        name = text(self.credential)
        return json.dumps(
            {
                "id": name,
                "rawId": name,
                "type": "public-key",
                "response": response,
                "clientExtensionResults": {},
            }
        )
