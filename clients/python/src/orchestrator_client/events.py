"""The stream of events, as an iterator that reconnects automatically and continues after the last event.

It ends when the server has no more events (204), or raises the exception of a refusal. After lost connections, 429 and 503 it
reconnects: first after the server's `retry:` or `Retry-After`, then after longer delays, until the server sends something again. A
stream that is silent for longer than `SILENCE` seconds counts as lost, because the server sends comments in between.

`Decoder` parses server-sent events (WHATWG HTML, section 9.2) from chunks of any size. Only CR, LF or both end a line; other line
separators of Unicode do not.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, overload

import httpx

from orchestrator_client import transport
from orchestrator_client.calls import Described, Method, Resource
from orchestrator_client.errors import UnreadableAnswer
from orchestrator_client.operations import Operation, Prepared
from orchestrator_client.transport import AsyncSender, RetryPolicy, SyncSender, arguments_of

P = ParamSpec("P")

SILENCE = 60.0
MEDIA_TYPE = "text/event-stream"


class _Following:
    """The position in a stream, and the next step after each response and each error."""

    def __init__(self, request: Prepared, retries: RetryPolicy) -> None:
        query = dict(request.query)
        last_id = query.pop("last_event_id", None)
        self.decoder = Decoder(None if last_id is None else str(last_id))  # `events.list` has it as a number
        self._request = replace(request, query=query)
        self._retries = replace(retries, max_retries=2**31)
        self._in_vain = 0

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the next request. Each connection gets a new decoder, which keeps the last id."""
        last_id, retry_ms = self.decoder.last_id, self.decoder.retry_ms
        self.decoder = Decoder(last_id)
        self.decoder.retry_ms = retry_ms
        headers = {**self._request.headers, "Accept": MEDIA_TYPE, "Cache-Control": "no-store"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        patience = self._request.timeout or SILENCE
        return arguments_of(replace(self._request, headers=headers, timeout=patience))

    def opens(self, response: httpx.Response) -> bool:
        """Return whether the response is a stream of events. Raises UnreadableAnswer if it is a success without a stream."""
        if response.is_success and response.headers.get("content-type", "").startswith(MEDIA_TYPE):
            return True
        if response.is_success:
            raise UnreadableAnswer(f"{response.request.url} did not return a stream of events.")
        return False

    def events(self, chunk: bytes) -> Iterator[Event]:
        self._in_vain = 0  # also for comments: the connection was open, and the tenant is quiet
        yield from self.decoder.feed(chunk)

    def pause(self, outcome: httpx.Response | httpx.TransportError | None) -> float:
        """Return the seconds until the next connection. The outcome None means that the stream has ended. Raises a final refusal."""
        self._in_vain += 1
        requested = (self.decoder.retry_ms or 0) / 1000
        if outcome is None:
            outcome = httpx.ReadError("The stream has ended.")
        delay = self._retries.delay_after(outcome, self._in_vain - 1)
        if delay is None:
            transport.accepted(outcome, self._request)
        return max(requested, delay or 0.0)


class EventStream:
    """A stream for `for`. Store `last_event_id` to continue from there after a restart."""

    def __init__(self, sender: SyncSender, request: Prepared) -> None:
        self._sender = sender
        self._following = _Following(request, sender.retries)

    @property
    def last_event_id(self) -> str | None:
        return self._following.decoder.last_id

    def __iter__(self) -> Iterator[Event]:
        while True:
            outcome: httpx.Response | httpx.TransportError | None = None
            try:
                with self._sender.http.stream(**self._following.arguments()) as response:
                    if response.status_code == httpx.codes.NO_CONTENT:
                        return
                    if self._following.opens(response):
                        for chunk in response.iter_bytes():
                            yield from self._following.events(chunk)
                    else:
                        response.read()
                        outcome = response
            except httpx.TransportError as error:
                outcome = error
            self._sender.sleep(self._following.pause(outcome))


class AsyncEventStream:
    """A stream for `async for`."""

    def __init__(self, sender: AsyncSender, request: Prepared) -> None:
        self._sender = sender
        self._following = _Following(request, sender.retries)

    @property
    def last_event_id(self) -> str | None:
        return self._following.decoder.last_id

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            outcome: httpx.Response | httpx.TransportError | None = None
            try:
                async with self._sender.http.stream(**self._following.arguments()) as response:
                    if response.status_code == httpx.codes.NO_CONTENT:
                        return
                    if self._following.opens(response):
                        async for chunk in response.aiter_bytes():
                            for event in self._following.events(chunk):
                                yield event
                    else:
                        await response.aread()
                        outcome = response
            except httpx.TransportError as error:
                outcome = error
            await self._sender.sleep(self._following.pause(outcome))


class Streaming(Method[P]):
    """A method that returns a stream of events."""

    @overload
    def __get__(self, resource: None, owner: Any) -> Streaming[P]: ...

    @overload
    def __get__(self, resource: Resource[SyncSender], owner: Any) -> Callable[P, EventStream]: ...

    @overload
    def __get__(self, resource: Resource[AsyncSender], owner: Any) -> Callable[P, AsyncEventStream]: ...

    def __get__(self, resource: Any, owner: Any) -> Any:
        return self.bind(resource)

    def answer(self, sender: Any, request: Prepared) -> Any:
        streams: Any = AsyncEventStream if isinstance(sender, AsyncSender) else EventStream
        return streams(sender, request)


def STREAM(path: str) -> Callable[[Described[P]], Streaming[P]]:
    """Like `LIST`, for a stream of events."""

    def made(described: Described[P]) -> Streaming[P]:
        return Streaming(Operation("GET", path, Event, described))

    return made


_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r)")


@dataclass(frozen=True)
class Event:
    """An event: its `type`, its `data` (parsed if it is JSON, otherwise text), and its `id`, to continue after it."""

    type: str
    data: Any
    id: str | None = None


class Decoder:
    """Decodes chunks of bytes. `last_id` and `retry_ms` are the last values of the stream.
    An id is only stored when its event is complete, so that an incomplete event is sent again.
    """

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = self._id = last_id
        self.retry_ms: int | None = None
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._text = ""
        self._begun = False
        self._clear()

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that are now complete."""
        self._text += self._decode(chunk)
        if not self._begun and self._text:
            self._text, self._begun = self._text.removeprefix("\ufeff"), True
        for line in self._lines():
            event = self._line(line)
            if event is not None:
                yield event

    def _lines(self) -> Iterator[str]:
        while (found := _LINE.match(self._text)) is not None:
            if found[2] == "\r" and found.end() == len(self._text):
                return  # The LF of a CRLF may follow in the next chunk.
            self._text = self._text[found.end() :]
            yield found[1]

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._dispatched()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value)
        return None  # A comment, which keeps the connection open, or an unknown field.

    def _dispatched(self) -> Event | None:
        data, kind, self.last_id = self._data, self._type, self._id
        self._clear()
        if not data:
            return None
        return Event(kind or "message", _parsed("\n".join(data)), self.last_id)

    def _clear(self) -> None:
        self._data: list[str] = []
        self._type = ""


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
