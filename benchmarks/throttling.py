"""Five ways of calling a provider with limits, by 20 callers at once.

A call that is refused is tried again twice, after one and two "seconds" of the short minute, as clients commonly do; then it has failed.
What the governor holds back is not a try: nothing was sent. Every figure but the first is in parts of the provider's minute or in per cent.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from agents import outbound
from agents.contracts import AdapterSettings
from agents.exceptions import AgentRateLimited
from agents.governor import Call, Governor
from agents.governor.calling import ProviderFeedback, govern_call
from agents.governor.limits import Profile
from agents.governor.providers import provider_of
from benchmarks.fake_provider import FakeProvider, Limits, Turn
from benchmarks.fake_provider.limits import Meter

CALLS, CALLERS, TRIES = 300, 20, 3
REQUESTS, TOKENS = 50, 100_000  # a minute
MINUTE_SECONDS = 20.0  # short, yet long beside what a call takes to arrive on a busy machine
WORK_SECONDS = 0.02
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "Go."}]}'

Figures = dict[str, float]


class Refused(Exception):
    """A 429, with the headers that came with it."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__("refused")
        self.headers = headers


@dataclass(frozen=True)
class Client:
    """Makes one call to the provider, however it sees fit. Raises `Refused`."""

    provider: FakeProvider

    def call(self) -> None:
        self.send()

    def send(self) -> outbound.OutboundResponse:
        answer = outbound.send(
            "POST", f"{self.provider.openai_url}/chat/completions", headers={"Content-Type": "application/json"}, body=BODY,
            deadline_seconds=30.0, max_bytes=100_000,
        )  # fmt: skip
        if answer.status == 429:
            raise Refused(answer.headers)
        return answer


class Bucket(Client):
    """A plain token bucket in this process, as the seed has it."""

    def __init__(self, provider: FakeProvider) -> None:
        super().__init__(provider)
        object.__setattr__(self, "state", [float(REQUESTS), time.monotonic()])
        object.__setattr__(self, "lock", threading.Lock())

    def call(self) -> None:
        state: list[float] = self.__dict__["state"]
        while True:
            with self.__dict__["lock"]:
                now = time.monotonic()
                state[0] = min(float(REQUESTS), state[0] + (now - state[1]) * REQUESTS / MINUTE_SECONDS)
                state[1] = now
                if state[0] >= 1:
                    state[0] -= 1
                    break
            time.sleep(0.25 * MINUTE_SECONDS / REQUESTS)
        self.send()


class OneByOne(Client):
    """One call after the other, whatever there is room for."""

    def __init__(self, provider: FakeProvider) -> None:
        super().__init__(provider)
        object.__setattr__(self, "lock", threading.Lock())

    def call(self) -> None:
        with self.__dict__["lock"]:
            self.send()


class Adaptive(Client):
    """As many calls at once as went well lately: two to begin with, one more after each success, half of them after a refusal."""

    def __init__(self, provider: FakeProvider) -> None:
        super().__init__(provider)
        object.__setattr__(self, "free", threading.Condition())
        object.__setattr__(self, "state", [2.0, 0])  # how many may be under way, how many are

    def call(self) -> None:
        free, state = self.__dict__["free"], self.__dict__["state"]
        with free:
            while state[1] >= int(state[0]):
                free.wait()
            state[1] += 1
        well = False
        try:
            self.send()
            well = True
        finally:
            with free:
                state[1] -= 1
                state[0] = min(float(CALLERS), state[0] + 1) if well else max(1.0, state[0] / 2)
                free.notify_all()


class Governed(Client):
    """Under the governor, which knows the limits and listens to the provider."""

    def call(self) -> None:
        profile = Profile(requests_per_minute=REQUESTS, input_tokens_per_minute=TOKENS, most_slots=25)
        provider = provider_of(AdapterSettings("openai", self.provider.openai_url))
        governor = Governor(provider.key, profile, minute_seconds=MINUTE_SECONDS)
        while True:
            try:
                with govern_call(provider, Call(str(uuid4()), 30.0, 1_000, 100), governor=governor) as told:
                    self._ask(told)
                return
            except AgentRateLimited as held:
                if not held.nothing_sent:
                    raise Refused({}) from held
                # The engine would put the work aside; here the caller has nothing else to do.
                time.sleep(min(held.retry_after or 1.0, MINUTE_SECONDS / 60))

    def _ask(self, told: ProviderFeedback) -> None:
        try:
            told.headers = self.send().headers
        except Refused as refused:
            told.headers = refused.headers
            raise AgentRateLimited("refused") from refused
        told.input_tokens, told.output_tokens = 1_000, 100


def measured(
    make: Callable[[FakeProvider], Client], calls: int = CALLS, minute: float | None = None
) -> Figures:
    """Have so many calls made, and look at the provider's own record of them."""
    limits = Limits(REQUESTS, TOKENS, None, minute or MINUTE_SECONDS)
    with FakeProvider(limits=limits, work_seconds=WORK_SECONDS) as provider:
        provider.default = lambda body: Turn("Fine.", input_tokens=1_000, output_tokens=100)
        _warm_up(provider, limits)
        client = make(provider)
        began = time.monotonic()
        outcomes = _made(client, calls)
        seconds = time.monotonic() - began
        seen = [(call.began - began, call.status) for call in provider.recorder.calls]
    return _figures(sum(outcomes), calls, seconds, seen, limits)


def _warm_up(provider: FakeProvider, limits: Limits) -> None:
    """What is imported and opened once takes its time, which in a short minute is a lot."""
    Client(provider).send()
    provider.meter = Meter(limits)
    provider.recorder.calls.clear()


def _made(client: Client, calls: int) -> list[bool]:
    work: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(calls):
        work.put(number)
    outcomes: list[bool] = []

    def caller() -> None:
        while True:
            try:
                work.get_nowait()
            except queue.Empty:
                return
            outcomes.append(_tried(client))

    callers = [threading.Thread(target=caller) for _ in range(CALLERS)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    return outcomes


def _tried(client: Client) -> bool:
    for attempt in range(TRIES):
        try:
            client.call()
            return True
        except Refused:
            time.sleep((2**attempt) * MINUTE_SECONDS / 60)
    return False


def _figures(done: int, calls: int, seconds: float, seen: list[tuple[float, int]], limits: Limits) -> Figures:
    minute = limits.minute_seconds
    whole = int(seconds / minute)  # minutes after the first in which there was work all the time
    later = [(at, status) for at, status in seen if minute <= at < whole * minute]
    well = sum(1 for _, status in later if status == 200)
    return {
        "success %": 100 * done / calls,
        "429 %": _share(seen),
        "429 after the first minute %": _share([each for each in seen if each[0] >= minute]),
        "duration, minutes": seconds / minute,
        "of the allowed throughput %": 100 * well / (REQUESTS * (whole - 1)) if whole > 1 else 0.0,
    }


def _share(seen: list[tuple[float, int]]) -> float:
    return 100 * sum(1 for _, status in seen if status == 429) / len(seen) if seen else 0.0


def unthrottled(folder: Path, scale: float) -> Figures:
    return measured(Client, int(CALLS * scale))


def token_bucket(folder: Path, scale: float) -> Figures:
    return measured(Bucket, int(CALLS * scale))


def sequential(folder: Path, scale: float) -> Figures:
    return measured(OneByOne, int(CALLS * scale))


def adaptive(folder: Path, scale: float) -> Figures:
    return measured(Adaptive, int(CALLS * scale))


def governor(folder: Path, scale: float) -> Figures:
    return measured(Governed, int(CALLS * scale))


ALL = {
    "unthrottled": unthrottled,
    "sequential": sequential,
    "token_bucket": token_bucket,
    "adaptive": adaptive,
    "governor": governor,
}
