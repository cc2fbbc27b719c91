"""What the model shall say, and how the provider shall fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

_ids = count(1)


@dataclass(frozen=True, slots=True)
class Use:
    """A call to a tool. `arguments` may be text, sent as it is, valid JSON or not."""

    name: str
    arguments: Mapping[str, Any] | str
    id: str = field(default_factory=lambda: f"call_{next(_ids)}")


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer. Tokens that are not given are counted from the text. `ended`: stop, length or refusal; tool use is seen by itself.

    `pause_seconds` lies between the pieces of a stream. A server that is not `counting` tells no tokens of a stream (OpenAI's protocol).
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
        """Input and output tokens, four characters each where nothing else was said."""
        given = len(str([body.get(name) for name in ("system", "messages", "tools")])) // 4
        produced = (len(self.text) + sum(len(str(call.arguments)) for call in self.calls)) // 4 + 1
        return (
            given if self.input_tokens is None else self.input_tokens,
            produced if self.output_tokens is None else self.output_tokens,
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """How a call fails.

    status      an answer with this status and an error's body, with Retry-After if given
    disconnect  the stream breaks off in the middle
    malformed   the answer is no JSON
    error       an error's event in the middle of a stream, of this type
    hang        the beginning of a stream, and then nothing until the client goes away or the provider stops
    """

    kind: str = "status"
    status: int = 500
    retry_after: str | None = None
    type: str = "api_error"
    message: str = "made to fail"
