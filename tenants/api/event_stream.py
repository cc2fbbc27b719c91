"""Answers with a stream of server-sent events: the request's thread begins it, and the hub continues it."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from django.conf import settings
from django.http import StreamingHttpResponse

from tenants.api.bodies import JSONRenderer
from tenants.context import tenant_scope
from tenants.events import connection_limits, hub, log
from tenants.events.connection_limits import TooManyStreams
from tenants.events.log import EventFilter
from tenants.events.stream import Stream, Subscriber, opening, reset

MEDIA_TYPE = "text/event-stream"

# Between writes that detect a closed connection: the first one after that still seems to succeed.
PROBE_SECONDS = 0.5
PROBE = b":\n\n"  # a comment, which clients ignore

HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # a buffering proxy would delay events
}


class EventStreamRenderer(JSONRenderer):
    """Lets clients request the stream. It only renders problems, which are JSON with a separate media type."""

    media_type = MEDIA_TYPE
    format = "stream"


def follow(
    environ: Mapping[str, Any], subscriber: Subscriber, event_filter: EventFilter, after: int | None
) -> StreamingHttpResponse:
    """Return the answer that streams the filtered events after number `after`, or with None from now on.

    If that number is no longer stored, the stream says so and continues with new events. If no place is free, a person's newest stream
    replaces their oldest; a program is refused. Raises `TooManyStreams`.
    """
    if hub.here().size() >= settings.ORCHESTRATOR_STREAMS_PER_PROCESS:
        raise TooManyStreams("This server has reached its limit of open streams. Try again in a moment.")
    tenant_id = subscriber.principal.tenant_id
    with tenant_scope(tenant_id):
        log.follow(tenant_id)
        log.number_unread(tenant_id)
        oldest, last = log.position_of_log(tenant_id)
    is_lost = after is not None and not oldest - 1 <= after <= last
    position = last if after is None or is_lost else after
    place = connection_limits.take(subscriber.principal, displacing=subscriber.session is not None)
    hub.here().displace(place.displaced)
    stream = Stream(subscriber=subscriber, event_filter=event_filter, position=position, seat=place.seat)
    return answer(environ, stream, reset(oldest, last) if is_lost else b"")


def answer(environ: Mapping[str, Any], stream: Stream, first: bytes = b"") -> StreamingHttpResponse:
    """Return the answer. It begins with the stream's position, and with `first`. The stream gets its socket when the answer is sent."""
    head = opening(stream.position) + first
    return StreamingHttpResponse(_Body(environ, stream, head), content_type=MEDIA_TYPE, headers=HEADERS)


class _Body:
    """The body of the answer. It also frees the stream's place if the client leaves before the first byte."""

    def __init__(self, environ: Mapping[str, Any], stream: Stream, head: bytes) -> None:
        self._stream = stream
        self._pieces = _send_stream(environ, stream, head)

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        self._pieces.close()
        if self._stream.socket is None:  # the hub does not have it
            connection_limits.leave(self._stream.subscriber.principal, self._stream.seat)


def _send_stream(environ: Mapping[str, Any], stream: Stream, head: bytes) -> Generator[bytes, None, None]:
    yield head  # the server sends it together with the headers
    connection: Any = environ.get("gunicorn.socket")
    if hasattr(connection, "hand_over"):
        stream.socket = connection.hand_over()
        stream.chunked = environ["SERVER_PROTOCOL"] != "HTTP/1.0"
        hub.here().adopt(stream)
        return
    # With any other server, its thread stays and forwards what the hub writes.
    stream.socket, ours = socket.socketpair()
    with ours:
        hub.here().adopt(stream)
        yield from _forward(ours)


def _forward(ours: socket.socket) -> Iterator[bytes]:
    # Such a server only notices that its client has left when it writes to it.
    ours.settimeout(PROBE_SECONDS)
    while True:
        try:
            data = ours.recv(65_536)
        except TimeoutError:
            data = PROBE
        if not data:
            return
        yield data
