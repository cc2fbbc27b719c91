"""Five ways to make 300 calls, by 20 concurrent callers, to a provider that allows 50 requests per minute.

The provider is simulated and its minute is short. A refused call is retried twice, after one and two sixtieths of that minute, as clients
commonly do; then it has failed. A call that the governor delays was not sent, so it is not a try.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
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
from benchmarks.figures import Figures

CALLS, CALLERS, TRIES = 300, 20, 3
REQUESTS, TOKENS = 50, 100_000  # a minute
MINUTE_SECONDS = 20.0  # long compared with a call on a busy machine
WORK_SECONDS = 0.02
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "Go."}]}'


class Refused(Exception):
    """The provider answered 429. `headers`: of that answer."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__("refused")
        self.headers = headers


class Client:
    """Makes calls to the provider without any limit of its own. `call` raises `Refused`."""

    def __init__(self, provider: FakeProvider) -> None:
        self.provider = provider

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
    """Waits for a token of a bucket in this process."""

    def __init__(self, provider: FakeProvider) -> None:
        super().__init__(provider)
        self.lock, self.tokens, self.filled_at = threading.Lock(), float(REQUESTS), time.monotonic()

    def call(self) -> None:
        while not self._take_token():
            time.sleep(0.25 * MINUTE_SECONDS / REQUESTS)
        self.send()

    def _take_token(self) -> bool:
        with self.lock:
            now = time.monotonic()
            new_tokens = (now - self.filled_at) * REQUESTS / MINUTE_SECONDS
            self.tokens, self.filled_at = min(float(REQUESTS), self.tokens + new_tokens), now
            if self.tokens < 1:
                return False
            self.tokens -= 1
            return True


class OneByOne(Client):
    """Makes one call after the other."""

    def __init__(self, provider: FakeProvider) -> None:
        super().__init__(provider)
        self.lock = threading.Lock()

    def call(self) -> None:
        with self.lock:
            self.send()


class Adaptive(Client):
    """Adapts the number of concurrent calls: two at first, one more after each success, half as many after a refusal."""

    def __init__(self, provider: FakeProvider) -> None:
        super().__init__(provider)
        self.free, self.allowed, self.current = threading.Condition(), 2.0, 0

    def call(self) -> None:
        with self.free:
            while self.current >= int(self.allowed):
                self.free.wait()
            self.current += 1
        succeeded = False
        try:
            self.send()
            succeeded = True
        finally:
            with self.free:
                self.current -= 1
                self.allowed = (
                    min(float(CALLERS), self.allowed + 1) if succeeded else max(1.0, self.allowed / 2)
                )
                self.free.notify_all()


class Governed(Client):
    """Uses the governor, which knows the limits and follows the provider's answers."""

    def call(self) -> None:
        profile = Profile(requests_per_minute=REQUESTS, input_tokens_per_minute=TOKENS, most_slots=25)
        provider = provider_of(AdapterSettings("openai", self.provider.openai_url))
        governor = Governor(provider.key, profile, minute_seconds=MINUTE_SECONDS)
        while True:
            try:
                with govern_call(
                    provider, Call(str(uuid4()), 30.0, 1_000, 100), governor=governor
                ) as feedback:
                    self._send_governed(feedback)
                return
            except AgentRateLimited as delayed:
                if not delayed.nothing_sent:
                    raise Refused({}) from delayed
                # The engine would run other work meanwhile. This caller has none.
                time.sleep(min(delayed.retry_after or 1.0, MINUTE_SECONDS / 60))

    def _send_governed(self, feedback: ProviderFeedback) -> None:
        try:
            feedback.headers = self.send().headers
        except Refused as refused:
            feedback.headers = refused.headers
            raise AgentRateLimited("refused") from refused
        feedback.input_tokens, feedback.output_tokens = 1_000, 100


def _scenario(make: Callable[[FakeProvider], Client]) -> Callable[[Path, float], Figures]:
    return lambda folder, scale: _measure(make, int(CALLS * scale))


def _measure(
    make: Callable[[FakeProvider], Client], calls: int = CALLS, minute: float | None = None
) -> Figures:
    """Make the calls, and calculate figures from the provider's record of them."""
    limits = Limits(REQUESTS, TOKENS, None, minute or MINUTE_SECONDS)
    with FakeProvider(limits=limits, work_seconds=WORK_SECONDS) as provider:
        provider.default = lambda body: Turn("Fine.", input_tokens=1_000, output_tokens=100)
        _warm_up(provider, limits)
        client = make(provider)
        began = time.monotonic()
        outcomes = _make_calls(client, calls)
        seconds = time.monotonic() - began
        requests = [(call.began - began, call.status) for call in provider.recorder.calls]
    return _figures(sum(outcomes), calls, seconds, requests, limits)


def _warm_up(provider: FakeProvider, limits: Limits) -> None:
    """Make one call that does not count, because first imports and connections take long compared with the short minute."""
    Client(provider).send()
    provider.meter = Meter(limits)
    provider.recorder.calls.clear()


def _make_calls(client: Client, calls: int) -> list[bool]:
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
            outcomes.append(_call_with_retries(client))

    callers = [threading.Thread(target=caller) for _ in range(CALLERS)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    return outcomes


def _call_with_retries(client: Client) -> bool:
    """Return whether the call succeeded."""
    for attempt in range(TRIES):
        try:
            client.call()
            return True
        except Refused:
            time.sleep((2**attempt) * MINUTE_SECONDS / 60)
    return False


def _figures(
    successes: int, calls: int, seconds: float, requests: list[tuple[float, int]], limits: Limits
) -> Figures:
    minute = limits.minute_seconds
    minutes = int(seconds / minute)  # full minutes, which had work all the time
    later = [(at, status) for at, status in requests if minute <= at < minutes * minute]
    allowed = sum(1 for _, status in later if status == 200)
    return {
        "success %": 100 * successes / calls,
        "429 %": _refused_percent(requests),
        "429 after the first minute %": _refused_percent([each for each in requests if each[0] >= minute]),
        "duration, minutes": seconds / minute,
        "of the allowed throughput %": 100 * allowed / (REQUESTS * (minutes - 1)) if minutes > 1 else 0.0,
    }


def _refused_percent(requests: list[tuple[float, int]]) -> float:
    return 100 * sum(1 for _, status in requests if status == 429) / len(requests) if requests else 0.0


SCENARIOS: dict[str, Callable[[Path, float], Figures]] = {
    "unthrottled": _scenario(Client),
    "sequential": _scenario(OneByOne),
    "token_bucket": _scenario(Bucket),
    "adaptive": _scenario(Adaptive),
    "governor": _scenario(Governed),
}
