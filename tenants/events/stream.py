"""One stream of server-sent events: what its client wants, how far it is, and the bytes on their way to it.

Sockets are written to without waiting. A client that takes nothing gets nothing more read for it; after a minute it is given up.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tenants.models.events import Event
from tenants.wire_json import dumps

from .log import EventFilter, shown
from .subscribers import Subscriber

FULL_BYTES = 256 * 1024  # waiting to be taken; then no more is read from the log for this client
PATIENCE_SECONDS = 60.0
RETRY_MILLISECONDS = 2_000  # after which a client that was cut off comes back

_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(eq=False, slots=True)
class Stream:
    """`position` is the number of the last event that was looked at for it."""

    bearer: Subscriber
    wanted: EventFilter
    position: int
    seat: str
    socket: Any = None  # of the client, as soon as the answer has begun
    chunked: bool = False  # whether the answer was begun in HTTP's chunked encoding
    waiting: bytearray = field(default_factory=bytearray)
    said_at: float = field(default_factory=time.monotonic)
    taken_at: float = field(default_factory=time.monotonic)
    unwelcome: bool = False  # the caller may not read any more
    displaced: bool = False  # a newer stream of the same caller has its seat

    def offer(self, event: Event) -> None:
        """Put an event that it wants on its way, and go on behind it."""
        if self.wanted.fits(event):
            self.say(frame(event))
        self.position = event.number

    def say(self, text: bytes) -> None:
        self.said_at = time.monotonic()
        self.waiting += b"%x\r\n%b\r\n" % (len(text), text) if self.chunked else text

    def flush(self) -> bool:
        """Hand over what the client takes right now. False when it is gone."""
        now = time.monotonic()
        if not self.waiting:
            self.taken_at = now
            return True
        try:
            while self.waiting and (sent := self.socket.send(self.waiting)):
                del self.waiting[:sent]
                self.taken_at = now
        except _NOT_NOW:
            return now - self.taken_at < PATIENCE_SECONDS
        except OSError:
            return False
        return True

    def is_open(self) -> bool:
        """Called when something can be read: a client has nothing to say, so it is the end, or of no interest."""
        try:
            return self.socket.recv(4096) != b""
        except _NOT_NOW:
            return True
        except OSError:
            return False

    @property
    def is_full(self) -> bool:
        return len(self.waiting) > FULL_BYTES

    def close(self) -> None:
        """End the answer properly, as far as the client lets us."""
        if self.chunked:
            self.waiting += b"0\r\n\r\n"
        self.flush()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            self.socket.close()


def frame(event: Event) -> bytes:
    """The event as text/event-stream."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.number, event.kind.encode(), dumps(shown(event)))


def opening(position: int) -> bytes:
    """What a stream begins with: the client knows from now on where it is, even if nothing happens."""
    return b"retry: %d\nid: %d\n\n" % (RETRY_MILLISECONDS, position)


def reset(oldest: int, last: int) -> bytes:
    """Tells a client that what it has missed is not kept any more."""
    return b"id: %d\nevent: reset\ndata: %b\n\n" % (last, dumps({"oldest": oldest, "last": last}))


#: The last event of a stream whose seat a newer one of the same person has got: coming back at once would only take another's.
DISPLACED = b"event: displaced\ndata: {}\n\n"

KEEPALIVE = b": still here\n\n"
