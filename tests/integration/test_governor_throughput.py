"""How much of a provider's limit the governor uses, in simulated minutes.

The provider counts a call when it arrives, later than its grant, and reports the remaining quota even later, in its answer.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from agents import governor
from agents.governor import Call, Governor, Outcome
from agents.governor.limits import Profile, ReportedLimits
from tests import redis_clock
from tests.redis_clock import RedisClock

pytestmark = pytest.mark.usefixtures("database")

REQUESTS, TOKENS, MINUTE_MS = 50, 100_000, 60_000


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch, database: None) -> RedisClock:
    return redis_clock.stop(monkeypatch, governor, "ACQUIRE", "REPORT", "STATUS")


@dataclass
class Provider:
    """Allows 50 requests in any minute, counted when they arrive."""

    arrived: deque[float] = field(default_factory=deque)
    refused: list[float] = field(default_factory=list)
    served: list[float] = field(default_factory=list)

    def receive(self, now: float) -> ReportedLimits | None:
        """The reported limits, or None for a 429."""
        while self.arrived and self.arrived[0] <= now - MINUTE_MS:
            self.arrived.popleft()
        if len(self.arrived) >= REQUESTS:
            self.refused.append(now)
            return None
        self.arrived.append(now)
        self.served.append(now)
        return ReportedLimits({"requests": REQUESTS - len(self.arrived)}, {"requests": MINUTE_MS / 1_000})


def simulate(
    clock: RedisClock, provider: Provider, *, minutes: int, lag: tuple[int, int], work: tuple[int, int]
) -> list[float]:
    """Let 20 callers call all the time, with these ranges of milliseconds for arrival and answer; return the starts of calls."""
    guard = Governor(
        "test", Profile(requests_per_minute=REQUESTS, input_tokens_per_minute=TOKENS, most_slots=25)
    )
    chance, numbers = random.Random(20260501), itertools.count()
    events: list[tuple[float, int, str, Call | None, ReportedLimits | None]] = []

    def schedule(
        when: float, kind: str, call: Call | None = None, limits: ReportedLimits | None = None
    ) -> None:
        heapq.heappush(events, (when, next(numbers), kind, call, limits))

    starts: list[float] = []
    for _ in range(20):
        schedule(0.0, "ask")
    while events and (event := heapq.heappop(events))[0] < minutes * MINUTE_MS:
        now, number, kind, call, limits = event
        clock.set(now)
        if kind == "ask":
            new_call = Call(f"call-{number}", 60.0, 1_000, 100)
            answer = guard.acquire(new_call)
            if answer.granted:
                starts.append(now)
                schedule(now + chance.uniform(*lag), "arrive", new_call)
            else:
                schedule(now + answer.wait_seconds * 1_000 + chance.uniform(0, 50), "ask")
        elif kind == "arrive":
            schedule(now + chance.uniform(*work), "end", call, provider.receive(now))
        else:
            assert call is not None
            guard.report(
                call, Outcome.OK if limits else Outcome.LIMITED, input_tokens=1_000, output_tokens=100,
                learned=limits or ReportedLimits(retry_after=1.0),
            )  # fmt: skip
            schedule(now, "ask")
    return starts


@pytest.mark.parametrize(
    ("lag", "work"),
    [
        pytest.param((1, 20), (20, 40), id="calls that are over at once"),
        pytest.param((1, 1_500), (20, 400), id="calls that arrive late"),
        pytest.param((20, 200), (2_000, 30_000), id="answers that take half a minute"),
    ],
)
def test_nine_tenths_of_the_limit_are_used_and_almost_no_call_is_refused(lag, work, clock):
    provider = Provider()

    starts = simulate(clock, provider, minutes=7, lag=lag, work=work)

    assert max(sum(start <= other < start + MINUTE_MS for other in starts) for start in starts) <= REQUESTS
    served = [moment for moment in provider.served if MINUTE_MS <= moment < 6 * MINUTE_MS]
    assert len(served) >= 0.9 * 5 * REQUESTS
    assert len([moment for moment in provider.refused if moment >= MINUTE_MS]) <= 0.02 * len(served)
