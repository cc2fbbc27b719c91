"""Caps that no tenant sets: of an agent over all tenants, and of everything together; and what the HTTP client is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from activities.admission import limits
from agents import configuration, outbound, scheduler_settings
from agents.adapters.base import UNLINKED
from agents.adapters.http import HttpAdapter
from agents.contracts import AdapterSettings, HttpLimits
from agents.exceptions import AgentError
from agents.models import Agent, PlatformConfig
from agents.outbound import gate
from agents.scheduler_settings import values
from tenants.models import Tenant
from tests.engine import Engine
from tests.integration.adapter_contract.answering_agents import a_request

pytestmark = pytest.mark.usefixtures("one_at_a_time")


@pytest.fixture(autouse=True)
def _as_they_were(database: None) -> Iterator[None]:
    yield
    Agent.objects.filter(role="qa").update(max_concurrency=None)
    outbound.close_connections()
    gate.shared = gate.Gate()
    scheduler_settings.forget()
    configuration.forget()


def test_an_agent_does_no_more_at_once_than_it_can_for_all_tenants_together(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    Agent.objects.filter(role="qa").update(max_concurrency=3)
    for each in (tenant, other_tenant):
        engine.serve(each)
        engine.submit(each, "qa", 4)
    engine.submit(tenant, "dev")

    assert engine.messages() == 3 + 1
    engine.deliver()
    assert engine.messages() == 3 + 1
    assert engine.drain() == 8
    assert len(engine.agent.calls) == 9


def test_no_more_is_under_way_than_the_installation_allows(
    engine: Engine, tenant: Tenant, other_tenant: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAX_CONCURRENCY = 2
    for each in (tenant, other_tenant):
        engine.serve(each)
        engine.submit(each, "qa", 3)
        engine.submit(each, "dev", 3)

    assert engine.messages() == 2
    engine.deliver()
    assert engine.messages() == 2
    settings.ORCHESTRATOR_MAX_CONCURRENCY = 0
    limits.refresh()
    engine.drain()
    assert len(engine.agent.calls) == 12


def test_the_http_adapter_tells_the_client_what_the_platform_allows(settings: Any) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()
    limited = AdapterSettings(
        "http", endpoint="https://127.0.0.1/", http=HttpLimits(max_concurrent=7, keep_alive=False)
    )

    with pytest.raises(AgentError):
        HttpAdapter().run(a_request(limited), link=UNLINKED)

    assert (gate.shared.limits.max_concurrent, gate.shared.limits.keep_alive) == (7, False)


def test_what_another_process_has_saved_reaches_the_next_call_within_two_seconds(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [5_000.0]
    monkeypatch.setattr(values.time, "monotonic", lambda: clock[0])
    scheduler_settings.forget()
    configuration.forget()
    for moment in range(20):  # asked all the time, so that each memory is as young as it can be
        clock[0] += 0.1
        assert configuration.settings_for(tenant.pk, "qa").adapter.http.max_concurrent == 50, moment

    PlatformConfig.objects.create(
        key="scheduler", value={"http_client": {"max_concurrent_requests": 4, "timeout": 90_000}}
    )
    for _ in range(19):
        clock[0] += 0.1
        configuration.settings_for(tenant.pk, "qa")

    now = configuration.settings_for(tenant.pk, "qa")
    assert (now.adapter.http.max_concurrent, now.timeout_seconds) == (4, 90)
