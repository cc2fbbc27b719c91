"""What providers say in the headers of their answers: how much is left, until when, and when to come back.

Three families are understood: `anthropic-ratelimit-<kind>-{limit,remaining,reset}` with times in ISO 8601, `x-ratelimit-{limit,remaining,
reset}-{requests,tokens}` of OpenAI's protocol with durations such as `6m0s`, and for requests the plain `ratelimit-{limit,remaining,reset}`
with or without an `x-` before it. Headers are untrusted: what cannot be read says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

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
    """By dimension: units left, seconds until the provider counts anew, and its whole limit. `retry_after` in seconds."""

    left: Mapping[str, int] = field(default_factory=dict)
    reset_seconds: Mapping[str, float] = field(default_factory=dict)
    retry_after: float | None = None
    limits: Mapping[str, int] = field(default_factory=dict)


def learned_from(headers: Mapping[str, str], *, now: datetime | None = None) -> Learned:
    """Read the headers of an answer; their names in any case. Its moments are measured by its own `Date`, or else our clock."""
    given = {name.lower(): value.strip() for name, value in headers.items()}
    moment = now or _date(given.get("date", "")) or datetime.now(UTC)
    left: dict[str, int] = {}
    reset: dict[str, float] = {}
    limits: dict[str, int] = {}
    for dimension in DIMENSIONS:
        for limit, remaining, until in _names(dimension):
            found = given.get(remaining, "")
            if not _WHOLE.fullmatch(found):
                continue
            left[dimension] = int(found)
            seconds = _seconds_until(given.get(until, ""), moment)
            if seconds is not None:
                reset[dimension] = seconds
            if _WHOLE.fullmatch(whole := given.get(limit, "")) and int(whole) >= max(1, left[dimension]):
                limits[dimension] = int(whole)
            break
    return Learned(left, reset, retry_after.seconds_from(given.get("retry-after"), now=moment), limits)


def _date(value: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _names(dimension: str) -> list[tuple[str, ...]]:
    """Of the limit, of what remains, and of its reset."""
    told = ("limit", "remaining", "reset")
    names = [
        tuple(f"anthropic-ratelimit-{kind}-{each}" for each in told) for kind in _ANTHROPIC.get(dimension, ())
    ]
    if dimension in _OPENAI:
        names.append(tuple(f"x-ratelimit-{each}-{_OPENAI[dimension]}" for each in told))
    if dimension == "requests":
        names += [tuple(f"{prefix}ratelimit-{each}" for each in told) for prefix in ("", "x-")]
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
