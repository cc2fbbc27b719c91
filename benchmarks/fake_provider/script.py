"""The script: answers of the model and failures of the provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

_ids = count(1)


@dataclass(frozen=True, slots=True)
class Use:
    """A call of a tool. `arguments`: data, or text that is sent unchanged, even if it is not JSON."""

    name: str
    arguments: Mapping[str, Any] | str
    id: str = field(default_factory=lambda: f"call_{next(_ids)}")


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer. Token counts that are None are estimated from the text. `ended`: stop, length or refusal; tool calls end as such.

    `pause_seconds`: between the pieces of a stream. `counting`: whether a stream reports tokens (OpenAI's protocol).
    """

    text: str = ""
    calls: tuple[Use, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_written: int = 0
    cache_read: int = 0
    ended: str = "stop"
    pause_seconds: float = 0.0
    counting: bool = True

    def pieces(self) -> list[str]:
        words = self.text.split(" ")
        return [word if number == 0 else f" {word}" for number, word in enumerate(words)] if self.text else []

    def cost(self, body: Mapping[str, Any]) -> tuple[int, int]:
        """Return input and output tokens. Estimates count four characters per token."""
        received = len(str([body.get(name) for name in ("system", "messages", "tools")])) // 4
        produced = (len(self.text) + sum(len(str(call.arguments)) for call in self.calls)) // 4 + 1
        return (
            received if self.input_tokens is None else self.input_tokens,
            produced if self.output_tokens is None else self.output_tokens,
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure of a call.

    status      an answer with this status, an error as its body, and Retry-After if `retry_after` is set
    disconnect  the connection is closed in the middle of the stream
    malformed   the answer is not JSON
    error       an error event of this type in the middle of the stream
    hang        the stream stops after its beginning, until the client disconnects or the provider stops
    """

    kind: str = "status"
    status: int = 500
    retry_after: str | None = None
    type: str = "api_error"
    message: str = "made to fail"
