"""An HTTP agent that accepts every job with 202 and calls back later. Jobs with the parameter `at_once` are answered immediately."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

from agents.contracts import Callback


@dataclass(frozen=True, slots=True)
class Answer:
    """The orchestrator's answer to a callback."""

    status: int
    body: Mapping[str, Any]


@dataclass
class CallbackAgent:
    """A server for the duration of the `with` block. `open`: the callbacks of the accepted runs, in the order of their arrival."""

    open: list[Callback] = field(default_factory=list)

    def __enter__(self) -> CallbackAgent:
        agent = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if job["params"].get("at_once"):
                    return self._answer(200, b'{"output": {"content": "at once"}}')
                agent.open.append(Callback(job["callback"]["url"], job["callback"]["token"]))
                return self._answer(202, b"{}")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


def call_back(runs: Sequence[Callback], path: str, body: Mapping[str, Any], callers: int) -> Iterator[Answer]:
    """Send this callback for every run, with `callers` threads."""
    with httpx2.Client(timeout=60.0, trust_env=False) as http, ThreadPoolExecutor(callers) as pool:

        def call(run: Callback) -> Answer:
            response = http.post(
                f"{run.url}{path}", json=dict(body), headers={"Authorization": f"Bearer {run.token}"}
            )
            return Answer(response.status_code, response.json())

        yield from pool.map(call, runs)
