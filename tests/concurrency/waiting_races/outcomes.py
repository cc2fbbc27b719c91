"""The statuses of simultaneous answers."""

from __future__ import annotations

from typing import Any

DOWN = {"type": "api_outage", "message": "It is down."}
TRIES = 5


def statuses(answers: list[Any]) -> list[int]:
    """Return the status codes of answers of the API."""
    return [answer.status_code for answer in answers]
