"""What providers say in the headers of their answers: how much is left, until when, and when to come back.

Two families are understood: `anthropic-ratelimit-<kind>-{limit,remaining,reset}` with times in ISO 8601, and `x-ratelimit-{limit,remaining,
reset}-{requests,tokens}` of OpenAI's protocol with durations such as `6m0s`. Headers are untrusted: what cannot be read says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from agents import retry_after
from agents.governor.profiles import DIMENSIONS

_DURATION = re.compile(
    r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m(?!s))?(?:(\d{1,9}(?:\.\d{1,9})?)s)?(?:(\d{1,9}(?:\.\d{1,9})?)ms)?"
)
_SECONDS = (86_400, 3_600, 60, 1, 0.001)
_WHOLE = re.compile(r"\d{1,15}")

#: By dimension, the names under which it may come, the more exact one first.
_ANTHROPIC = {
    "requests": ("requests",),
    "input_tokens": ("input-tokens", "tokens"),
    "output_tokens": ("output-tokens",),
}
_OPENAI = {"requests": "requests", "input_tokens": "tokens"}


@dataclass(frozen=True, slots=True)
class Learned:
    """By dimension: units left, and seconds until the provider counts anew. `retry_after` in seconds."""

    left: Mapping[str, int] = field(default_factory=dict)
    reset_seconds: Mapping[str, float] = field(default_factory=dict)
    retry_after: float | None = None


def learned_from(headers: Mapping[str, str], *, now: datetime | None = None) -> Learned:
    """Read the headers of an answer; their names in any case."""
    given = {name.lower(): value.strip() for name, value in headers.items()}
    moment = now or datetime.now(UTC)
    left: dict[str, int] = {}
    reset: dict[str, float] = {}
    for dimension in DIMENSIONS:
        for remaining, until in _names(dimension):
            found = given.get(remaining, "")
            if not _WHOLE.fullmatch(found):
                continue
            left[dimension] = int(found)
            seconds = _seconds_until(given.get(until, ""), moment)
            if seconds is not None:
                reset[dimension] = seconds
            break
    return Learned(left, reset, retry_after.seconds_from(given.get("retry-after")))


def _names(dimension: str) -> list[tuple[str, str]]:
    names = [
        (f"anthropic-ratelimit-{kind}-remaining", f"anthropic-ratelimit-{kind}-reset")
        for kind in _ANTHROPIC.get(dimension, ())
    ]
    if dimension in _OPENAI:
        kind = _OPENAI[dimension]
        names.append((f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}"))
    return names


def _seconds_until(value: str, now: datetime) -> float | None:
    """A moment, a duration such as `1m30.5s`, or plain seconds."""
    if not value or len(value) > 64:
        return None
    parts = _DURATION.fullmatch(value)
    if parts and any(parts.groups()):
        return sum(float(part) * unit for part, unit in zip(parts.groups(), _SECONDS, strict=True) if part)
    try:
        return max(0.0, float(value)) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value) else _until(value, now)
    except ValueError:
        return None


def _until(value: str, now: datetime) -> float:
    moment = datetime.fromisoformat(value)
    return max(0.0, ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now).total_seconds())
