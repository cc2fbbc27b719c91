"""Limits of a provider: requests and tokens of the last minute, counted exactly, for all clients together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

NAMES = ("requests", "input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits per minute; None: no limit. `minute_seconds`: length of a minute."""

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    minute_seconds: float = 60.0

    def of(self, name: str) -> int | None:
        limit: int | None = getattr(self, name)
        return limit


@dataclass(frozen=True, slots=True)
class Left:
    """What remains of one limit, and the seconds until all of it is available again."""

    limit: int
    remaining: int
    reset_seconds: float


@dataclass
class Meter:
    """Counts against limits. Thread-safe."""

    limits: Limits
    _used: dict[str, deque[tuple[float, int]]] = field(
        default_factory=lambda: {name: deque() for name in NAMES}
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, input_tokens: int) -> float | None:
        """Count a call. Returns None, or if there is no room, the seconds until there is."""
        with self._lock:
            now = time.monotonic()
            wait = 0.0
            for name, cost in (("requests", 1), ("input_tokens", input_tokens), ("output_tokens", 0)):
                wait = max(wait, self._wait(name, cost, now))
            if wait > 0:
                return wait
            self._used["requests"].append((now, 1))
            self._used["input_tokens"].append((now, input_tokens))
            return None

    def produced(self, output_tokens: int) -> None:
        with self._lock:
            self._used["output_tokens"].append((time.monotonic(), output_tokens))

    def left(self) -> Mapping[str, Left]:
        with self._lock:
            now, found = time.monotonic(), {}
            for name in NAMES:
                limit = self.limits.of(name)
                if limit is None:
                    continue
                used = self._recent(name, now)
                reset = used[-1][0] + self.limits.minute_seconds - now if used else 0.0
                found[name] = Left(limit, max(0, limit - sum(amount for _, amount in used)), max(0.0, reset))
            return found

    def _recent(self, name: str, now: float) -> deque[tuple[float, int]]:
        used = self._used[name]
        while used and used[0][0] <= now - self.limits.minute_seconds:
            used.popleft()
        return used

    def _wait(self, name: str, cost: int, now: float) -> float:
        limit = self.limits.of(name)
        if limit is None:
            return 0.0
        used = self._recent(name, now)
        total = sum(amount for _, amount in used)
        room = limit - min(max(cost, 1), limit)
        for moment, amount in used:
            if total <= room:
                break
            total -= amount
            wait = moment + self.limits.minute_seconds - now
            if total <= room:
                return max(0.001, wait)
        return 0.0


def anthropic_headers(left: Mapping[str, Left]) -> dict[str, str]:
    """Return the headers of Anthropic, with times in ISO 8601."""
    headers = {}
    for name, each in left.items():
        kind = name.replace("_", "-")
        at = datetime.now(UTC) + timedelta(seconds=each.reset_seconds)
        headers[f"anthropic-ratelimit-{kind}-limit"] = str(each.limit)
        headers[f"anthropic-ratelimit-{kind}-remaining"] = str(each.remaining)
        headers[f"anthropic-ratelimit-{kind}-reset"] = at.isoformat()
    return headers


def openai_headers(left: Mapping[str, Left]) -> dict[str, str]:
    """Return the headers of OpenAI, with durations. They report input tokens only."""
    headers = {}
    for name, kind in (("requests", "requests"), ("input_tokens", "tokens")):
        if name in left:
            each = left[name]
            headers[f"x-ratelimit-limit-{kind}"] = str(each.limit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(each.remaining)
            headers[f"x-ratelimit-reset-{kind}"] = f"{each.reset_seconds * 1000:.0f}ms"
    return headers
