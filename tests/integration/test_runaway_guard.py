"""The runaway guard limits the starts of a role per minute and worker, by the adapter of its agent, and survives a loss of Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from activities.admission import limits, rebuilding
from activities.models import WorkerProcess
from agents.models import Agent
from tenants.models import Tenant
from tenants.redis import client
from tests.engine import Engine

pytestmark = pytest.mark.usefixtures("one_at_a_time")


@pytest.fixture(autouse=True)
def _restored_agents(database: None) -> Iterator[None]:
    before = {agent.role: (agent.adapter, agent.options) for agent in Agent.objects.all()}
    yield
    for role, (adapter, options) in before.items():
        Agent.objects.filter(role=role).update(adapter=adapter, options=options)
    WorkerProcess.objects.filter(pid=0).delete()


def starts(scope: str) -> Any:
    return limits.current()["caps"].get(f"starts:{scope}")


@pytest.mark.parametrize(
    ("adapter", "limit"),
    [("cli", 10), ("http", 600), ("anthropic", 600), ("openai", 600), ("batch", None), ("inline", None)],
)
def test_each_adapter_has_its_own_limit_per_worker(engine: Engine, adapter: str, limit: int | None) -> None:
    Agent.objects.filter(role="qa").update(adapter=adapter, options={})
    assert starts("qa") == limit

    WorkerProcess.objects.create(pid=0, pid_started=0, roles=["qa"], concurrency=4)
    assert starts("qa") == (limit and 2 * limit)


def test_options_of_the_role_settings_and_a_tenants_own_adapter_change_the_limit(
    engine: Engine, tenant: Tenant, settings: Any
) -> None:
    Agent.objects.filter(role="qa").update(adapter="cli", options={"starts_per_minute": 3})
    Agent.objects.filter(role="dev").update(adapter="cli", options={})
    settings.ORCHESTRATOR_STARTS_PER_MINUTE = {**settings.ORCHESTRATOR_STARTS_PER_MINUTE, "cli": 7}
    engine.serve(tenant, "dev")  # by an inline agent, which has no limit

    assert (starts("qa"), starts("dev"), starts(f"{tenant.pk}:dev")) == (3, 7, limits.NO_LIMIT)


def test_waiting_work_names_the_guard_and_a_wiped_redis_allows_no_further_starts(
    api: Any, engine: Engine, tenant: Tenant
) -> None:
    Agent.objects.filter(role="qa").update(options={"starts_per_minute": 2})
    engine.serve(tenant, "qa")
    engine.submit(tenant, "qa", 2)
    engine.drain()
    (late,) = engine.submit(tenant, "qa")

    def check_wait_reason() -> None:
        assert engine.messages() == 0
        why = api().get(f"/api/v1/activities/{late}/why/").json()
        assert (why["code"], why["position"]) == ("role_cap", 1)
        assert why["holder"] == "runaway guard: 2 of 2 starts within a minute for qa"
        assert 0 < why["estimate_seconds"] <= 60

    check_wait_reason()
    client().flushdb()
    rebuilding.rebuild()
    check_wait_reason()
    assert len(engine.agent.calls) == 2
