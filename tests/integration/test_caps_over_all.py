"""Caps of the platform: of an agent over all tenants, of all work together, of plans, and of the HTTP client."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from time import sleep
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db.models.functions import Now

from activities import intake, relay, rescheduling
from activities.admission import limits, rebuilding
from activities.models import Activity
from agents import configuration, outbound, scheduler_settings
from agents.adapters import UNLINKED
from agents.adapters.http import HttpAdapter
from agents.contracts import AdapterSettings, Completed, HttpLimits, Output
from agents.exceptions import AgentError
from agents.models import Agent, PlatformConfig
from agents.outbound import budget
from tenants.context import system_scope, tenant_scope
from tenants.models import Plan, Tenant
from tests.engine import Engine
from tests.integration.adapter_contract.answering_agents import a_request

pytestmark = pytest.mark.usefixtures("one_at_a_time")


@pytest.fixture(autouse=True)
def _restore(database: None) -> Iterator[None]:
    yield
    Agent.objects.filter(role="qa").update(max_concurrency=None)
    outbound.close_connections()
    budget.shared = budget.Gate()
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


def test_no_more_runs_at_once_than_the_installation_allows(
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
    limits.forget()  # as in a process that starts with the new setting
    limits.refresh()
    engine.drain()
    assert len(engine.agent.calls) == 12


def test_tenants_take_turns_where_the_limit_of_an_agent_is_reached(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    Agent.objects.filter(role="qa").update(max_concurrency=1)
    for each in (tenant, other_tenant):
        engine.serve(each)
        engine.submit(each, "qa", 6)
    engine.agent.behaviour = working_for(0.2)  # much longer than what a busy machine adds to a run

    for _ in range(8):
        engine.deliver()

    assert 3 <= sum(call.tenant_id == tenant.pk for call in engine.agent.calls) <= 5


@pytest.mark.parametrize("limit", ["tenant", "role", "overall"])
def test_urgent_work_is_next_however_old_other_work_is(
    engine: Engine, tenant: Tenant, settings: Any, limit: str
) -> None:
    engine.serve(tenant, "qa", **({"max_concurrency": 1} if limit == "tenant" else {}))
    Agent.objects.filter(role="qa").update(max_concurrency=1 if limit == "role" else None)
    settings.ORCHESTRATOR_MAX_CONCURRENCY = 1 if limit == "overall" else 0
    limits.forget()
    engine.submit(tenant, "qa", 10)
    with tenant_scope(tenant.pk):
        Activity.objects.update(created_at=Now() - timedelta(minutes=10))
    rebuilding.rebuild()
    relay.grant_waiting()  # the oldest starts
    (urgent,) = engine.submit(tenant, "qa", priority=1)

    while len(engine.agent.calls) < 2:
        assert engine.deliver()

    assert engine.agent.calls[1].activity_id == urgent


def working_for(seconds: float) -> Any:
    def work(request: Any) -> Completed:
        sleep(seconds)
        return Completed(Output(content="done"))

    return work


def test_the_http_adapter_passes_the_platforms_limits_to_the_client(settings: Any) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()
    limited = AdapterSettings(
        "http", endpoint="https://127.0.0.1/", http=HttpLimits(max_concurrent=7, keep_alive=False)
    )

    with pytest.raises(AgentError):
        HttpAdapter().run(a_request(limited), link=UNLINKED)

    assert (budget.shared.limits.max_concurrent, budget.shared.limits.keep_alive) == (7, False)


def test_a_setting_saved_by_another_process_reaches_the_next_call_within_two_seconds(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [5_000.0]
    monkeypatch.setattr(scheduler_settings.time, "monotonic", lambda: clock[0])
    scheduler_settings.forget()
    configuration.forget()
    for moment in range(20):  # read all the time, so that each cache is as fresh as possible
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


# Plans: common limits of many tenants.


@pytest.fixture
def plan(database: None) -> Iterator[Plan]:
    with system_scope():
        plan_of_tenants = Plan.objects.create(key="small", name="Small", max_concurrency=3, roles={"qa": 2})
    yield plan_of_tenants
    with system_scope():
        Tenant.objects.update(plan=None)
        plan_of_tenants.delete()


def give(plan: Plan | None, *tenants: Tenant) -> None:
    with system_scope():
        Tenant.objects.filter(pk__in=[each.pk for each in tenants]).update(plan=plan)
    limits.refresh()


def test_each_tenant_of_a_plan_has_its_limits_and_others_do_not(
    engine: Engine, tenant: Tenant, other_tenant: Tenant, plan: Plan
) -> None:
    for each in (tenant, other_tenant):
        engine.serve(each)
    give(plan, tenant)
    for each in (tenant, other_tenant):
        engine.submit(each, "qa", 4)
        engine.submit(each, "dev", 2)

    assert engine.messages() == 3 + 6, "two of qa and one of dev, and all of the tenant without a plan"


def test_limits_of_a_tenant_override_its_plan(engine: Engine, tenant: Tenant, plan: Plan) -> None:
    engine.serve(tenant, "qa", max_concurrency=4)
    give(plan, tenant)
    with system_scope():
        Tenant.objects.filter(pk=tenant.pk).update(max_concurrency=5)
    limits.refresh()
    engine.submit(tenant, "qa", 9)

    assert engine.messages() == 4

    engine.serve(tenant, "qa", max_concurrency=None)
    engine.drain()
    engine.submit(tenant, "qa", 9)
    assert engine.messages() == 2, "the limit of the plan applies again"


def test_a_change_of_a_plan_takes_effect_at_once_for_waiting_work_too(
    engine: Engine, tenant: Tenant, plan: Plan
) -> None:
    engine.serve(tenant)
    give(plan, tenant)
    engine.submit(tenant, "qa", 6)
    assert engine.messages() == 2

    with system_scope():
        Plan.objects.update(roles={"qa": 4}, max_concurrency=None)
    intake.update_admission()
    assert engine.messages() == 4

    with system_scope():
        Tenant.objects.filter(pk=tenant.pk).update(plan=None)
    intake.update_admission()
    assert engine.messages() == 5, "the limit of the registry applies"


def test_running_past_a_pause_respects_the_plan(engine: Engine, tenant: Tenant, plan: Plan) -> None:
    engine.serve(tenant, "qa", paused=True)
    give(plan, tenant)
    waiting = engine.submit(tenant, "qa", 4)
    assert engine.messages() == 0

    for each in waiting:
        rescheduling.run_now(tenant.pk, each, actor="ann", reason="at once")

    assert engine.messages() == 2


def test_errors_of_a_plan_are_reported(database: None) -> None:
    for roles in ({"qa": 0}, {"qa": "2"}, {"qa": True}, ["qa"]):
        with pytest.raises(ValidationError):
            Plan(key="wrong", name="Wrong", roles=roles).full_clean()
