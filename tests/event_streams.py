"""Clients of event streams, over a socket and in the test's own process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import orjson


@dataclass
class StreamEvent:
    """One event as the client receives it."""

    id: int | None = None
    event: str | None = None
    data: Any = None


@dataclass
class Follower:
    """Reads one stream over HTTP/1.1, chunked, as browsers do."""

    port: int
    secret: str
    query: str = ""
    last_seen: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 0

    def __post_init__(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        lines = [
            f"GET /api/v1/events/{self.query} HTTP/1.1",
            "Host: 127.0.0.1",
            "Accept: text/event-stream",
            f"Authorization: Bearer {self.secret}",
        ]
        if self.last_seen is not None:
            lines.append(f"Last-Event-ID: {self.last_seen}")
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self._reader = self.socket.makefile("rb")
        self.status = int(self._reader.readline().split()[1])
        while (line := self._reader.readline().strip()) != b"":
            name, _, value = line.decode().partition(":")
            self.headers[name.lower()] = value.strip()

    def blocks(self) -> Iterator[bytes]:
        """Yield the blocks between empty lines, comments included, until the response ends."""
        text = b""
        while size := int(self._reader.readline() or b"0", 16):
            text += self._reader.read(size + 2)[:-2]
            while b"\n\n" in text:
                block, _, text = text.partition(b"\n\n")
                yield block

    def next_events(self, count: int, seconds: float = 60.0) -> list[StreamEvent]:
        """Return up to so many next events; fewer if the stream ends."""
        deadline, events = monotonic() + seconds, []
        for block in self.blocks():
            event = parse_event(block)
            if event.data is not None:
                events.append(event)
            if len(events) == count:
                break
            assert monotonic() < deadline, f"only {len(events)} of {count} events after {seconds} s"
        return events

    def close(self) -> None:
        self._reader.close()
        self.socket.close()


def parse_event(block: bytes) -> StreamEvent:
    event = StreamEvent()
    for line in block.split(b"\n"):
        name, _, value = line.partition(b": ")
        if name == b"id":
            event.id = int(value)
        elif name == b"event":
            event.event = value.decode()
        elif name == b"data":
            event.data = orjson.loads(value)
    return event
