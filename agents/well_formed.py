"""The last look at a result before it may reach the database, whichever adapter it came from.

Adapters are many and some are young. What passes here has the promised types, can be stored in PostgreSQL and
MongoDB, and is not larger than an answer over HTTP may be.
"""

from __future__ import annotations

import orjson
from django.conf import settings

from agents.contracts import Accepted, Completed, Output, Parked, Usage
from tenants import strict_json

from .response_parser import MAX_CONTENT_TYPE, MAX_SESSION_ID, MAX_TOKENS, InvalidAnswer


def require(result: object) -> None:
    """Raise `InvalidAnswer` unless this is a usable `AgentResult`."""
    if isinstance(result, Parked):
        _require_storable(result.body, "body")
        return
    if not isinstance(result, Accepted | Completed):
        raise InvalidAnswer(("", f"the adapter returned a {type(result).__name__}"))
    if result.session_id is not None:
        _require_text(result.session_id, "session_id")
        if len(result.session_id) > MAX_SESSION_ID:
            raise InvalidAnswer(("session_id", f"must have at most {MAX_SESSION_ID} characters"))
    if isinstance(result, Accepted):
        return
    if not isinstance(result.output, Output):
        raise InvalidAnswer(("output", f"is a {type(result.output).__name__}"))
    _require_output(result.output)
    if result.usage is not None:
        _require_usage(result.usage)


def _require_output(output: Output) -> None:
    size = 0
    if output.content is not None:
        size += _require_text(output.content, "output.content")
    if _require_text(output.content_type, "output.content_type") > MAX_CONTENT_TYPE:
        raise InvalidAnswer(("output.content_type", f"must have at most {MAX_CONTENT_TYPE} characters"))
    if output.data is not None:
        _require_storable(output.data, "output.data")
        size += len(orjson.dumps(output.data))
    if size > settings.ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES:
        raise InvalidAnswer(
            ("output", f"is larger than {settings.ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES} bytes")
        )


def _require_text(text: object, path: str) -> int:
    if not isinstance(text, str):
        raise InvalidAnswer((path, "must be text"))
    _require_storable(text, path)
    return len(text) if text.isascii() else len(text.encode())


def _require_storable(value: object, path: str) -> None:
    try:
        strict_json.check(value)
    except strict_json.StrictJSONError as error:
        separator = "." if error.path and not error.path.startswith("[") else ""
        raise InvalidAnswer((f"{path}{separator}{error.path}", error.message)) from error


def _require_usage(usage: object) -> None:
    if not isinstance(usage, Usage):
        raise InvalidAnswer(("usage", f"is a {type(usage).__name__}"))
    for name in ("input_tokens", "output_tokens"):
        count = getattr(usage, name)
        if not isinstance(count, int) or not 0 <= count <= MAX_TOKENS:
            raise InvalidAnswer((f"usage.{name}", "must be a whole number from 0"))
    if usage.cost_usd is not None and not (usage.cost_usd.is_finite() and usage.cost_usd >= 0):
        raise InvalidAnswer(("usage.cost_usd", "must be a number from 0"))
    if usage.model is not None:
        _require_text(usage.model, "usage.model")
