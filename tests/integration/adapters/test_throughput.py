"""Concurrent callers of the fake provider, and how it enforces limits. Their cost: tests/integration/test_governor_throughput.py."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agents.contracts import AdapterSettings
from agents.exceptions import AgentRateLimited
from agents.governor import Call
from agents.governor.providers import provider_of
from benchmarks import providers
from benchmarks.fake_provider import FakeProvider, Fault, Limits, Turn


def test_no_more_calls_run_at_once_than_there_are_slots(provider: FakeProvider, settings: Any) -> None:
    """Twelve callers, three slots: the recorder never sees a fourth call, and nobody loses an attempt."""
    provider.work_seconds, provider.key = 0.02, None
    provider.default = lambda body: Turn("Fine.", input_tokens=1, output_tokens=1)
    chosen = AdapterSettings("openai", provider.openai_url, options={"provider": {"most_slots": 3}})
    limited_provider = provider_of(chosen)
    barrier = threading.Barrier(12)

    def caller(number: int) -> int:
        barrier.wait()
        return _calls(limited_provider, f"{number}", provider)

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(caller, range(12))) == 36
    assert provider.recorder.most_at_once <= 3


def _calls(limited_provider: Any, name: str, provider: FakeProvider) -> int:
    from agents.governor import calling

    done = 0
    while done < 3:
        try:
            with calling.govern_call(limited_provider, Call(f"{name}-{done}", 30.0), patience_seconds=20.0):
                providers.Client(provider).send()
            done += 1
        except AgentRateLimited:
            continue
    return done


def test_the_fake_provider_counts_requests_and_tokens_and_says_when_to_retry() -> None:
    with FakeProvider(limits=Limits(requests=3, input_tokens=100, minute_seconds=60)) as provider:
        meter = provider.meter
        assert [meter.admit(40), meter.admit(40)] == [None, None]
        wait = meter.admit(40)
        assert wait is not None
        assert 59 < wait <= 60
        assert meter.admit(10) is None
        assert meter.admit(1) is not None
        assert {name: left.remaining for name, left in meter.left().items()} == {
            "requests": 0,
            "input_tokens": 10,
        }


def test_a_fake_batch_has_a_result_for_each_request_and_fails_as_scripted() -> None:
    with FakeProvider() as provider:
        batches = provider.batches
        batches.failing["b"] = 1
        _, batch = batches.create({"requests": [{"custom_id": name, "params": {}} for name in ("a", "b")]})
        again = batches.create({"requests": [{"custom_id": "b", "params": {}}]})[1]

        assert batch["processing_status"] == "in_progress"
        assert batches.results(batch["id"])[0] == 404
        assert batches.retrieve(batch["id"])[1]["request_counts"] == {
            "processing": 0, "succeeded": 1, "errored": 1, "canceled": 0, "expired": 0,
        }  # fmt: skip
        assert b'"errored"' in batches.results(batch["id"])[1]
        assert batches.retrieve(again["id"])[1]["request_counts"]["succeeded"] == 1
        assert Fault().kind == "status"


@pytest.mark.parametrize("way", providers.SCENARIOS)
def test_each_compared_way_of_calling_calls_as_described(
    way: str, settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Runs what `benchmarks.providers` compares, in a second. Nothing is refused while the provider has capacity."""
    monkeypatch.setattr(providers, "MINUTE_SECONDS", 5.0)
    at_once: list[int] = []

    class Watched(FakeProvider):
        def __enter__(self) -> Any:
            running = super().__enter__()
            settings.ORCHESTRATOR_EGRESS_ALLOW = (running.place,)
            return running

        def __exit__(self, *raised: Any) -> Any:
            at_once.append(self.recorder.most_at_once)
            return super().__exit__(*raised)

    monkeypatch.setattr(providers, "FakeProvider", Watched)

    figures = providers.SCENARIOS[way](tmp_path, 12 / providers.CALLS)

    assert (figures["success %"], figures["429 %"]) == (100, 0)
    assert at_once[0] == 1 if way == "sequential" else at_once[0] > 1
