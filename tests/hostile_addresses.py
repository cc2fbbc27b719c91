"""Addresses that must never be called, a name service that tests control, and an internal listener that must get no connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from agents.outbound import transport
from tests.unit.test_outbound_addresses import FORBIDDEN_HOSTS, FORBIDDEN_URLS

PUBLIC = "93.184.216.34"
GOOD_NAME = "good.example"
GOOD_URL = f"https://{GOOD_NAME}/run"

#: Internal addresses to which public names may resolve. Anybody can register such names.
INSIDE = {
    "loop.example": ["127.0.0.1"],
    "127-0-0-1.nip.example": ["127.0.0.1"],
    "six.example": ["::1"],
    "mapped.example": ["::ffff:10.0.0.5"],
    "cloud.example": ["169.254.169.254"],
    "azure.example": ["168.63.129.16"],
    "half.example": [PUBLIC, "192.168.0.7"],
    "carrier.example": ["100.64.3.2"],
    "translated.example": ["64:ff9b::a00:1"],
    "nobody.example": [],
}

#: Every spelling that must be refused when an address is saved, and again when it is called.
HOSTILE_URLS = tuple(
    dict.fromkeys(
        [
            *(f"https://{host}/run" for host in FORBIDDEN_HOSTS if host),
            # Forms trim spaces.
            *(url for url in FORBIDDEN_URLS if url == url.strip() != "" and len(url) <= 500),
            *(f"https://{name}/run" for name in INSIDE),
            *(f"https://{name}:8443/run" for name in ("loop.example", "half.example")),
        ]
    )
)


class Names:
    """A name service. `table` has the addresses of names; `flips` those from the second lookup on."""

    def __init__(self) -> None:
        self.table = {GOOD_NAME: [PUBLIC], **INSIDE}
        self.flips: dict[str, list[str]] = {}
        self.lookups: list[str] = []

    def getaddrinfo(self, host: str, *arguments: Any, **options: Any) -> list[Any]:
        seen = host in self.lookups
        self.lookups.append(host)
        addresses = self.flips[host] if seen and host in self.flips else self.table.get(host)
        if not addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, 1, 6, "", (each, 0)) for each in addresses
        ]


@contextmanager
def controlled_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    names = Names()
    own = SimpleNamespace(**{**vars(socket), "getaddrinfo": names.getaddrinfo})
    monkeypatch.setattr(transport, "socket", own)  # only for the address guard; databases keep the real one
    yield names


class Listener:
    """Counts the connections to a port of loopback, over IPv4 and, where it exists, IPv6."""

    def __init__(self) -> None:
        self.connections = 0
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.port: int = self._sockets[0].getsockname()[1]
        with suppress(OSError):
            self._sockets.append(socket.create_server(("::1", self.port), family=socket.AF_INET6))
        for each in self._sockets:
            threading.Thread(target=self._accept, args=(each,), daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                self.connections += 1
                connection.close()

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
