"""The HTTP server: reads a call, counts it against the limits, and answers as the script says."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs

from benchmarks.fake_provider import anthropic_protocol, openai_protocol
from benchmarks.fake_provider.batches import Batches
from benchmarks.fake_provider.limits import Limits, Meter, anthropic_headers, openai_headers
from benchmarks.fake_provider.recorder import Call, Recorder
from benchmarks.fake_provider.script import Fault, Turn

Answering = Callable[[Mapping[str, Any]], Turn | Fault]
PROTOCOLS = {"/v1/messages": anthropic_protocol, "/v1/chat/completions": openai_protocol}


class FakeProvider:
    """A server on the loopback interface for the duration of its `with` block.

    `key`: the credential that callers need. `work_seconds`: minimum duration of a call.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        key: str | None = None,
        work_seconds: float = 0.0,
    ) -> None:
        self.meter, self.recorder, self.batches = Meter(limits or Limits()), Recorder(), Batches()
        self.key, self.work_seconds = key, work_seconds
        self.default: Answering = lambda body: Turn("All right.")
        self.stopping = threading.Event()
        self._script: deque[Turn | Fault] = deque()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.provider = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="provider", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def anthropic_url(self) -> str:
        return f"http://{self.place}"

    @property
    def openai_url(self) -> str:
        return f"http://{self.place}/v1"

    def script(self, *steps: Turn | Fault) -> None:
        """Set the answers of the next calls, in order. After them `default` returns the answer."""
        self._script.extend(steps)

    def next_step(self, body: Mapping[str, Any]) -> tuple[Turn | Fault, bool]:
        """Return the step, and whether it is from the script."""
        try:
            return self._script.popleft(), True
        except IndexError:
            return self.default(body), False

    def put_back(self, step: Turn | Fault) -> None:
        self._script.appendleft(step)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    block_on_close = False
    provider: FakeProvider

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors, because some tests disconnect in the middle."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because there is a recorder."""

    def do_GET(self) -> None:
        self._record(None)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self._record(json.loads(raw) if raw else {})
        except json.JSONDecodeError:
            self._json(400, {"error": {"message": "not JSON"}})

    def _record(self, body: Any) -> None:
        recorder = self.server.provider.recorder
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.call: Call = recorder.begin(self.path, headers, body)
        early = True
        try:
            self._route(body)
            early = False
        except _ClientGone:
            self.close_connection = True
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            recorder.end(self.call, closed_early=early)

    def _route(self, body: Any) -> None:
        path = self.path.partition("?")[0]
        if not self._has_key():
            self._json(
                401,
                anthropic_protocol.error(
                    401, f"invalid key: {self.headers.get('x-api-key') or self.headers.get('authorization')}"
                ),
            )
        elif path.startswith("/v1/messages/batches"):
            self._batch(path.removeprefix("/v1/messages/batches").strip("/"), body)
        elif path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": "fake", "object": "model"}]})
        elif path in PROTOCOLS and body is not None:
            self._answer(PROTOCOLS[path], body)
        else:
            self._json(404, anthropic_protocol.error(404, "no such path"))

    def _has_key(self) -> bool:
        key = self.server.provider.key
        return (
            key is None
            or key == self.headers.get("x-api-key")
            or f"Bearer {key}" == self.headers.get("authorization")
        )

    def _batch(self, rest: str, body: Any) -> None:
        batches = self.server.provider.batches
        batch_id, _, what = rest.partition("/")
        if not batch_id:
            self._create_batch(body) if body is not None else self._json(
                200, batches.list_page(self._query())
            )
        elif what == "results":
            status, lines = batches.results(batch_id)
            self._send(status, lines, "application/x-jsonl")
        elif what == "cancel":
            self._json(*batches.cancel(batch_id))
        else:
            self._json(*batches.retrieve(batch_id))

    def _create_batch(self, body: Any) -> None:
        batches = self.server.provider.batches
        if (fault := batches.refusal()) is not None:
            self._fail(anthropic_protocol, fault, body)
            return
        status, document = batches.create(body)
        if batches.keeps_answer():
            raise _ClientGone
        self._json(status, document)

    def _query(self) -> dict[str, list[str]]:
        return parse_qs(self.path.partition("?")[2])

    def _answer(self, protocol: Any, body: Mapping[str, Any]) -> None:
        provider = self.server.provider
        step, scripted = provider.next_step(body)
        cost = step.cost(body) if isinstance(step, Turn) else Turn().cost(body)
        wait = provider.meter.admit(cost[0])
        if wait is not None:
            if scripted:
                provider.put_back(step)
            after = f"{wait:.3f}"
            self._json(
                429,
                protocol.error(429, "over the limit", "rate_limit_error"),
                {"retry-after": after, **self._limits(protocol)},
            )
            return
        if provider.work_seconds:
            provider.stopping.wait(provider.work_seconds)
        if isinstance(step, Fault):
            self._fail(protocol, step, body)
            return
        provider.meter.produced(cost[1])
        if not body.get("stream"):
            whole = protocol.message if protocol is anthropic_protocol else protocol.completion
            self._json(200, whole(step, body), self._limits(protocol))
            return
        self._stream(protocol.events(step, body), self._limits(protocol), step.pause_seconds)

    def _limits(self, protocol: Any) -> dict[str, str]:
        left = self.server.provider.meter.left()
        return anthropic_headers(left) if protocol is anthropic_protocol else openai_headers(left)

    def _fail(self, protocol: Any, fault: Fault, body: Mapping[str, Any]) -> None:
        if fault.kind == "status":
            more = {"retry-after": fault.retry_after} if fault.retry_after is not None else {}
            kind = None if fault.type == "api_error" else fault.type
            self._json(fault.status, protocol.error(fault.status, fault.message, kind), more)
        elif fault.kind == "malformed":
            stream = bool(body.get("stream"))
            text = b"event: message_start\ndata: {no json\n\n" if stream else b"{no json"
            self._send(200, text, "text/event-stream" if stream else "application/json")
        else:
            beginning = list(protocol.events(Turn("The beginning of a long answer"), body))[:4]
            if fault.kind == "error":
                own = protocol is anthropic_protocol
                failure = {"type": fault.type, "message": fault.message}
                beginning.append(
                    anthropic_protocol.event("error", error=failure)
                    if own
                    else openai_protocol.error_event(fault.message, fault.type)
                )
            self._stream(iter(beginning), {}, 0.0, ends=fault.kind == "error")
            if fault.kind == "hang":
                self._wait_until_gone()
            raise _ClientGone

    def _stream(
        self, events: Iterator[bytes], headers: Mapping[str, str], pause: float, ends: bool = True
    ) -> None:
        self.call.status = 200
        self.send_response(200)
        for name, value in {
            "Content-Type": "text/event-stream",
            "Transfer-Encoding": "chunked",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        for event in events:
            self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            self.wfile.flush()
            if pause and (self.server.provider.stopping.wait(pause) or self._is_gone()):
                raise _ClientGone
        if ends:
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()

    def _wait_until_gone(self) -> None:
        while not self.server.provider.stopping.is_set() and not self._is_gone():
            time.sleep(0.01)

    def _is_gone(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""

    def _json(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        self._send(status, json.dumps(body).encode(), "application/json", headers)

    def _send(
        self, status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.call.status = status
        self.send_response(status)
        for name, value in {
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


class _ClientGone(Exception):
    """The connection was closed by the client or by the script."""
