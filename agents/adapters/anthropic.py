"""The Anthropic adapter: a model with the five tools, over the Messages API.

Content that is the same for all runs of a role (its tools and its system text) is marked for the provider's cache. `input_tokens` of the
usage includes tokens from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anthropic
import orjson

from agents.adapters import dialogue
from agents.adapters.dialogue import Dialect, ModelAnswer, ModelOptions, ToolRequest
from agents.adapters.message_batches import answer_from
from agents.adapters.provider_errors import interrupted, plain_errors
from agents.contracts import AgentRequest, AgentResult, RunLink, ToolAnswer
from agents.governor.calling import ProviderFeedback
from agents.governor.providers import Provider
from agents.tools import DEFINITIONS

_CACHED = {"type": "ephemeral"}


class AnthropicAdapter:
    """Talks to a model of Anthropic, or of a server that speaks its protocol."""

    def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
        return dialogue.run_dialogue(_Messages, request=request, link=link)


class _Messages(Dialect):
    """A conversation in the format of the Messages API."""

    def __init__(self, request: AgentRequest, provider: Provider, options: ModelOptions) -> None:
        super().__init__(request, provider, options)
        self._client = anthropic.Anthropic(**self.options_of_client())
        self._system = dialogue.system_of(request, options)
        self._begun = request.begun

    def complete(self, feedback: ProviderFeedback, on_text: Callable[[str], None]) -> ModelAnswer:
        if self._begun is not None:
            answer = self._repeat_batch_answer(feedback)
            on_text(answer.text)
            return answer
        with plain_errors(anthropic, request=self._request, provider=self._provider, feedback=feedback):
            message = self._stream(feedback, on_text) if self._options.stream else self._send(feedback)
            if message.stop_reason is None:
                raise interrupted(self._provider)
            content = message.to_dict(warnings=False)
            answer = answer_from(content)
        if not self._options.stream:
            on_text(answer.text)
        self._add_answer(content)
        return answer

    def _repeat_batch_answer(self, feedback: ProviderFeedback) -> ModelAnswer:
        """Return the model's answer from a batch, as the first of this conversation. Its tokens were counted with the batch."""
        begun, self._begun = self._begun or {}, None
        answer = answer_from(begun)
        self._add_answer(begun)
        feedback.input_tokens = feedback.output_tokens = 0
        return replace(answer, input_tokens=0, output_tokens=0, limited_input=0)

    def _add_answer(self, message: Mapping[str, Any]) -> None:
        """Add the model's answer to the conversation, without blank texts, which the API does not accept back."""
        blocks = [
            _plain(block) for block in message["content"] if block["type"] != "text" or block["text"].strip()
        ]
        self._messages.append({"role": "assistant", "content": blocks})

    def answer(self, results: Sequence[tuple[ToolRequest, ToolAnswer]]) -> None:
        blocks = [
            {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": orjson.dumps(dict(answer.body), default=str).decode(),
                "is_error": answer.refused,
            }
            for call, answer in results
        ]
        self._messages.append({"role": "user", "content": blocks})

    def characters(self) -> int:
        return len(self._system) + len(str(self._messages)) + (len(str(_TOOLS)) if self._options.tools else 0)

    def _stream(self, feedback: ProviderFeedback, on_text: Callable[[str], None]) -> Any:
        with self._client.messages.stream(**self._body()) as stream:
            feedback.headers = dict(stream.response.headers)
            for piece in stream.text_stream:
                on_text(piece)
            return stream.get_final_message()

    def _send(self, feedback: ProviderFeedback) -> Any:
        raw = self._client.messages.with_raw_response.create(**self._body())
        feedback.headers = dict(raw.headers)
        return raw.parse()

    def _body(self) -> dict[str, Any]:
        body = body_of(self._request, self._options, system=self._system, messages=self._messages)
        if "temperature" in body:
            # The library no longer has a parameter for it.
            body["extra_body"] = {"temperature": body.pop("temperature")}
        return body


def body_of(
    request: AgentRequest, options: ModelOptions, *, system: str, messages: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": request.settings.model,
        "max_tokens": options.max_tokens,
        "messages": messages,
    }
    if system:
        body["system"] = [{"type": "text", "text": system, "cache_control": _CACHED}]
    if options.tools:
        body["tools"] = _TOOLS
    if options.temperature is not None:
        body["temperature"] = options.temperature
    return body


_TOOLS: list[dict[str, Any]] = [
    {"name": each.name, "description": each.description, "input_schema": each.input_schema}
    for each in DEFINITIONS
]
_TOOLS[-1]["cache_control"] = _CACHED


def _plain(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a block as it is sent back: without what the library added. Thinking blocks go back whole, with their signature."""
    match block["type"]:
        case "tool_use":
            sent = block.get("input")
            arguments = sent if isinstance(sent, dict) else {}
            return {"type": "tool_use", "id": block["id"], "name": block["name"], "input": arguments}
        case "text":
            return {"type": "text", "text": block["text"]}
    return block
