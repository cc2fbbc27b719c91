"""Reads the format of server-sent events (WHATWG HTML, section 9.2), whatever pieces it arrives in. Pure.

Lines end with CR, LF or both and with nothing else: a line separator of Unicode inside of a text ends none.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r)")


@dataclass(frozen=True)
class Event:
    """What happened: its `type`, its `data` (JSON where it is JSON, else text), and the `id` after which to go on."""

    type: str
    data: Any
    id: str | None = None


class Decoder:
    """Feed it bytes as they come. `last_id` and `retry_ms` are what the stream has set so far.

    An id counts once its event is complete: one that was cut off comes again.
    """

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = self._id = last_id
        self.retry_ms: int | None = None
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._text = ""
        self._begun = False
        self._clear()

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that are complete now."""
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
                return  # The other half of a CRLF may be on its way.
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
        return None  # A comment, which keeps the connection open, or a field of another time.

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
