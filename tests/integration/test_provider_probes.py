"""A failing provider that no work calls is probed some time after its breaker has opened."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from activities import background_tasks
from activities.maintenance import platform_checks
from activities.models import Condition
from activities.models.alert import AlertKind
from agents import health, outbound
from agents.contracts import AdapterSettings
from agents.governor import Answer, Call, Governor, Outcome, keys, overview, providers
from agents.governor.providers import KnownProvider, Provider
from agents.health import probe_failing
from tenants import redis
from tenants.context import system_scope
from tests.engine import Engine, simultaneously
from tests.integration.test_agent_health import agent_server


@pytest.fixture
def server(settings: Any) -> Iterator[Any]:
    with agent_server() as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW = (f"127.0.0.1:{running.server_port}",)
        yield running
    outbound.close_connections()


@pytest.fixture
def provider(engine: Engine, server: Any) -> Provider:
    """A provider whose breaker has just opened."""
    return failing_provider(server)


def failing_provider(server: Any, token: str = "s3cret") -> Provider:
    adapter_settings = AdapterSettings(
        adapter="openai",
        endpoint=f"http://127.0.0.1:{server.server_port}/v1",
        auth={"type": "bearer", "token": token},
    )
    provider = providers.provider_of(adapter_settings)
    providers.note_call(provider)
    for number in range(provider.profile.breaker_faults):
        call = Call(id=str(number), deadline_seconds=5)
        assert provider.governor.acquire(call).granted
        provider.governor.report(call, Outcome.FAULT)
    return provider


def let_pass(provider: Provider | KnownProvider, seconds: float) -> None:
    redis.client().hincrby(keys.of_provider(provider.key)[0], "open_until", -int(seconds * 1000))


def test_the_breaker_closes_when_a_probe_is_answered(provider: Provider, server: Any) -> None:
    assert (probe_failing(), server.calls) == (0, []), "no probe during the cooldown"
    let_pass(provider, 61)
    assert (probe_failing(), server.calls) == (0, []), "waiting work may try first"
    let_pass(provider, 5)

    server.status = 401
    assert probe_failing() == 1

    assert server.calls == [("GET", "/v1", None)], "a probe sends no credentials"
    assert provider.governor.status().breaker == "closed"
    assert (probe_failing(), overview.failing()) == (0, [])


def test_a_provider_that_still_fails_is_probed_again_after_another_minute(
    provider: Provider, server: Any
) -> None:
    let_pass(provider, 66)
    server.status = 503

    assert [probe_failing() for _ in range(3)] == [1, 0, 0]

    status = provider.governor.status()
    assert (status.breaker, round(status.breaker_seconds)) == ("open", 60)
    let_pass(provider, 66)
    assert probe_failing() == 1
    assert len(server.calls) == 2


def test_providers_that_hang_do_not_occupy_a_worker_and_take_turns(
    provider: Provider, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PROBING_SECONDS", 0.0)
    server.status = 503
    failing_provider(server, "another-secret")
    first, second = overview.failing()
    let_pass(first, 66)
    let_pass(second, 90)

    assert probe_failing() == 1

    states = [Governor(each.key, each.profile).status().breaker for each in (first, second)]
    assert states == ["half_open", "open"], "the one that waits for longest was probed"
    assert probe_failing() == 1
    assert len(server.calls) == 2


def test_of_several_probes_at_once_one_is_sent(provider: Provider, server: Any) -> None:
    let_pass(provider, 66)

    assert sorted(simultaneously(*[probe_failing] * 4)) == [0, 0, 0, 1]

    assert len(server.calls) == 1


def test_a_probe_is_not_sent_if_another_one_has_ended_since_the_status_was_read(
    provider: Provider, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_pass(provider, 66)
    acquire = Governor.acquire

    def acquire_after_another_probe(governor: Governor, call: Call) -> Answer:
        monkeypatch.setattr(Governor, "acquire", acquire)
        assert probe_failing() == 1
        return acquire(governor, call)

    monkeypatch.setattr(Governor, "acquire", acquire_after_another_probe)

    assert probe_failing() == 0

    assert len(server.calls) == 1
    assert (provider.governor.status().breaker, provider.governor.status().under_way) == ("closed", 0)


def test_no_probe_is_sent_while_work_tries_the_provider(provider: Provider, server: Any) -> None:
    let_pass(provider, 66)
    assert provider.governor.acquire(Call(id="work", deadline_seconds=30)).granted

    assert (probe_failing(), server.calls) == (0, [])


def test_the_breaker_of_an_unreachable_provider_stays_open(provider: Provider, server: Any) -> None:
    let_pass(provider, 66)
    server.shutdown()
    server.server_close()

    assert probe_failing() == 1
    assert provider.governor.status().breaker == "open"


def test_a_provider_recorded_without_its_address_is_not_probed(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_pass(provider, 66)
    known = [replace(each, base_url="") for each in overview.failing()]
    monkeypatch.setattr(overview, "failing", lambda: known)

    assert health.probe_failing() == 0


def test_workers_get_hints_to_probe_only_while_a_provider_fails(provider: Provider) -> None:
    assert _reminded() == []

    platform_checks.announce_changes(AlertKind.BREAKER_OPEN, platform_checks.find_open_breakers())

    assert _reminded() == ["provider-probes"]
    let_pass(provider, 66)
    probe_failing()
    platform_checks.announce_changes(AlertKind.BREAKER_OPEN, platform_checks.find_open_breakers())
    with system_scope():
        assert not Condition.objects.exists()
    assert _reminded() == []


def _reminded() -> list[str]:
    """Hints of a leader that has just sent those of all other tasks, because they share a queue."""
    others = [name for name in background_tasks._tasks if name != "provider-probes"]
    return background_tasks.Reminder(dict.fromkeys(others, time.monotonic())).remind()
