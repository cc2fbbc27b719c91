"""What a role's options may say to a model's adapter, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from agents.exceptions import ConfigurationError

MOST_ROUNDS = 200
MOST_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """`rounds` bounds the model's answers in one run; `stream` and `tools` may be switched off for servers that cannot.

    `accept_truncated` takes an answer that was cut at `max_tokens` for a result, instead of failing.
    """

    max_tokens: int = 4_096
    temperature: float | None = None
    output: str = "text"  # or json
    rounds: int = 20
    stream: bool = True
    tools: bool = True
    accept_truncated: bool = False

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Read the role's options; those of others (such as `provider`) are none of our business. Raises `ConfigurationError`."""
        values = {name: told[name] for name in cls.__dataclass_fields__ if told.get(name) is not None}
        for name, value in values.items():
            if reason := _fault(name, value):
                raise ConfigurationError(f"The option {name} {reason}.")
        return cls(**values)


def _fault(name: str, value: Any) -> str | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    match name:
        case "max_tokens" | "rounds":
            most = MOST_TOKENS if name == "max_tokens" else MOST_ROUNDS
            good = is_number and isinstance(value, int) and 1 <= value <= most
            return None if good else f"must be a whole number from 1 to {most}"
        case "temperature":
            return None if is_number and 0 <= value <= 2 else "must be a number from 0 to 2"
        case "output":
            return None if value in ("text", "json") else "must be text or json"
    return None if isinstance(value, bool) else "must be true or false"
