"""How much of what a provider allows the governor lets through: five minutes and more of a clock that only the test moves.

The provider counts a call when it arrives, which is later than its grant, and says what is left with the answer, which is later still.
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
from tenants import redis
from tenants.redis import Script

pytestmark = pytest.mark.usefixtures("database")

REQUESTS, TOKENS, MINUTE_MS = 50, 100_000, 60_000
CLOCK = "test:clock"


@pytest.fixture(autouse=True)
def clock_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACQUIRE", "REPORT", "STATUS"):
        script: Script = getattr(governor, name)
        text = script.text.replace("redis.call('TIME')", f"redis.call('LRANGE', '{CLOCK}', 0, -1)")
        monkeypatch.setattr(governor, name, Script(script.name, text))


def at(milliseconds: float) -> None:
    """Let it be that late; the epoch is as good a beginning as any."""
    seconds, rest = divmod(round(milliseconds) + 1_000_000_000, 1_000)
    redis.client().pipeline().delete(CLOCK).rpush(CLOCK, seconds, rest * 1_000).execute()


@dataclass
class Provider:
    """Allows 50 requests in any minute, counted when they arrive."""

    arrived: deque[float] = field(default_factory=deque)
    refused: list[float] = field(default_factory=list)
    served: list[float] = field(default_factory=list)

    def receive(self, now: float) -> ReportedLimits | None:
        """What its headers say, or None for a 429."""
        while self.arrived and self.arrived[0] <= now - MINUTE_MS:
            self.arrived.popleft()
        if len(self.arrived) >= REQUESTS:
            self.refused.append(now)
            return None
        self.arrived.append(now)
        self.served.append(now)
        return ReportedLimits({"requests": REQUESTS - len(self.arrived)}, {"requests": MINUTE_MS / 1_000})


def played(provider: Provider, *, minutes: int, lag: tuple[int, int], work: tuple[int, int]) -> list[float]:
    """Always somebody wants to call, with 20 callers, arrivals so many milliseconds late and answers that take so long.

    Returns when calls began.
    """
    guard = Governor(
        "test", Profile(requests_per_minute=REQUESTS, input_tokens_per_minute=TOKENS, most_slots=25)
    )
    chance, numbers = random.Random(20260501), itertools.count()
    events: list[tuple[float, int, str, Call | None, ReportedLimits | None]] = []

    def later(when: float, what: str, call: Call | None = None, told: ReportedLimits | None = None) -> None:
        heapq.heappush(events, (when, next(numbers), what, call, told))

    begun: list[float] = []
    for _ in range(20):
        later(0.0, "ask")
    while events and (event := heapq.heappop(events))[0] < minutes * MINUTE_MS:
        now, number, what, call, told = event
        at(now)
        if what == "ask":
            wanted = Call(f"call-{number}", 60.0, 1_000, 100)
            answer = guard.acquire(wanted)
            if answer.granted:
                begun.append(now)
                later(now + chance.uniform(*lag), "arrive", wanted)
            else:
                later(now + answer.wait_seconds * 1_000 + chance.uniform(0, 50), "ask")
        elif what == "arrive":
            later(now + chance.uniform(*work), "end", call, provider.receive(now))
        else:
            assert call is not None
            guard.report(
                call, Outcome.OK if told else Outcome.LIMITED, input_tokens=1_000, output_tokens=100,
                learned=told or ReportedLimits(retry_after=1.0),
            )  # fmt: skip
            later(now, "ask")
    return begun


@pytest.mark.parametrize(
    ("lag", "work"),
    [
        pytest.param((1, 20), (20, 40), id="calls that are over at once"),
        pytest.param((1, 1_500), (20, 400), id="calls that arrive late"),
        pytest.param((20, 200), (2_000, 30_000), id="answers that take half a minute"),
    ],
)
def test_nine_tenths_of_the_allowed_begin_in_every_minute_and_almost_none_is_refused(lag, work):
    provider = Provider()

    begun = played(provider, minutes=7, lag=lag, work=work)

    assert max(sum(at <= other < at + MINUTE_MS for other in begun) for at in begun) <= REQUESTS
    whole = [at for at in provider.served if MINUTE_MS <= at < 6 * MINUTE_MS]
    assert len(whole) >= 0.9 * 5 * REQUESTS
    assert len([at for at in provider.refused if at >= MINUTE_MS]) <= 0.02 * len(whole)
