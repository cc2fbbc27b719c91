"""A provider that failed and that no work calls is asked whether it answers again, a while after its breaker has opened."""

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
from agents.governor import Call, Outcome, keys, overview, providers
from agents.governor.providers import Provider
from agents.health import probe_failing
from tenants import redis
from tenants.context import system_scope
from tests.engine import Engine, at_once
from tests.integration.test_agent_health import agent_server


@pytest.fixture
def server(settings: Any) -> Iterator[Any]:
    with agent_server() as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW = (f"127.0.0.1:{running.server_port}",)
        yield running
    outbound.close_connections()


@pytest.fixture
def provider(engine: Engine, server: Any) -> Provider:
    """One whose breaker has just opened."""
    chosen = AdapterSettings(
        adapter="openai",
        endpoint=f"http://127.0.0.1:{server.server_port}/v1",
        auth={"type": "bearer", "token": "s3cret"},
    )
    found = providers.provider_of(chosen)
    providers.note_call(found)
    for number in range(found.profile.breaker_faults):
        call = Call(id=str(number), deadline_seconds=5)
        assert found.governor.acquire(call).granted
        found.governor.report(call, Outcome.FAULT)
    return found


def let_pass(provider: Provider, seconds: float) -> None:
    redis.client().hincrby(keys.of_provider(provider.key)[0], "open_until", -int(seconds * 1000))


def test_an_idle_provider_that_answers_again_is_found_well(provider: Provider, server: Any) -> None:
    assert (probe_failing(), server.asked) == (0, []), "during the cooldown nobody asks"
    let_pass(provider, 61)
    assert (probe_failing(), server.asked) == (0, []), "work that waited comes first"
    let_pass(provider, 5)

    server.status = 401
    assert probe_failing() == 1

    assert server.asked == [("GET", "/v1", None)], "no credentials leave for a probe"
    assert provider.governor.status().breaker == "closed"
    assert (probe_failing(), overview.failing()) == (0, [])


def test_one_that_still_fails_is_asked_again_after_another_minute(provider: Provider, server: Any) -> None:
    let_pass(provider, 66)
    server.status = 503

    assert [probe_failing() for _ in range(3)] == [1, 0, 0]

    standing = provider.governor.status()
    assert (standing.breaker, round(standing.breaker_seconds)) == ("open", 60)
    let_pass(provider, 66)
    assert probe_failing() == 1
    assert len(server.asked) == 2


def test_of_probes_at_once_one_asks(provider: Provider, server: Any) -> None:
    let_pass(provider, 66)

    assert sorted(at_once(*[probe_failing] * 4)) == [0, 0, 0, 1]

    assert len(server.asked) == 1


def test_work_that_is_at_it_is_not_disturbed(provider: Provider, server: Any) -> None:
    let_pass(provider, 66)
    assert provider.governor.acquire(Call(id="work", deadline_seconds=30)).granted

    assert (probe_failing(), server.asked) == (0, [])


def test_one_that_nobody_can_reach_stays_as_it_is(provider: Provider, server: Any) -> None:
    let_pass(provider, 66)
    server.shutdown()
    server.server_close()

    assert probe_failing() == 1
    assert provider.governor.status().breaker == "open"


def test_one_noted_without_its_address_is_left_to_work(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_pass(provider, 66)
    known = [replace(each, base_url="") for each in overview.failing()]
    monkeypatch.setattr(overview, "failing", lambda: known)

    assert health.probe_failing() == 0


def test_workers_are_told_to_probe_while_a_provider_fails(provider: Provider) -> None:
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
    """By a leader that has just hinted at everything else, which would take its turn in the same queue."""
    others = [name for name in background_tasks._tasks if name != "provider-probes"]
    return background_tasks.Reminder(dict.fromkeys(others, time.monotonic())).remind()
