"""Only the servers of the test may be called."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from agents import outbound
from tests.integration.outbound_client.peers import Behaviour, Serve, Server


@pytest.fixture(autouse=True)
def no_outside_world(settings: Any) -> Iterator[None]:
    """No address may be called unless the test allows it."""
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()
    settings.ORCHESTRATOR_EGRESS_DENY = ()
    settings.ORCHESTRATOR_EGRESS_CA_FILE = None
    yield
    outbound.close_connections()


@pytest.fixture
def serve(settings: Any) -> Iterator[Serve]:
    """Return a function that starts servers which may be called."""
    servers: list[Server] = []

    def start(behaviour: Behaviour, *, allowed: bool = True, context: ssl.SSLContext | None = None) -> Server:
        servers.append(Server(behaviour, context))
        if allowed:
            settings.ORCHESTRATOR_EGRESS_ALLOW += (f"127.0.0.1:{servers[-1].port}",)
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """A table of names that the test controls."""
    table: dict[str, list[str]] = {}

    def getaddrinfo(host: str, *arguments: Any, **options: Any) -> list[Any]:
        if host not in table:
            raise socket.gaierror(-2, "Name or service not known")
        return [(2, 1, 6, "", (address, 0)) for address in table[host]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return table
