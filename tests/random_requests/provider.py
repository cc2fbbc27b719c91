"""A model provider that answers batches, in the memory of the test. What it answers, and which of its answers are lost, is drawn."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from agents.adapters.message_batches import Answer, Batch
from agents.exceptions import AgentRateLimited, PermanentAgentError, RetryableAgentError

KEY = "batch|memory|key"
MODEL = "m-1"


class Provider:
    """Has the methods of `MessageBatches`."""

    provider = SimpleNamespace(key=KEY)

    def __init__(self, drawn: random.Random) -> None:
        self.random = drawn
        self.calm = False
        self.sent: dict[str, list[str]] = {}

    def _fails(self, share: float) -> bool:
        return not self.calm and self.random.random() < share

    def _batch(self, name: str, status: str) -> Batch:
        return Batch(name, status, len(self.sent[name]), datetime.now(UTC))

    def create(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> Batch:
        if self._fails(0.1):
            raise AgentRateLimited("too many batches", retry_after=1)
        name = f"batch-{len(self.sent) + 1}"
        self.sent[name] = [each for each, _ in requests]
        if self._fails(0.2):
            raise RetryableAgentError("the answer was lost")
        return self._batch(name, "in_progress")

    def fetch(self, name: str) -> Batch:
        return self._batch(name, "in_progress" if self._fails(0.3) else "ended")

    def cancel(self, name: str) -> Batch:
        return self._batch(name, "canceling")

    def list_created(self, *, since: datetime) -> Iterator[Batch]:
        return iter([self._batch(name, "ended") for name in self.sent])

    def answers(self, name: str, *, max_bytes: int) -> Iterator[Answer]:
        for each in self.random.sample(self.sent[name], len(self.sent[name])):
            if self._fails(0.1):
                continue
            if self._fails(0.1):
                kind = self.random.choice((RetryableAgentError, PermanentAgentError))
                yield Answer(each, None, kind("no answer"))
            else:
                yield Answer(each, self._message(), None)

    def _message(self) -> dict[str, Any]:
        block: dict[str, Any] = {"type": "text", "text": "a text"}
        if self._fails(0.2):
            block = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
        return {
            "content": [block], "stop_reason": "end_turn", "model": MODEL, "usage": {"input_tokens": 1, "output_tokens": 1}
        }  # fmt: skip
