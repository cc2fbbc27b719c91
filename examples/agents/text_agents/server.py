"""The server: one thread per connection, one path per skill.

    POST   /<skill>    a job of the orchestrator
    GET    /healthz    200 while the process serves
    GET    /recorder   the recorded calls; DELETE resets them

No request ends the process: an invalid one is answered with a problem document, an error in a skill with 500.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from . import job, signature
from .problem import Problem
from .skills import all_skills
from .work import Workshop

logger = logging.getLogger(__name__)

LARGEST_BODY = 8 * 1024 * 1024  # One megabyte of text may take six when JSON escapes every character.


class AgentServer(ThreadingHTTPServer):
    """Serves all skills. Unsigned requests are accepted only if there is no secret."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, host: str, port: int, *, secrets: Sequence[str] = ()) -> None:
        self.keys = [signature.key_of(secret) for secret in secrets]
        self.skills = all_skills()
        self.workshop = Workshop()
        super().__init__((host, port), AgentHandler)

    @property
    def url(self) -> str:
        """The address on which the server listens."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Log the error, unless the caller has closed the connection."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            logger.error("Connection failed", exc_info=error, extra={"action": "connection_failed"})


class AgentHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    timeout = 120  # seconds that an idle connection is kept
    wbufsize = -1  # Head and body leave in one packet, or each answer would wait for an acknowledgement.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Return the health or the records."""
        if self.path == "/healthz":
            self._send(200, {"status": "ok", "skills": sorted(self._agents.skills)})
        elif self.path == "/recorder":
            self._send(200, self._agents.workshop.recorder.as_json())
        else:
            self._refuse(self._no_such_path("POST"))

    def do_DELETE(self) -> None:
        """Reset the records."""
        if self.path != "/recorder":
            self._refuse(self._no_such_path("POST"))
            return
        self._agents.workshop.recorder.reset()
        self._send(200, {"status": "reset"})

    def do_POST(self) -> None:
        """Do one job."""
        try:
            raw = self._body()
            status, answer = self._work_on(raw)
            self._send(status, answer)
        except Problem as problem:
            self._refuse(problem)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log one line per request, at the level INFO."""
        logger.info(format, *arguments)

    @property
    def _agents(self) -> AgentServer:
        return cast(AgentServer, self.server)

    def _work_on(self, raw: bytes) -> tuple[int, dict[str, Any]]:
        if self._agents.keys:
            signature.verify(self._agents.keys, cast(Mapping[str, str], self.headers), raw)
        role = self.path.strip("/")
        skill = self._agents.skills.get(role)
        if skill is None:
            raise self._no_such_path("GET")
        return self._agents.workshop.take(job.read(role, cast(Mapping[str, str], self.headers), raw), skill)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self.close_connection = True
            raise Problem(411, "length_required", "Content-Length is needed")
        if int(length) > LARGEST_BODY:
            self.close_connection = True  # The body stays unread, so nothing after it can be understood.
            raise Problem(413, "too_large", f"A body may have {LARGEST_BODY} bytes")
        return self.rfile.read(int(length))

    def _no_such_path(self, other_method: str) -> Problem:
        known = {"POST": set(self._agents.skills), "GET": {"healthz", "recorder"}}
        if self.path.strip("/") in known[other_method]:
            allow = [("Allow", other_method)]
            return Problem(405, "method_not_allowed", f"{self.path} takes {other_method}", headers=allow)
        paths = ", ".join(f"/{name}" for name in sorted(self._agents.skills))
        return Problem(404, "not_found", f"There is no {self.path[:100]} here; there are {paths}")

    def _refuse(self, problem: Problem) -> None:
        self._send(problem.status, problem.document(), "application/problem+json", problem.headers)

    def _send(
        self,
        status: int,
        body: Mapping[str, Any],
        content_type: str = "application/json",
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        payload = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(payload)))
        for name, value in headers:
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(payload)
