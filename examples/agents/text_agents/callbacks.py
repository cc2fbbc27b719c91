"""Callbacks: reports of an agent that answered 202, and calls of the orchestrator's tools.

A report is repeated while the orchestrator cannot be reached, which is safe because callbacks are idempotent.
The answer may say that the run has ended (cancelled, superseded, out of time). Then the agent stops.
"""

from __future__ import annotations

import http.client
import json
import logging
import time
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

from .job import Callback
from .problem import Problem, malformed

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10
PAUSES_SECONDS = (
    0.1,
    0.3,
    1,
    3,
    10,
    30,
)  # longer than a restart of the orchestrator


class Stopped(Exception):
    """The run has ended for the orchestrator."""


class Reporter:
    """Reports on one run. Every method raises `Stopped` if the run has ended for the orchestrator."""

    def __init__(self, callback: Callback) -> None:
        self._address = _address_of(callback)
        self._headers = {"Authorization": f"Bearer {callback.token}", "Content-Type": "application/json"}

    def heartbeat(self, progress: dict[str, Any]) -> None:
        """Extend the lease of the run, and report its progress: `percent` and `message`."""
        self._report("heartbeat", {"progress": progress})

    def log(self, text: str) -> None:
        """Add a line to the log of the run. It is sent once, because nothing depends on it."""
        payload = json.dumps({"lines": [{"kind": "text", "text": text}]}, ensure_ascii=False)
        with suppress(OSError, http.client.HTTPException):
            self._post("log", payload.encode("utf-8", "replace"))

    def complete(self, result: dict[str, Any]) -> None:
        """Report the result, in the same shape as an answer of 200."""
        self._report("complete", result)

    def fail(self, problem: Problem) -> None:
        """Report that the work failed."""
        retryable = problem.status >= 500
        error = {"message": problem.detail, "code": problem.code, "retryable": retryable}
        self._report("fail", {"error": error})

    def use(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its answer. `stop` in it means that this run ends now. Raises `Problem` if the call is refused."""
        status, answer = self._deliver(f"tools/{tool}", arguments)
        if status == 409:
            raise Stopped(f"{tool} was called too late: {answer.get('reason', 'the run is over')}")
        if status >= 400:
            raise Problem(400, "tool_refused", f"{tool} was refused: {answer.get('detail', status)}")
        return answer

    def _report(self, verb: str, body: dict[str, Any]) -> None:
        status, answer = self._deliver(verb, body)
        _raise_if_stopped(verb, status, answer)

    def _deliver(self, verb: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Send the request, repeatedly while the orchestrator cannot be reached. Returns the status and the answer."""
        payload = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        for pause in (*PAUSES_SECONDS, None):
            try:
                status, answer = self._post(verb, payload)
            except (OSError, http.client.HTTPException):
                status, answer = 503, {}
            if status < 500 and (status != 429 or "quota" in answer):
                return status, answer
            if pause is not None:
                time.sleep(pause)
        raise Stopped(f"{verb} could not be delivered")

    def _post(self, verb: str, payload: bytes) -> tuple[int, dict[str, Any]]:
        secure = self._address.scheme == "https"
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = connect(self._address.hostname or "", self._address.port, timeout=TIMEOUT_SECONDS)
        path = f"{self._address.path.rstrip('/')}/{verb}/"
        try:
            connection.request("POST", path, body=payload, headers=self._headers)
            response = connection.getresponse()
            return response.status, _json_object(response.read())
        finally:
            connection.close()


def _address_of(callback: Callback) -> SplitResult:
    if not (callback.url + callback.token).isascii() or not callback.token.isprintable():
        raise malformed("callback", "must be plain ASCII")
    try:
        address = urlsplit(callback.url)
        usable = address.scheme in {"http", "https"} and bool(address.hostname) and address.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise malformed("callback.url", "must be an http or https address")
    return address


def _raise_if_stopped(verb: str, status: int, answer: dict[str, Any]) -> None:
    if answer.get("stop") or status >= 400:
        logger.info("Report answered with stop", extra={"action": "stopped", "verb": verb, "status": status})
        raise Stopped(f"{verb} was answered with {status}: {answer.get('reason', 'no reason')}")


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
