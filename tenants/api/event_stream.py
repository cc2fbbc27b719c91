"""Answers with a stream of server-sent events: begun by the request's thread, carried on by the hub."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import Any

from django.http import StreamingHttpResponse
from rest_framework.renderers import BaseRenderer

from tenants.api.renderers import dumps
from tenants.events import hub
from tenants.events.stream import Stream, opening

MEDIA_TYPE = "text/event-stream"

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


def answer(environ: Mapping[str, Any], stream: Stream, first: bytes = b"") -> StreamingHttpResponse:
    """The answer that begins with where the stream is, and with `first`. `stream` gets its socket here."""
    begun = opening(stream.position) + first
    return StreamingHttpResponse(_carried(environ, stream, begun), content_type=MEDIA_TYPE, headers=HEADERS)


def _carried(environ: Mapping[str, Any], stream: Stream, begun: bytes) -> Iterator[bytes]:
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
        while data := ours.recv(65_536):
            yield data
