"""An HTTP server and an SMTP server on loopback, which record what they receive and answer as the test says."""

from __future__ import annotations

import email
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson


@dataclass(frozen=True)
class Posted:
    """One request. Header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


#: Status, headers and body. None closes the connection without an answer.
Answer = tuple[int, dict[str, str], bytes] | None


@dataclass
class HttpReceiver:
    """Records each request, then answers with what `answer` returns."""

    port: int
    answer: Callable[[Posted], Answer] = lambda posted: (200, {}, b"ok")
    posted: list[Posted] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer_with(self, *answers: Answer) -> None:
        """Give these answers in order, and repeat the last one."""
        remaining = list(answers)
        self.answer = lambda posted: remaining.pop(0) if len(remaining) > 1 else remaining[0]


@contextmanager
def http_receiver() -> Iterator[HttpReceiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            posted = Posted(self.path, headers, body)
            receiver.posted.append(posted)
            answer = receiver.answer(posted)
            if answer is None:
                self.close_connection = True
                return
            status, headers, text = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver = HttpReceiver(server.server_address[1])
    with _serving(server):
        yield receiver


@dataclass
class MailReceiver:
    """An SMTP server. `refusals` gives a reply for a verb, such as {"RCPT": "550 nobody here"}.

    With `breaks_after_text` it reads the whole mail and closes the connection instead of confirming it.
    """

    port: int
    mails: list[Message] = field(default_factory=list)
    recipients: list[list[str]] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    breaks_after_text: bool = False


@contextmanager
def mail_receiver() -> Iterator[MailReceiver]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.reply("220 receiver")
            named: list[str] = []
            while line := self.rfile.readline():
                verb = line.decode().split(maxsplit=1)[0].strip().upper()
                if refusal := receiver.refusals.get(verb):
                    self.reply(refusal)
                elif verb == "DATA":
                    if not self.take(named):
                        return
                elif verb == "QUIT":
                    self.reply("221 bye")
                    return
                else:
                    if verb == "RCPT":
                        named.append(line.decode().partition("<")[2].partition(">")[0])
                    self.reply("250 fine")

        def take(self, named: list[str]) -> bool:
            self.reply("354 go on")
            text = b""
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                text += line
            receiver.mails.append(email.message_from_bytes(text))
            receiver.recipients.append(named[:])
            if receiver.breaks_after_text:
                return False
            self.reply("250 taken")
            return True

        def reply(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver = MailReceiver(server.server_address[1])
    with _serving(server):
        yield receiver


@contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
