"""The OpenAI adapter: a model with the five tools, over the chat completions protocol.

Many other servers speak it as well, among them Ollama, vLLM and llama.cpp: set their address, with its `/v1`, as the role's endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai
import orjson

from agents.adapters import dialogue
from agents.adapters.dialogue import Dialect, ModelAnswer, ModelOptions, ToolRequest
from agents.adapters.provider_errors import interrupted, invalid, plain_errors
from agents.contracts import AgentRequest, AgentResult, RunLink, ToolAnswer
from agents.governor.calling import ProviderFeedback
from agents.governor.providers import Provider
from agents.tools import DEFINITIONS

OWN_HOST = "api.openai.com:"  # the only host that requires max_completion_tokens instead of max_tokens
_ENDS = {"length": "length", "content_filter": "refused"}


class OpenAIAdapter:
    """Talks to a model of OpenAI, or of a server that speaks its protocol."""

    def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
        return dialogue.run_dialogue(_Chat, request=request, link=link)


@dataclass
class _Reply:
    """One answer, assembled from one or many pieces."""

    on_text: Callable[[str], None]
    text: list[str] = field(default_factory=list)
    refusal: bool = False
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finish: str | None = None
    usage: Any = None
    model: str | None = None

    def add(self, piece: Any) -> None:
        """Add a chunk of a stream, or a whole answer."""
        self.usage, self.model = piece.usage or self.usage, piece.model or self.model
        for choice in piece.choices or ():
            part = getattr(choice, "delta", None) or getattr(choice, "message", None)
            self.finish = choice.finish_reason or self.finish
            if part is None:
                continue
            if part.content:
                self.text.append(part.content)
                self.on_text(part.content)
            self.refusal = self.refusal or bool(part.refusal)
            for number, call in enumerate(part.tool_calls or ()):
                self._add_call(getattr(call, "index", number), call)

    def _add_call(self, index: int, call: Any) -> None:
        known = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        known["id"] = call.id or known["id"]
        if call.function is not None:
            known["name"] = call.function.name or known["name"]
            known["arguments"] += call.function.arguments or ""


class _Chat(Dialect):
    """A conversation in the format of chat completions."""

    def __init__(self, request: AgentRequest, provider: Provider, options: ModelOptions) -> None:
        super().__init__(request, provider, options)
        self._client = openai.OpenAI(**self.options_of_client())
        if system := dialogue.system_of(request, options):
            self._messages.insert(0, {"role": "system", "content": system})

    def complete(self, feedback: ProviderFeedback, on_text: Callable[[str], None]) -> ModelAnswer:
        reply = _Reply(on_text)
        with plain_errors(openai, request=self._request, provider=self._provider, feedback=feedback):
            for piece in self._pieces(feedback):
                reply.add(piece)
            if reply.finish is None:
                raise interrupted(self._provider)
            answer = self._build_answer(reply)
        self._messages.append(_plain(reply))
        return answer

    def answer(self, results: Sequence[tuple[ToolRequest, ToolAnswer]]) -> None:
        for call, answer in results:
            text = orjson.dumps(dict(answer.body), default=str).decode()
            self._messages.append({"role": "tool", "tool_call_id": call.id, "content": text})

    def characters(self) -> int:
        return len(str(self._messages)) + (len(str(_TOOLS)) if self._options.tools else 0)

    def _pieces(self, feedback: ProviderFeedback) -> Iterable[Any]:
        """Yield the answer's pieces as they arrive. Leaving early closes the stream."""
        if not self._options.stream:
            raw = self._client.chat.completions.with_raw_response.create(**self._body())
            feedback.headers = dict(raw.headers)
            yield raw.parse()
            return
        body: Any = {**self._body(), "stream": True, "stream_options": {"include_usage": True}}
        with self._client.chat.completions.create(**body) as stream:
            feedback.headers = dict(stream.response.headers)
            yield from stream

    def _body(self) -> dict[str, Any]:
        is_openai = self._provider.place.startswith(OWN_HOST)
        body: dict[str, Any] = {
            "model": self._request.settings.model,
            "messages": self._messages,
            "max_completion_tokens" if is_openai else "max_tokens": self._options.max_tokens,
        }
        if self._options.tools:
            body["tools"] = _TOOLS
        if self._options.temperature is not None:
            body["temperature"] = self._options.temperature
        if self._options.output == "json":
            body["response_format"] = {"type": "json_object"}
        return body

    def _build_answer(self, reply: _Reply) -> ModelAnswer:
        input_tokens, produced = self._tokens(reply)
        tool_requests = [_read_tool_request(call) for _, call in sorted(reply.calls.items())]
        if any(not each.id or not each.name for each in tool_requests):
            raise invalid(self._provider, "a call to a tool without its name or id")
        ended = "refused" if reply.refusal else _ENDS.get(reply.finish or "", "done")
        return ModelAnswer(
            text="".join(reply.text), tool_requests=tool_requests, ended=ended, input_tokens=input_tokens,
            output_tokens=produced, limited_input=input_tokens, model=reply.model,
        )  # fmt: skip

    def _tokens(self, reply: _Reply) -> tuple[int, int]:
        """Return the numbers of input and output tokens, estimated from characters if the server does not count while streaming."""
        if reply.usage:
            return reply.usage.prompt_tokens or 0, reply.usage.completion_tokens or 0
        produced = sum(map(len, reply.text)) + sum(len(str(call)) for call in reply.calls.values())
        return _tokens_of(self.characters()), _tokens_of(produced)


def _tokens_of(characters: int) -> int:
    return characters // dialogue.CHARACTERS_PER_TOKEN + 1


_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": each.name, "description": each.description, "parameters": each.input_schema},
    }
    for each in DEFINITIONS
]


def _read_tool_request(call: Mapping[str, str]) -> ToolRequest:
    try:
        arguments = orjson.loads(call["arguments"] or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    return ToolRequest(call["id"], call["name"], arguments if isinstance(arguments, dict) else None)


def _plain(reply: _Reply) -> dict[str, Any]:
    """Return the answer in the form in which it is sent back."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(reply.text)}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for _, call in sorted(reply.calls.items())
        ]
    return message
