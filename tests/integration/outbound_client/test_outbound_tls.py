"""TLS verifies the name in the address, while the connection goes to the checked IP address."""

from __future__ import annotations

import json
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agents.exceptions import (
    RetryableAgentError,
)
from tests.integration.outbound_client.peers import SLOW, Serve, answering, ok, post


class Authority:
    """A certificate authority for tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Test authority")])
        certificate = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))
        self.file = folder / "authority.pem"
        self.file.write_bytes(certificate)

    def context_for(self, name: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        try:
            alternative: x509.GeneralName = x509.IPAddress(ip_address(name))
        except ValueError:
            alternative = x509.DNSName(name)
        file = self._folder / f"{name}.pem"
        file.write_bytes(
            self._sign(subject, key, x509.SubjectAlternativeName([alternative]))
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> bytes:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - timedelta(days=1),
            not_valid_after=now + timedelta(days=1),
        )
        signed = builder.add_extension(extension, critical=False).sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_tls_uses_the_original_name_while_connecting_to_the_checked_address(
    serve: Serve, names: dict[str, list[str]], settings: Any, authority: Authority
) -> None:
    context = authority.context_for("agent.example")
    server_names: list[str | None] = []
    context.sni_callback = lambda connection, name, _: server_names.append(name)
    server = serve(answering(ok(json.dumps("hello").encode())), context=context)
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"agent.example:{server.port}",)
    settings.ORCHESTRATOR_EGRESS_CA_FILE = authority.file
    names["agent.example"] = ["127.0.0.1"]

    assert post(f"https://agent.example:{server.port}/").body == b'"hello"'
    assert server_names == ["agent.example"]


@pytest.mark.parametrize("trusted", [True, False])
def test_a_wrong_or_unknown_certificate_ends_the_call(
    trusted: bool, serve: Serve, names: dict[str, list[str]], settings: Any, authority: Authority
) -> None:
    server = serve(
        answering(ok(b"1")), context=authority.context_for("other.example" if trusted else "agent.example")
    )
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"agent.example:{server.port}",)
    settings.ORCHESTRATOR_EGRESS_CA_FILE = authority.file if trusted else None
    names["agent.example"] = ["127.0.0.1"]

    with pytest.raises(RetryableAgentError, match="certificate") as caught:
        post(f"https://agent.example:{server.port}/")

    assert caught.value.error_code == "agent_unreachable"


def test_a_handshake_that_never_ends_ends_at_the_deadline(serve: Serve) -> None:
    server = serve(SLOW["silent"])

    with pytest.raises(RetryableAgentError) as caught:
        post(server.url.replace("http:", "https:"), seconds=0.4)

    assert caught.value.error_code == "agent_timeout"


def test_a_slow_answer_over_tls_ends_at_the_deadline(
    serve: Serve, settings: Any, authority: Authority
) -> None:
    server = serve(SLOW["dripping body"], context=authority.context_for("127.0.0.1"))
    settings.ORCHESTRATOR_EGRESS_CA_FILE = authority.file

    with pytest.raises(RetryableAgentError) as caught:
        post(server.url.replace("http:", "https:"), seconds=0.5)

    assert caught.value.error_code == "agent_timeout"
