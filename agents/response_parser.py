"""Parses an agent's answer into a result, or raises an error with all its problems by path.

The same rules apply to an immediate answer, a callback that completes a run, and an inline agent's
dictionary. Unknown keys are ignored, so that agents may be newer than the orchestrator.

`require_well_formed` is the last check of a result before it may reach the database, whichever adapter returned it. A result that passes
has the promised types, can be stored in PostgreSQL and MongoDB, and is within the size limit of answers over HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson
from django.conf import settings

from agents.contracts import Accepted, Completed, Output, Parked, Usage
from agents.exceptions import PermanentAgentError
from tenants import strict_json
from tenants.wire_json import whole_number

MAX_SESSION_ID = 200
MAX_CONTENT_TYPE = 100
MAX_MODEL = 200
MAX_TOKENS = 10**12  # sums of a million such runs still fit 64 bits
MAX_COST_USD = Decimal(1_000_000)  # per run; more must be an error of units

_CONTENT_TYPE = re.compile(
    r"[a-z0-9!#$&^_.+-]{1,64}/[a-z0-9!#$&^_.+-]{1,64}(?:; ?[\x20-\x7e]{1,64})?", re.IGNORECASE
)
_DECIMAL = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,12})?")


class InvalidAnswer(PermanentAgentError):
    """The agent's answer does not have the agreed form. `errors` holds (path, message) pairs, `usage` what it has reported nevertheless."""

    code = "invalid_agent_answer"

    def __init__(self, *errors: tuple[str, str], usage: Usage | None = None) -> None:
        listed = "; ".join(f"{path} {message}" if path else message for path, message in errors)
        super().__init__(f"The agent's answer is invalid: {listed}.")
        self.errors = errors
        self.usage = usage


def read_completed(answer: Any) -> Completed:
    """Read `{output: {content?, data?, content_type?}, usage?, session_id?}`. Raises `InvalidAnswer`."""
    errors: list[tuple[str, str]] = []
    if not isinstance(answer, Mapping):
        raise InvalidAnswer(("", "it must be a JSON object"))
    output = _output(answer.get("output"), errors)
    before = len(errors)
    usage = usage_from(answer.get("usage"), errors)
    readable_usage = usage if len(errors) == before else None
    session_id = session_id_from(answer.get("session_id"), errors)
    if errors:
        raise InvalidAnswer(*errors, usage=readable_usage)
    return Completed(output, usage, session_id)


def session_of_acceptance(answer: Any) -> str | None:
    """Return the session that an agent reports when it accepts its work. The rest of the answer is ignored."""
    session_id = answer.get("session_id") if isinstance(answer, Mapping) else None
    return session_id_from(session_id, [])


def session_id_from(session_id: Any, errors: list[tuple[str, str]]) -> str | None:
    """Read the id of a session. Problems are added to `errors`."""
    return _text(session_id, "session_id", MAX_SESSION_ID, errors)


def usage_from(usage: Any, errors: list[tuple[str, str]]) -> Usage | None:
    """Read `{input_tokens, output_tokens, cost_usd?, model?}`. Problems are added to `errors`."""
    if usage is None:
        return None
    if not isinstance(usage, Mapping):
        errors.append(("usage", "must be an object"))
        return None
    return Usage(
        input_tokens=_tokens(usage.get("input_tokens"), "usage.input_tokens", errors),
        output_tokens=_tokens(usage.get("output_tokens"), "usage.output_tokens", errors),
        cost_usd=_cost(usage.get("cost_usd"), errors),
        model=_text(usage.get("model"), "usage.model", MAX_MODEL, errors),
    )


def _output(output: Any, errors: list[tuple[str, str]]) -> Output:
    if not isinstance(output, Mapping):
        errors.append(("output", "is required and must be an object"))
        return Output()
    content = output.get("content")
    if content is not None and not isinstance(content, str):
        errors.append(("output.content", "must be text"))
    content_type = output.get("content_type")
    if content_type is None:
        return Output(content=content, data=output.get("data"))
    if not isinstance(content_type, str) or not _CONTENT_TYPE.fullmatch(content_type):
        errors.append(("output.content_type", "must be a media type such as text/markdown"))
    elif len(content_type) > MAX_CONTENT_TYPE:
        errors.append(("output.content_type", f"must have at most {MAX_CONTENT_TYPE} characters"))
    return Output(content=content, data=output.get("data"), content_type=content_type)


def _tokens(count: Any, path: str, errors: list[tuple[str, str]]) -> int:
    if count is None:
        return 0
    number = whole_number(count)
    if number is None or not 0 <= number <= MAX_TOKENS:
        errors.append((path, f"must be a whole number from 0 to {MAX_TOKENS}"))
        return 0
    return number


def _cost(cost: Any, errors: list[tuple[str, str]]) -> Decimal | None:
    """Accept a number or, to keep cents exact, a decimal as text."""
    if cost is None:
        return None
    if isinstance(cost, (int, float)) and not isinstance(cost, bool):
        exact = Decimal(str(cost))
    elif isinstance(cost, str) and _DECIMAL.fullmatch(cost):
        exact = Decimal(cost)
    else:
        errors.append(("usage.cost_usd", "must be a number from 0"))
        return None
    if not exact.is_finite() or not 0 <= exact <= MAX_COST_USD:
        errors.append(("usage.cost_usd", f"must be a number from 0 to {MAX_COST_USD}"))
    return exact


def _text(text: Any, path: str, longest: int, errors: list[tuple[str, str]]) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str) or not 0 < len(text) <= longest:
        errors.append((path, f"must be text of 1 to {longest} characters"))
        return None
    return text


def require_well_formed(result: object) -> None:
    """Raise `InvalidAnswer` unless this is a usable `AgentResult`."""
    if isinstance(result, Parked):
        require_storable(result.body, "body")
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
        require_storable(output.data, "output.data")
        size += len(orjson.dumps(output.data))
    if size > settings.ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES:
        raise InvalidAnswer(
            ("output", f"is larger than {settings.ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES} bytes")
        )


def _require_text(text: object, path: str) -> int:
    if not isinstance(text, str):
        raise InvalidAnswer((path, "must be text"))
    require_storable(text, path)
    return len(text) if text.isascii() else len(text.encode())


def require_storable(value: object, path: str) -> None:
    """Raise `InvalidAnswer` unless PostgreSQL and MongoDB can store this JSON value."""
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
            raise InvalidAnswer((f"usage.{name}", f"must be a whole number from 0 to {MAX_TOKENS}"))
    if usage.cost_usd is not None and not (usage.cost_usd.is_finite() and usage.cost_usd >= 0):
        raise InvalidAnswer(("usage.cost_usd", "must be a number from 0"))
    if usage.model is not None:
        _require_text(usage.model, "usage.model")
