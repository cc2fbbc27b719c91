"""Answers with a stream of server-sent events: begun by the request's thread, carried on by the hub."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from django.conf import settings
from django.http import StreamingHttpResponse
from rest_framework.renderers import BaseRenderer

from tenants.context import tenant_scope
from tenants.events import connection_limits, hub, log
from tenants.events.connection_limits import TooManyStreams
from tenants.events.log import EventFilter
from tenants.events.stream import Stream, Subscriber, opening, reset
from tenants.wire_json import dumps

MEDIA_TYPE = "text/event-stream"

FEEL_SECONDS = 0.5  # two writes are needed to find out: the first still seems to succeed
FEEL = b":\n\n"  # a comment, which clients pass over

HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # a proxy in front that collects what it gets would make events late
}


class EventStreamRenderer(BaseRenderer):
    """Lets clients ask for the stream. It renders problems alone, which are JSON with a type of their own."""

    media_type = MEDIA_TYPE
    format = "stream"
    charset = None

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        return dumps(data)


def follow(
    environ: Mapping[str, Any], bearer: Subscriber, event_filter: EventFilter, after: int | None
) -> StreamingHttpResponse:
    """The answer that carries what the bearer wants, from behind `after`, or with None from now on. One whose number is not kept any more
    is told so, and gets what happens from now on. A person's newest stream takes the place of their oldest where there is none free; a
    program is refused. Raises `TooManyStreams`.
    """
    if hub.here().size() >= settings.ORCHESTRATOR_STREAMS_PER_PROCESS:
        raise TooManyStreams("This server has as many streams open as it may. Come back in a moment.")
    tenant_id = bearer.principal.tenant_id
    with tenant_scope(tenant_id):
        log.follow(tenant_id)
        log.number_unread(tenant_id)
        oldest, last = log.position_of_log(tenant_id)
    gone = after is not None and not oldest - 1 <= after <= last
    position = last if after is None or gone else after
    place = connection_limits.take(bearer.principal, displacing=bearer.session is not None)
    hub.here().displace(place.displaced)
    stream = Stream(bearer=bearer, wanted=event_filter, position=position, seat=place.seat)
    return answer(environ, stream, reset(oldest, last) if gone else b"")


def answer(environ: Mapping[str, Any], stream: Stream, first: bytes = b"") -> StreamingHttpResponse:
    """The answer that begins with where the stream is, and with `first`. `stream` gets its socket here."""
    begun = opening(stream.position) + first
    return StreamingHttpResponse(_Body(environ, stream, begun), content_type=MEDIA_TYPE, headers=HEADERS)


class _Body:
    """What the server sends. A client that goes before it gets anything gives the seat back as well."""

    def __init__(self, environ: Mapping[str, Any], stream: Stream, begun: bytes) -> None:
        self._stream = stream
        self._pieces = _carry_stream(environ, stream, begun)

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        self._pieces.close()
        if self._stream.socket is None:  # nobody has begun to carry it
            connection_limits.leave(self._stream.bearer.principal, self._stream.seat)


def _carry_stream(environ: Mapping[str, Any], stream: Stream, begun: bytes) -> Generator[bytes, None, None]:
    yield begun  # with it the server sends the head of the answer
    connection: Any = environ.get("gunicorn.socket")
    if hasattr(connection, "hand_over"):
        stream.socket = connection.hand_over()
        stream.chunked = environ["SERVER_PROTOCOL"] != "HTTP/1.0"
        hub.here().adopt(stream)
        return
    # Any other server: its thread stays, and passes on what the hub would write to the client.
    stream.socket, ours = socket.socketpair()
    with ours:
        hub.here().adopt(stream)
        yield from _pass_on(ours)


def _pass_on(ours: socket.socket) -> Iterator[bytes]:
    # Such a server learns that its client has gone by writing to it, and from nothing else.
    ours.settimeout(FEEL_SECONDS)
    while True:
        try:
            data = ours.recv(65_536)
        except TimeoutError:
            data = FEEL
        if not data:
            return
        yield data
