"""Addresses are checked at the call, and the connection goes to the checked address."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agents import outbound
from agents.exceptions import (
    OutboundRefused,
    RetryableAgentError,
)
from agents.outbound import policy, transport
from tests.integration.outbound_client.peers import Serve, answering, ok, post


def test_an_address_that_is_not_allowed_is_never_connected_to(
    serve: Serve, names: dict[str, list[str]]
) -> None:
    server = serve(answering(ok(b"secret")), allowed=False)
    names.update({"inside.example": ["127.0.0.1"], "localhost": ["127.0.0.1"]})
    port = server.port

    for host in (
        "127.0.0.1",
        "127.1",
        "2130706433",
        "localhost",
        "inside.example",
        "[::ffff:127.0.0.1]",
        "0",
    ):
        for scheme in ("http", "https"):
            with pytest.raises(OutboundRefused):
                post(f"{scheme}://{host}:{port}/")

    assert server.connections == 0


def test_a_name_that_points_inside_after_the_check_is_refused_at_the_call(
    serve: Serve, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(answering(ok(b"secret")), allowed=False)
    monkeypatch.setattr(policy, "PORTS", frozenset({server.port}))
    url = f"https://flip.example:{server.port}/"
    names["flip.example"] = ["93.184.216.34"]
    outbound.check_url(url)

    names["flip.example"] = ["127.0.0.1"]

    with pytest.raises(OutboundRefused, match=r"127\.0\.0\.1 is not a public address"):
        post(url)
    assert server.connections == 0


def test_a_name_that_changes_between_its_check_and_the_connection_does_not_lead_inside(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(answering(ok(b"secret")), allowed=False)
    monkeypatch.setattr(policy, "PORTS", frozenset({server.port}))
    answers = iter(["93.184.216.34"])

    def resolve(host: str, *arguments: Any, **options: Any) -> list[Any]:
        return [(2, 1, 6, "", (next(answers, "127.0.0.1"), 0))]

    connect, called = transport._connect, []

    def connect_inside_only(address: Any, port: int) -> socket.socket:
        called.append(str(address))
        if not address.is_loopback:
            raise OSError("there is no network")
        return connect(address, port)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(transport, "_connect", connect_inside_only)

    with pytest.raises(RetryableAgentError, match="there is no network"):
        post(f"https://rebinding.example:{server.port}/")
    assert (called, server.connections) == (["93.184.216.34"], 0)


def test_a_name_with_one_forbidden_address_is_refused(
    serve: Serve, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(answering(ok(b"secret")), allowed=False)
    monkeypatch.setattr(policy, "PORTS", frozenset({server.port}))
    names["mixed.example"] = ["127.0.0.1", "93.184.216.34"]

    with pytest.raises(OutboundRefused):
        post(f"https://mixed.example:{server.port}/")
    assert server.connections == 0


def test_the_name_is_resolved_once_and_the_checked_address_is_used(
    serve: Serve, names: dict[str, list[str]], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(answering(ok(b"1")))
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"agent.internal:{server.port}",)
    names["agent.internal"] = ["127.0.0.1"]
    resolved: list[str] = []
    original = socket.getaddrinfo

    def record_name(host: str, *arguments: Any, **options: Any) -> Any:
        resolved.append(host)
        return original(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", record_name)

    assert post(f"http://agent.internal:{server.port}/").body == b"1"
    assert resolved == ["agent.internal"]


def test_public_addresses_are_called_by_https_at_allowed_ports_only(
    serve: Serve, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(answering(ok(b"1")), allowed=False)
    monkeypatch.setattr(policy, "is_public", lambda address: True)
    names["agent.example"] = ["127.0.0.1"]

    with pytest.raises(OutboundRefused, match="port"):
        post(f"https://agent.example:{server.port}/")
    monkeypatch.setattr(policy, "PORTS", frozenset({server.port}))
    with pytest.raises(OutboundRefused, match="https"):
        post(f"http://agent.example:{server.port}/")
    assert server.connections == 0


def test_an_allowed_name_that_points_to_a_metadata_service_is_refused(
    serve: Serve, names: dict[str, list[str]], settings: Any
) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("agent.internal:80",)
    names["agent.internal"] = ["169.254.169.254"]

    with pytest.raises(OutboundRefused, match="metadata"):
        post("http://agent.internal:80/")


def test_the_next_address_is_tried_when_the_first_does_not_answer(
    serve: Serve, names: dict[str, list[str]], settings: Any
) -> None:
    server = serve(answering(ok(b"1")))
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"agent.internal:{server.port}",)
    names["agent.internal"] = ["127.0.0.2", "127.0.0.1"]  # because nothing listens on the first

    assert post(f"http://agent.internal:{server.port}/").body == b"1"


def test_an_address_removed_from_the_allow_list_is_refused_despite_an_open_connection(
    serve: Serve, settings: Any
) -> None:
    server = serve(answering(ok(b"1"), times=2))
    post(server.url)

    settings.ORCHESTRATOR_EGRESS_ALLOW = ()

    with pytest.raises(OutboundRefused):
        post(server.url)


def test_no_request_is_sent_without_a_call_budget(serve: Serve) -> None:
    server = serve(answering(ok(b"1")))

    with pytest.raises(RuntimeError, match="call_budget"):
        outbound.get_guarded_transport().handle_request(httpx2.Request("GET", server.url))
    assert server.connections == 0


def test_a_library_with_its_own_client_is_guarded_by_the_transport(serve: Serve) -> None:
    server = serve(answering(ok(b"1")))
    library = httpx2.Client(transport=outbound.get_guarded_transport(), trust_env=False)

    with outbound.call_budget(20, 1_000):
        assert library.get(server.url).content == b"1"
        with pytest.raises(OutboundRefused):
            library.get("http://127.0.0.1:1/")


def test_unix_sockets_are_never_opened(tmp_path: Path) -> None:
    with pytest.raises(OutboundRefused):
        transport.GuardedBackend(policy.current()).connect_unix_socket(str(tmp_path / "socket"))
