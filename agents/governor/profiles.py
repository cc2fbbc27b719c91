"""What a provider allows, as its contract says. The governor learns what it says itself on top."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DIMENSIONS = (
    "requests",
    "input_tokens",
    "output_tokens",
    "day_tokens",
)  # the order in which scripts get them
PERIOD_SECONDS = (60, 60, 60, 86_400)


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
        limits = (
            self.requests_per_minute,
            self.input_tokens_per_minute,
            self.output_tokens_per_minute,
            self.tokens_per_day,
        )
        if any(limit is not None and limit < 1 for limit in limits):
            raise ValueError("A limit must be at least 1; leave it out where there is none")
        if not 1 <= self.first_slots <= self.most_slots:
            raise ValueError(f"first_slots must be from 1 to most_slots, which is {self.most_slots}")
        if not 0 <= self.low_share < 1 or self.breaker_faults < 1 or self.breaker_seconds <= 0:
            raise ValueError(
                "low_share must be below 1, breaker_faults at least 1 and breaker_seconds above 0"
            )

    @property
    def limits(self) -> tuple[int, ...]:
        """By dimension; 0 for none."""
        found = (
            self.requests_per_minute,
            self.input_tokens_per_minute,
            self.output_tokens_per_minute,
            self.tokens_per_day,
        )
        return tuple(limit or 0 for limit in found)


#: Sample tiers. Their tokens per minute are counted on the way in, as providers do it for the most part.
FREE = Profile(requests_per_minute=5, input_tokens_per_minute=40_000, tokens_per_day=300_000, most_slots=5)
BUILD = Profile(
    requests_per_minute=50, input_tokens_per_minute=100_000, tokens_per_day=5_000_000, most_slots=25
)
SCALE = Profile(
    requests_per_minute=1_000, input_tokens_per_minute=2_000_000, tokens_per_day=100_000_000, most_slots=200
)

TIERS: Mapping[str, Profile] = {"free": FREE, "build": BUILD, "scale": SCALE}
