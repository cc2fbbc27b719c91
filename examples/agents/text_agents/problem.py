"""Refusals: every answer that is not a result is a problem document (RFC 9457).

The status tells the orchestrator what to do next: 5xx is tried again, 429 is tried later without using up an
attempt, any other 4xx ends the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Problem(Exception):
    """The request cannot be answered with a result. Printable and safe to show to the caller."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[dict[str, str]] = (),
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = list(errors)
        self.headers = list(headers)

    def document(self) -> dict[str, Any]:
        """The problem as the JSON object that is sent."""
        body: dict[str, Any] = {
            "status": self.status,
            "code": self.code,
            "title": self.code.replace("_", " "),
        }
        body["detail"] = self.detail
        return body | ({"errors": self.errors} if self.errors else {})


def malformed(path: str, message: str) -> Problem:
    """A 400 that names the one field which is wrong."""
    detail = f"{path}: {message}" if path else message
    return Problem(400, "malformed_request", detail, errors=[{"path": path, "message": message}])


def nothing_to_read(detail: str) -> Problem:
    """A 422: the request is well formed, but there is no text in it to work on."""
    return Problem(422, "nothing_to_read", detail)
