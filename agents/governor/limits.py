"""The limits of a provider: those of its contract (`Profile`), and those that the headers of its answers report (`ReportedLimits`).

Three families of headers are read: `anthropic-ratelimit-<kind>-{limit,remaining,reset}` with times in ISO 8601, `x-ratelimit-{limit,
remaining,reset}-{requests,tokens}` of OpenAI's protocol with durations such as `6m0s`, and for requests the plain
`ratelimit-{limit,remaining,reset}` with or without the prefix `x-`. Headers are untrusted: invalid ones are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from agents.outbound import client

# In the order in which the scripts expect them.
DIMENSIONS = ("requests", "input_tokens", "output_tokens", "day_tokens")


@dataclass(frozen=True, slots=True)
class Profile:
    """Limits of one provider for one credential. None: no limit of this kind.

    `tokens_per_day` counts input and output together. `low_share` is the part of a limit below which only urgent calls begin.
    """

    requests_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    first_slots: int = 2
    most_slots: int = 50
    low_share: float = 0.1
    breaker_faults: int = 5
    breaker_seconds: float = 60.0

    def __post_init__(self) -> None:
        if any(limit is not None and limit < 1 for limit in self._given_limits):
            raise ValueError("A limit must be at least 1; omit it if there is none")
        if not 1 <= self.first_slots <= self.most_slots:
            raise ValueError(f"first_slots must be from 1 to most_slots, which is {self.most_slots}")
        if not 0 <= self.low_share < 1 or self.breaker_faults < 1 or self.breaker_seconds <= 0:
            raise ValueError(
                "low_share must be below 1, breaker_faults at least 1 and breaker_seconds above 0"
            )

    @property
    def limits(self) -> tuple[int, ...]:
        """The limits by dimension; 0 for none."""
        return tuple(limit or 0 for limit in self._given_limits)

    @property
    def _given_limits(self) -> tuple[int | None, ...]:
        return (
            self.requests_per_minute,
            self.input_tokens_per_minute,
            self.output_tokens_per_minute,
            self.tokens_per_day,
        )


#: Sample tiers. Their limits of tokens per minute apply to input, as with most providers.
FREE = Profile(requests_per_minute=5, input_tokens_per_minute=40_000, tokens_per_day=300_000, most_slots=5)
BUILD = Profile(
    requests_per_minute=50, input_tokens_per_minute=100_000, tokens_per_day=5_000_000, most_slots=25
)
SCALE = Profile(
    requests_per_minute=1_000, input_tokens_per_minute=2_000_000, tokens_per_day=100_000_000, most_slots=200
)

TIERS: Mapping[str, Profile] = {"free": FREE, "build": BUILD, "scale": SCALE}


_DURATION = re.compile(
    r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m(?!s))?(?:(\d{1,9}(?:\.\d{1,9})?)s)?(?:(\d{1,9}(?:\.\d{1,9})?)ms)?"
)
_SECONDS = (86_400, 3_600, 60, 1, 0.001)
_WHOLE = re.compile(r"\d{1,15}")

#: For each dimension its possible names in headers, the more exact one first.
_ANTHROPIC = {
    "requests": ("requests",),
    "input_tokens": ("input-tokens", "tokens"),
    "output_tokens": ("output-tokens",),
}
_OPENAI = {"requests": "requests", "input_tokens": "tokens"}


@dataclass(frozen=True, slots=True)
class ReportedLimits:
    """By dimension: remaining units, seconds until the reset, and the whole limit. `retry_after` is in seconds."""

    left: Mapping[str, int] = field(default_factory=dict)
    reset_seconds: Mapping[str, float] = field(default_factory=dict)
    retry_after: float | None = None
    limits: Mapping[str, int] = field(default_factory=dict)


def read_limits(headers: Mapping[str, str], *, now: datetime | None = None) -> ReportedLimits:
    """Read the headers of an answer; names are case-insensitive. Times are relative to its `Date` header, or else to our clock."""
    fields = {name.lower(): value.strip() for name, value in headers.items()}
    now = now or client.parse_http_date(fields.get("date", "")) or datetime.now(UTC)
    left: dict[str, int] = {}
    reset: dict[str, float] = {}
    limits: dict[str, int] = {}
    for dimension in DIMENSIONS:
        for limit, remaining, until in _names(dimension):
            units = fields.get(remaining, "")
            if not _WHOLE.fullmatch(units):
                continue
            left[dimension] = int(units)
            seconds = _seconds_until(fields.get(until, ""), now)
            if seconds is not None:
                reset[dimension] = seconds
            if _WHOLE.fullmatch(text := fields.get(limit, "")) and int(text) >= max(1, left[dimension]):
                limits[dimension] = int(text)
            break
    return ReportedLimits(left, reset, client.retry_after_seconds(fields.get("retry-after"), now=now), limits)


def _names(dimension: str) -> list[tuple[str, ...]]:
    """Return the names of the headers for the limit, the remaining units, and the reset."""
    figures = ("limit", "remaining", "reset")
    names = [
        tuple(f"anthropic-ratelimit-{kind}-{each}" for each in figures)
        for kind in _ANTHROPIC.get(dimension, ())
    ]
    if dimension in _OPENAI:
        names.append(tuple(f"x-ratelimit-{each}-{_OPENAI[dimension]}" for each in figures))
    if dimension == "requests":
        names += [tuple(f"{prefix}ratelimit-{each}" for each in figures) for prefix in ("", "x-")]
    return names


def _seconds_until(value: str, now: datetime) -> float | None:
    """Return the seconds until a time, a duration such as `1m30.5s`, or plain seconds."""
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
