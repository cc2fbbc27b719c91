"""Places that all processes share: so many may be held at once, each for as long as its holder says so."""

from __future__ import annotations

from dataclasses import dataclass

from tenants import redis as connections
from tenants.limiter import keys, scripts
from tenants.limiter.limiter import answer_expected


@dataclass(frozen=True, slots=True)
class Places:
    """One name for all processes. Raises `LimiterUnavailable` when Redis does not answer."""

    name: str
    lease_seconds: float  # a holder that says nothing for so long has died

    def take(self, most: int, who: str) -> bool:
        """Hold a place, or keep the one that `who` has, whether or not there are more than `most` by now."""
        with answer_expected():
            held = scripts.PLACE.run(
                connections.client(), [keys.places(self.name)], (most, who, round(self.lease_seconds * 1000))
            )
        return bool(held)

    def give_back(self, *who: str) -> None:
        """What is held no longer, or never was, is passed over."""
        with answer_expected():
            connections.client().zrem(keys.places(self.name), *who)
