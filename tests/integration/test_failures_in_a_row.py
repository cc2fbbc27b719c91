"""Alerts about consecutive failures of a role or of a schedule's work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from activities.maintenance import counters, platform_checks
from activities.models import Alert, FailuresInARow
from activities.models.alert import AlertKind
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.exceptions import AgentRateLimited, PermanentAgentError, RetryableAgentError, ServerAway
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, simultaneously
from tests.metrics import count_all, samples, scrape

pytestmark = pytest.mark.usefixtures("one_at_a_time")


@pytest.fixture
def acme(engine: Engine, tenant: Tenant, settings: Any) -> Tenant:
    settings.ORCHESTRATOR_ALERT_FAILURES_IN_A_ROW = 3
    engine.serve(tenant)
    return tenant


def fail_with(error: Exception) -> Callable[[AgentRequest], AgentResult]:
    def run(request: AgentRequest) -> AgentResult:
        raise error

    return run


def succeed(request: AgentRequest) -> AgentResult:
    return Completed(Output(content="done"))


def work(
    engine: Engine, tenant: Tenant, behaviour: Any, count: int = 1, role: str = "qa", **fields: Any
) -> None:
    engine.agent.behaviour = behaviour
    engine.submit(tenant, role, count, **fields)
    engine.drain()
    count_all()


def rows(tenant: Tenant) -> dict[str, int]:
    with tenant_scope(tenant.pk):
        return dict(FailuresInARow.objects.values_list("subject", "count"))


def check_alerts(tenant: Tenant) -> list[tuple[str, str]]:
    """Run the check; return all alerts of the tenant."""
    platform_checks.announce_changes(AlertKind.FAILURES_IN_A_ROW, platform_checks.find_failures_in_a_row())
    with tenant_scope(tenant.pk):
        alerts = Alert.objects.filter(kind=AlertKind.FAILURES_IN_A_ROW).order_by("created_at", "pk")
        return [(alert.severity, alert.title) for alert in alerts]


BROKEN = PermanentAgentError("It broke.", code="broken")


def test_consecutive_failures_raise_one_alert_and_a_success_resolves_it(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    work(engine, acme, fail_with(BROKEN), 2)
    assert check_alerts(acme) == []
    work(engine, acme, fail_with(BROKEN), 2)
    for _ in range(3):
        alerts_of_acme = check_alerts(acme)

    assert alerts_of_acme == [("warning", "qa fails repeatedly")]
    assert rows(acme) == {"qa": 4}
    with tenant_scope(acme.pk):
        alert = Alert.objects.get(kind=AlertKind.FAILURES_IN_A_ROW)
    assert (alert.facts["role"], alert.facts["failures"], alert.facts["error"]) == ("qa", 4, "broken")
    work(engine, acme, succeed)
    assert check_alerts(acme)[1:] == [("info", "qa succeeds again")]
    assert (rows(acme), check_alerts(other_tenant)) == ({}, [])


def test_failed_attempts_count_and_a_success_resets_the_count(engine: Engine, acme: Tenant) -> None:
    failures = iter([True, True, False, True, True])

    def fail_by_plan(request: AgentRequest) -> AgentResult:
        if next(failures):
            raise RetryableAgentError("down", code="down")
        return succeed(request)

    engine.agent.behaviour = fail_by_plan
    engine.submit(acme, max_attempts=3)
    for _ in range(3):
        engine.drain()
        engine.make_due(acme)
    assert rows(acme) == {}, "nothing is counted before the counters run"
    count_all()
    assert rows(acme) == {}
    engine.submit(acme, max_attempts=3)
    for _ in range(2):
        engine.drain()
        engine.make_due(acme)
    count_all()

    assert rows(acme) == {"qa": 2}
    assert check_alerts(acme) == []


def test_failures_of_another_role_or_tenant_are_not_added(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    work(engine, acme, fail_with(BROKEN), 2)
    work(engine, acme, fail_with(BROKEN), 2, role="dev")
    work(engine, other_tenant, fail_with(BROKEN), 2)

    assert (rows(acme), rows(other_tenant)) == ({"qa": 2, "dev": 2}, {"qa": 2})
    assert check_alerts(acme) == check_alerts(other_tenant) == []


def test_failures_of_a_schedule_are_counted_over_all_its_roles(engine: Engine, acme: Tenant) -> None:
    schedule: UUID = uuid4()
    for role in ("qa", "dev", "seo"):
        work(engine, acme, fail_with(BROKEN), role=role, schedule_id=schedule)

    assert rows(acme) == {"qa": 1, "dev": 1, "seo": 1, str(schedule): 3}
    assert check_alerts(acme) == [("warning", f"The schedule {schedule} fails repeatedly")]


@pytest.mark.parametrize(
    "error",
    [
        AgentRateLimited("later", retry_after=60.0),
        AgentRateLimited("held", code="breaker_open", retry_after=60.0),
        ServerAway("gone"),
    ],
    ids=["refused", "held back", "server away"],
)
def test_refusals_and_outages_do_not_count(engine: Engine, acme: Tenant, error: Exception) -> None:
    work(engine, acme, fail_with(error), 4)

    assert rows(acme) == {}


def test_a_limit_of_zero_disables_the_alerts(engine: Engine, acme: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_ALERT_FAILURES_IN_A_ROW = 0
    work(engine, acme, fail_with(BROKEN), 4)

    assert check_alerts(acme) == []


def test_concurrent_counters_count_each_failure_once(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.agent.behaviour = fail_with(BROKEN)
    engine.submit(acme, count=10)
    count_all()  # counts the events of earlier tests
    monkeypatch.setattr(counters, "BATCH", 7)
    engine.drain()

    simultaneously(*[counters.count_fresh] * 4)
    count_all()

    assert rows(acme) == {"qa": 10}
    with system_scope():
        assert FailuresInARow.objects.count() == 1


def test_metrics_count_refusals_but_not_calls_that_were_held_back(engine: Engine, acme: Tenant) -> None:
    work(engine, acme, fail_with(AgentRateLimited("later", retry_after=60.0)), 3)
    work(
        engine,
        acme,
        fail_with(AgentRateLimited("held", code="provider_limit", retry_after=60.0)),
        2,
        role="dev",
    )
    work(engine, acme, fail_with(BROKEN), 2)

    alerts = {key: value for key, value in samples(scrape()).items() if key[0] == "refusals_total"}
    assert alerts == {("refusals_total", "qa"): 3.0}
