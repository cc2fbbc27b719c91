"""The job: the validated body of a POST from the orchestrator.

Unknown fields are ignored, so a newer orchestrator does not break the agents. Control characters and broken
surrogates are replaced by one character each, so offsets in a text stay correct.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .problem import malformed

UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffd-\uffff]")


@dataclass(frozen=True, slots=True)
class Callback:
    """The address and the token for reports on one run."""

    url: str
    token: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a skill."""

    content: str
    data: dict[str, Any]
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work. `content` and `data` are the input; `params` are the step's settings."""

    role: str
    job_id: str
    execution_id: str
    tenant_id: str
    params: Mapping[str, Any]
    prompt: str
    content: str
    data: Any
    wake_reason: str
    wakes: Sequence[Mapping[str, Any]]
    rejected: bool
    reviewer_notes: str
    session_id: str | None
    callback: Callback | None

    @property
    def text(self) -> str:
        """The text to work on: the content of the input, else `params.text`."""
        return self.content if self.content.strip() else self.word("text")

    def word(self, name: str, default: str = "") -> str:
        """Return a parameter that must be a string."""
        value = self.params.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise malformed(f"params.{name}", "must be a string")
        return value

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        """Return a parameter that must be a number, limited to these bounds."""
        value = self.params.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise malformed(f"params.{name}", "must be a number")
        return int(max(least, min(most, value)))


def read(role: str, headers: Mapping[str, str], raw: bytes) -> Job:
    """Parse a request body. Raises a 400 `Problem` that names the invalid field."""
    body = _parse(raw)
    job_input = _join_inputs(_object(body, "input"))
    return Job(
        role=role,
        job_id=headers.get("X-Job-Id") or _string(body, "job_id"),
        execution_id=headers.get("X-Execution-Id") or _string(body, "execution_id"),
        tenant_id=_string(body, "tenant_id"),
        params=_object(body, "params"),
        prompt=_string(body, "prompt"),
        content=_string(job_input, "content", "input."),
        data=job_input.get("data"),
        wake_reason=_string(body, "wake_reason"),
        wakes=_wakes(body),
        rejected="rejection" in _wake_reasons(body),
        reviewer_notes=_reviewer_notes(body),
        session_id=_string(body, "session_id") or None,
        callback=_callback(body),
    )


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        body = _printable(json.loads(raw.decode("utf-8")))
    except (ValueError, RecursionError) as error:
        raise malformed("", "the body is not JSON in UTF-8") from error
    if not isinstance(body, dict):
        raise malformed("", "the body is not a JSON object")
    return body


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return UNPRINTABLE.sub(" ", value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {UNPRINTABLE.sub(" ", key): _printable(item) for key, item in value.items()}
    return value


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise malformed(name, "must be an object")
    return value


def _join_inputs(job_input: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the input. Several inputs become one: the texts are joined, and the data are keyed by the step's name."""
    steps = {name: step for name, step in _object(job_input, "steps").items() if isinstance(step, dict)}
    if not steps or job_input.get("content") or job_input.get("data"):
        return job_input
    texts = [_string(step, "content", "input.steps.") for step in steps.values()]
    return {"content": "\n\n".join(texts), "data": {name: step.get("data") for name, step in steps.items()}}


def _string(body: Mapping[str, Any], name: str, prefix: str = "") -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise malformed(f"{prefix}{name}", "must be a string")
    return value


def _wakes(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the wakes of this run, oldest first."""
    wakes = body.get("wakes") or []
    if not isinstance(wakes, list) or not all(isinstance(wake, dict) for wake in wakes):
        raise malformed("wakes", "must be a list of objects")
    return wakes


def _wakes_with_newest(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the wakes, and the newest one again as the body itself describes it."""
    return [*_wakes(body), {"reason": body.get("wake_reason"), "reviewer_notes": body.get("reviewer_notes")}]


def _wake_reasons(body: Mapping[str, Any]) -> set[str]:
    return {str(wake.get("reason")) for wake in _wakes_with_newest(body)}


def _reviewer_notes(body: Mapping[str, Any]) -> str:
    notes = [_string(wake, "reviewer_notes") for wake in _wakes_with_newest(body)]
    return "\n".join(dict.fromkeys(note for note in notes if note.strip()))


def _callback(body: Mapping[str, Any]) -> Callback | None:
    given = _object(body, "callback")
    if not given:
        return None
    return Callback(url=_string(given, "url", "callback."), token=_string(given, "token", "callback."))
