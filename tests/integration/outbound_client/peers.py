"""Servers with scripted behaviour on each connection."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agents import outbound

Behaviour = Callable[[socket.socket], None]


class Server:
    """A listener that runs a function on each accepted connection, and counts connections."""

    def __init__(self, behaviour: Behaviour, context: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        self._behaviour = behaviour
        self._context = context
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/run"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
                self._open.append(connection)
            self._behaviour(connection)
            connection.close()

    def close(self) -> None:
        for opened in (self._listener, *self._open):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()


Serve = Callable[..., Server]


def post(
    url: str, *, seconds: float = 20, max_bytes: int = 100_000, **options: Any
) -> outbound.OutboundResponse:
    options = {"headers": {}, "body": b"{}", **options}
    return outbound.send("POST", url, deadline_seconds=seconds, max_bytes=max_bytes, **options)


def read_request(connection: socket.socket) -> tuple[bytes, bytes]:
    """Return head and body of one request. Raise OSError if the client has gone."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += receive(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
    while len(body) < length:
        body += receive(connection)
    return head, body


def receive(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionResetError
    return data


def answering(*parts: bytes, times: int = 1) -> Behaviour:
    def behave(connection: socket.socket) -> None:
        for _ in range(times):
            read_request(connection)
            for part in parts:
                connection.sendall(part)

    return behave


def ok(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def send_until_closed(connection: socket.socket, data: bytes) -> None:
    """Send the same bytes repeatedly until the client hangs up."""
    while True:
        connection.sendall(data)
        time.sleep(0.01)


def dripping(start: bytes, drop: bytes) -> Behaviour:
    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(start)
        send_until_closed(connection, drop)

    return behave


def silent(connection: socket.socket) -> None:
    """Read everything and never answer."""
    while connection.recv(65536):
        pass


SLOW: dict[str, Behaviour] = {
    "silent": silent,
    "dripping headers": dripping(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "dripping body": dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b"x"),
    "dripping chunks": dripping(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
}
