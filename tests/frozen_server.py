"""A server that accepts connections and never answers, as under SIGSTOP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from tenants import limiter, redis


@dataclass
class FrozenServer:
    port: int
    accepted: list[socket.socket] = field(default_factory=list)


@contextmanager
def frozen_server() -> Iterator[FrozenServer]:
    """Listen while the block runs, and keep the accepted connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = FrozenServer(listener.getsockname()[1])

        def accept() -> None:
            while True:
                try:
                    server.accepted.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread; closing alone would not
    thread.join()
    for connection in server.accepted:
        connection.close()


def send_limits_to(server: FrozenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only token buckets use this server as their Redis. With the setting, other threads would use it as well."""
    url = f"redis://127.0.0.1:{server.port}/0"
    frozen = SimpleNamespace(client=lambda *, timeout_seconds: redis._client(url, timeout_seconds))
    monkeypatch.setattr(limiter, "connections", frozen)
