"""Free ports, and a proxy that can hold back all bytes without closing a connection, like a network failure."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CHUNK = 65_536


class Proxy:
    """Forwards bytes between clients of `port` and the server while `flows` is set."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port: int = self._listening.getsockname()[1]
        self._flows, self._ended = threading.Event(), threading.Event()
        self._flows.set()
        self._pairs: dict[socket.socket, socket.socket] = {}
        threading.Thread(target=self._run, name="proxy", daemon=True).start()

    def stall(self) -> None:
        """Keep connections and accept new ones, but forward no byte."""
        self._flows.clear()

    def resume(self) -> None:
        """Forward again, including the bytes that were held back."""
        self._flows.set()

    def cut(self) -> None:
        """Close all connections."""
        for one in list(self._pairs):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._ended.set()
        self._flows.set()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ)
            while not self._ended.is_set():
                self._flows.wait()
                for key, _ in selector.select(0.02):
                    if not self._flows.is_set():
                        break
                    if key.fileobj is self._listening:
                        self._connect(selector)
                    else:
                        self._pass_on(key.fileobj, selector)  # type: ignore[arg-type]
        for one in (*self._pairs, self._listening):
            one.close()

    def _connect(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._listening.accept()
        try:
            far = socket.create_connection(self._server)
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pairs[one] = other
            selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, one: socket.socket, selector: selectors.BaseSelector) -> None:
        other = self._pairs.get(one)
        if other is None:
            return  # because its other end was closed a moment ago
        try:
            data = one.recv(CHUNK)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        for end in (one, other):
            self._pairs.pop(end, None)
            selector.unregister(end)
            end.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def proxy_to(host: str, port: int) -> Iterator[Proxy]:
    proxy = Proxy((host, port))
    try:
        yield proxy
    finally:
        proxy.close()
