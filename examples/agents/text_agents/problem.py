"""Problem documents (RFC 9457): all answers that are not results.

By the status the orchestrator decides what to do: it retries 5xx, retries 429 later without using up an
attempt, and ends the run after any other 4xx.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Problem(Exception):
    """The request is refused. The detail is shown to the caller."""

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
        """Return the problem document."""
        body: dict[str, Any] = {
            "status": self.status,
            "code": self.code,
            "title": self.code.replace("_", " "),
        }
        body["detail"] = self.detail
        return body | ({"errors": self.errors} if self.errors else {})


def malformed(path: str, message: str) -> Problem:
    """Return a 400 that names the invalid field."""
    detail = f"{path}: {message}" if path else message
    return Problem(400, "malformed_request", detail, errors=[{"path": path, "message": message}])


def nothing_to_read(detail: str) -> Problem:
    """Return a 422, for a valid request without any text to work on."""
    return Problem(422, "nothing_to_read", detail)
