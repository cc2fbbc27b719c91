"""The chat completions protocol of OpenAI: bodies and chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from benchmarks.fake_provider.script import Turn

_ids = count(1)
_ENDS = {"stop": "stop", "length": "length", "refusal": "content_filter"}


def completion(turn: Turn, body: Mapping[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _text(call.arguments)},
            }
            for call in turn.calls
        ]
    choice = {"index": 0, "message": said, "finish_reason": _finish(turn), "logprobs": None}
    return {**_head(body, "chat.completion"), "choices": [choice], "usage": _usage(turn, body)}


def events(turn: Turn, body: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the completion as server-sent events."""
    head = _head(body, "chat.completion.chunk")
    yield _chunk(head, {"role": "assistant", "content": ""})
    for piece in turn.pieces():
        yield _chunk(head, {"content": piece})
    for number, call in enumerate(turn.calls):
        text = _text(call.arguments)
        first = {
            "index": number,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": ""},
        }
        yield _chunk(head, {"tool_calls": [first]})
        for part in (text[: len(text) // 2], text[len(text) // 2 :]):
            yield _chunk(head, {"tool_calls": [{"index": number, "function": {"arguments": part}}]})
    yield _chunk(head, {}, _finish(turn))
    if turn.counting and (body.get("stream_options") or {}).get("include_usage"):
        yield _data({**head, "choices": [], "usage": _usage(turn, body)})
    yield b"data: [DONE]\n\n"


def error(status: int, text: str, kind: str | None = None) -> dict[str, Any]:
    return {"error": {"message": text, "type": kind or "error", "param": None, "code": kind}}


def error_event(text: str, kind: str) -> bytes:
    return _data(error(500, text, kind))


def _chunk(head: Mapping[str, Any], delta: Mapping[str, Any], finish: str | None = None) -> bytes:
    return _data(
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]}
    )


def _data(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def _head(body: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{next(_ids)}",
        "object": kind,
        "created": 1_700_000_000,
        "model": body.get("model", "fake"),
    }


def _finish(turn: Turn) -> str:
    return "tool_calls" if turn.calls else _ENDS[turn.ended]


def _text(arguments: Mapping[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(dict(arguments))


def _usage(turn: Turn, body: Mapping[str, Any]) -> dict[str, Any]:
    given, produced = turn.cost(body)
    return {
        "prompt_tokens": given, "completion_tokens": produced, "total_tokens": given + produced,
        "prompt_tokens_details": {"cached_tokens": turn.cache_read},
    }  # fmt: skip
