"""A role, or what a schedule starts, that fails again and again is told of, whether or not its work is tried again."""

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
from tests.counting import count_all, samples, scraped
from tests.engine import Engine, at_once

pytestmark = pytest.mark.usefixtures("one_at_a_time")


@pytest.fixture
def acme(engine: Engine, tenant: Tenant, settings: Any) -> Tenant:
    settings.ORCHESTRATOR_ALERT_FAILURES_IN_A_ROW = 3
    engine.serve(tenant)
    return tenant


def breaks(error: Exception) -> Callable[[AgentRequest], AgentResult]:
    def run(request: AgentRequest) -> AgentResult:
        raise error

    return run


def well(request: AgentRequest) -> AgentResult:
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


def look(tenant: Tenant) -> list[tuple[str, str]]:
    """What the tenant was told so far, with one more look."""
    platform_checks.announce_changes(AlertKind.FAILURES_IN_A_ROW, platform_checks.find_failures_in_a_row())
    with tenant_scope(tenant.pk):
        found = Alert.objects.filter(kind=AlertKind.FAILURES_IN_A_ROW).order_by("created_at", "pk")
        return [(alert.severity, alert.title) for alert in found]


BROKEN = PermanentAgentError("It broke.", code="broken")


def test_after_so_many_failures_in_a_row_people_are_told_once_and_again_when_it_succeeds(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    work(engine, acme, breaks(BROKEN), 2)
    assert look(acme) == []
    work(engine, acme, breaks(BROKEN), 2)
    for _ in range(3):
        told = look(acme)

    assert told == [("warning", "qa fails repeatedly")]
    assert rows(acme) == {"qa": 4}
    with tenant_scope(acme.pk):
        alert = Alert.objects.get(kind=AlertKind.FAILURES_IN_A_ROW)
    assert (alert.facts["role"], alert.facts["failures"], alert.facts["error"]) == ("qa", 4, "broken")
    work(engine, acme, well)
    assert look(acme)[1:] == [("info", "qa succeeds again")]
    assert (rows(acme), look(other_tenant)) == ({}, [])


def test_attempts_that_are_repeated_count_and_a_success_between_begins_anew(
    engine: Engine, acme: Tenant
) -> None:
    failures = iter([True, True, False, True, True])

    def now_and_then(request: AgentRequest) -> AgentResult:
        if next(failures):
            raise RetryableAgentError("down", code="down")
        return well(request)

    engine.agent.behaviour = now_and_then
    engine.submit(acme, max_attempts=3)
    for _ in range(3):
        engine.drain()
        engine.make_due(acme)
    assert rows(acme) == {}, "nothing is counted before the counters are"
    count_all()
    assert rows(acme) == {}
    engine.submit(acme, max_attempts=3)
    for _ in range(2):
        engine.drain()
        engine.make_due(acme)
    count_all()

    assert rows(acme) == {"qa": 2}
    assert look(acme) == []


def test_failures_of_another_role_or_tenant_are_not_added(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    work(engine, acme, breaks(BROKEN), 2)
    work(engine, acme, breaks(BROKEN), 2, role="dev")
    work(engine, other_tenant, breaks(BROKEN), 2)

    assert (rows(acme), rows(other_tenant)) == ({"qa": 2, "dev": 2}, {"qa": 2})
    assert look(acme) == look(other_tenant) == []


def test_what_a_schedule_starts_is_counted_over_all_its_roles(engine: Engine, acme: Tenant) -> None:
    schedule: UUID = uuid4()
    for role in ("qa", "dev", "seo"):
        work(engine, acme, breaks(BROKEN), role=role, schedule_id=schedule)

    assert rows(acme) == {"qa": 1, "dev": 1, "seo": 1, str(schedule): 3}
    assert look(acme) == [("warning", f"The schedule {schedule} fails repeatedly")]


@pytest.mark.parametrize(
    "error",
    [
        AgentRateLimited("later", retry_after=60.0),
        AgentRateLimited("held", code="breaker_open", retry_after=60.0),
        ServerAway("gone"),
    ],
    ids=["refused", "held back", "server away"],
)
def test_what_says_nothing_about_the_agent_does_not_count(
    engine: Engine, acme: Tenant, error: Exception
) -> None:
    work(engine, acme, breaks(error), 4)

    assert rows(acme) == {}


def test_zero_says_nothing(engine: Engine, acme: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_ALERT_FAILURES_IN_A_ROW = 0
    work(engine, acme, breaks(BROKEN), 4)

    assert look(acme) == []


def test_who_counts_at_once_counts_each_failure_once(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.agent.behaviour = breaks(BROKEN)
    engine.submit(acme, count=10)
    count_all()  # with it the numbers that events of earlier tests had
    monkeypatch.setattr(counters, "BATCH", 7)
    engine.drain()

    at_once(*[counters.count_fresh] * 4)
    count_all()

    assert rows(acme) == {"qa": 10}
    with system_scope():
        assert FailuresInARow.objects.count() == 1


def test_refusals_are_counted_in_the_metrics_and_what_was_held_back_is_not(
    engine: Engine, acme: Tenant
) -> None:
    work(engine, acme, breaks(AgentRateLimited("later", retry_after=60.0)), 3)
    work(
        engine, acme, breaks(AgentRateLimited("held", code="provider_limit", retry_after=60.0)), 2, role="dev"
    )
    work(engine, acme, breaks(BROKEN), 2)

    found = {key: value for key, value in samples(scraped()).items() if key[0] == "refusals_total"}
    assert found == {("refusals_total", "qa"): 3.0}
