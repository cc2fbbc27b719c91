"""Checks of API responses."""

from __future__ import annotations

from typing import Any

import orjson


def problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """Return the body of a problem after checking its status, its code and what all problems have in common."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = orjson.loads(response.content)
    assert {"type", "title", "status", "detail", "code", "request_id"} <= set(body)
    assert (body["status"], body["code"]) == (status, code)
    assert body["request_id"] == response["X-Request-Id"]
    return body


def version_of(response: Any) -> str:
    """Return the version of the object in a response, which its `ETag` begins with."""
    return str(response["ETag"]).strip('"').partition("-")[0]
