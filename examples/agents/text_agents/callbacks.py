"""Callbacks: how an agent that answered 202 reports on its run later, and how any agent uses the orchestrator's tools.

A report is repeated while the orchestrator cannot be reached; it treats a repetition as the same report. The
answer may say that the run is over (cancelled, superseded, out of time): then the agent stops and reports
nothing more.
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
)  # Outlasts a restart of the orchestrator; then its lease takes over.


class Stopped(Exception):
    """The orchestrator no longer wants this run."""


class Reporter:
    """Reports on one run. Every method raises `Stopped` when the run is not wanted any more."""

    def __init__(self, callback: Callback) -> None:
        self._address = _address_of(callback)
        self._headers = {"Authorization": f"Bearer {callback.token}", "Content-Type": "application/json"}

    def heartbeat(self, progress: dict[str, Any]) -> None:
        """Say that the work goes on, and how far it is: `percent` and a `message`."""
        self._report("heartbeat", {"progress": progress})

    def log(self, text: str) -> None:
        """Add a line to what people see of the run. Nothing depends on it, so it is said once."""
        payload = json.dumps({"lines": [{"kind": "text", "text": text}]}, ensure_ascii=False)
        with suppress(OSError, http.client.HTTPException):
            self._post("log", payload.encode("utf-8", "replace"))

    def complete(self, result: dict[str, Any]) -> None:
        """Hand in the result, in the shape that an answer of 200 would have had."""
        self._report("complete", result)

    def fail(self, problem: Problem) -> None:
        """Say that the work cannot be done."""
        retryable = problem.status >= 500
        error = {"message": problem.detail, "code": problem.code, "retryable": retryable}
        self._report("fail", {"error": error})

    def use(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Use a tool; its answer. `stop` in it means that the run is over for now. Raises `Problem` for a refused call."""
        status, answer = self._delivered(f"tools/{tool}", arguments)
        if status == 409:
            raise Stopped(f"{tool} came too late: {answer.get('reason', 'the run is over')}")
        if status >= 400:
            raise Problem(400, "tool_refused", f"{tool} was refused: {answer.get('detail', status)}")
        return answer

    def _report(self, verb: str, body: dict[str, Any]) -> None:
        status, answer = self._delivered(verb, body)
        _heed(verb, status, answer)

    def _delivered(self, verb: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Post it, again while the orchestrator cannot be reached; what it answered. It takes a repetition for the same call."""
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


def _heed(verb: str, status: int, answer: dict[str, Any]) -> None:
    if answer.get("stop") or status >= 400:
        logger.info("Report answered with stop", extra={"action": "stopped", "verb": verb, "status": status})
        raise Stopped(f"{verb} was answered with {status}: {answer.get('reason', 'no reason')}")


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
