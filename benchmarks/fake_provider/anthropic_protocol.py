"""The Messages protocol of Anthropic: bodies and events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from benchmarks.fake_provider.script import Turn

_ids = count(1)
_ENDS = {"stop": "end_turn", "length": "max_tokens", "refusal": "refusal"}
ERROR_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
               413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error"}  # fmt: skip


def message(turn: Turn, body: Mapping[str, Any]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
    for call in turn.calls:
        arguments = json.loads(call.arguments) if isinstance(call.arguments, str) else dict(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return {
        "id": f"msg_{next(_ids)}", "type": "message", "role": "assistant", "model": body.get("model", "fake"), "content": blocks,
        "stop_reason": _stop_reason(turn), "stop_sequence": None, "usage": _usage(turn, body),
    }  # fmt: skip


def events(turn: Turn, body: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the message as server-sent events, text before tool calls."""
    usage = _usage(turn, body)
    start = message(Turn(), body) | {
        "content": [],
        "stop_reason": None,
        "usage": usage | {"output_tokens": 1},
    }
    yield event("message_start", message=start)
    index = 0
    if turn.text:
        yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        for piece in turn.pieces():
            yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
        yield event("content_block_stop", index=0)
        index = 1
    for number, call in enumerate(turn.calls, index):
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        yield event("content_block_start", index=number, content_block=block)
        text = call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
        for part in (text[: len(text) // 2], text[len(text) // 2 :]):
            yield event(
                "content_block_delta", index=number, delta={"type": "input_json_delta", "partial_json": part}
            )
        yield event("content_block_stop", index=number)
    delta = {"stop_reason": _stop_reason(turn), "stop_sequence": None}
    yield event("message_delta", delta=delta, usage={"output_tokens": usage["output_tokens"]})
    yield event("message_stop")


def event(name: str, **data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


def error(status: int, text: str, kind: str | None = None) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind or ERROR_TYPES.get(status, "api_error"), "message": text}}


def _stop_reason(turn: Turn) -> str:
    return "tool_use" if turn.calls else _ENDS[turn.ended]


def _usage(turn: Turn, body: Mapping[str, Any]) -> dict[str, int]:
    received, produced = turn.cost(body)
    return {
        "input_tokens": received, "output_tokens": produced,
        "cache_creation_input_tokens": turn.cache_written, "cache_read_input_tokens": turn.cache_read,
    }  # fmt: skip
