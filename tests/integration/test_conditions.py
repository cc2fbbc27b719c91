"""Conditions of the platform raise one alert when they begin and one when they end, for the affected tenants only."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import ProgrammingError, connections
from django.test import Client, override_settings

from activities import queue_stats, rescheduling
from activities.maintenance import Leader, invariants, job_records, platform_checks
from activities.maintenance.invariants import Report
from activities.models import Alert, AlertDelivery, Condition
from activities.models.alert import AlertKind
from agents.configuration import settings_for
from agents.contracts import AgentRequest, AgentResult
from agents.exceptions import RetryableAgentError
from agents.governor import Call, Outcome, providers
from agents.models import AgentConfig
from tenants import pausing
from tenants.context import APP, OWNER, system_scope, tenant_scope
from tenants.identifiers import uuid7
from tenants.models import PauseKind, Tenant
from tests.damage import without_guards
from tests.engine import Engine, simultaneously


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def monitor(clock: Clock) -> platform_checks.PlatformMonitor:
    return platform_checks.PlatformMonitor(clock=clock)


@pytest.fixture
def soon(settings: Any) -> None:
    """Let granted work count as late at once."""
    settings.ORCHESTRATOR_IDLE_SECONDS = -1.0


def look(monitor: platform_checks.PlatformMonitor, clock: Clock) -> None:
    clock.now += 60.0
    monitor.check_due()


def alerts_of(tenant: Tenant, kind: AlertKind) -> list[tuple[str, str]]:
    with tenant_scope(tenant.pk):
        rows = Alert.objects.for_tenant(tenant).filter(kind=kind).order_by("created_at", "pk")
        return [(alert.severity, alert.title) for alert in rows]


def _ready() -> dict[str, Any]:
    answer: dict[str, Any] = Client().get("/readyz").json()
    return answer


def test_idle_workers_raise_one_alert_and_another_one_when_they_take_work(
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    monitor: platform_checks.PlatformMonitor,
    clock: Clock,
    soon: None,
) -> None:
    engine.serve(tenant)
    engine.submit(tenant, "qa")
    for _ in range(3):
        look(monitor, clock)

    assert alerts_of(tenant, AlertKind.IDLE_WORKER) == [("critical", "Workers of qa take no work")]
    assert alerts_of(other_tenant, AlertKind.IDLE_WORKER) == []
    ready = _ready()
    assert (ready["status"], ready["checks"]["workers"]["state"]) == ("degraded", "idle")
    assert ready["checks"]["workers"]["detail"] == "of qa"

    engine.drain()
    look(monitor, clock)

    assert alerts_of(tenant, AlertKind.IDLE_WORKER)[1:] == [("info", "Workers of qa take work again")]
    assert _ready()["status"] == "ready"
    with system_scope():
        assert not Condition.objects.exists()


def test_workers_that_are_busy_or_closed_are_not_idle(
    engine: Engine, tenant: Tenant, monitor: platform_checks.PlatformMonitor, clock: Clock, soon: None
) -> None:
    engine.submit(tenant, "qa")
    engine.lease.runs.update(uuid7() for _ in range(engine.lease.concurrency))
    engine.lease.beat()
    look(monitor, clock)
    engine.lease.runs.clear()
    engine.lease.close("memory")
    engine.lease.beat()
    look(monitor, clock)

    assert alerts_of(tenant, AlertKind.IDLE_WORKER) == []


def test_recently_granted_work_is_not_late(
    engine: Engine, tenant: Tenant, monitor: platform_checks.PlatformMonitor, clock: Clock
) -> None:
    engine.submit(tenant, "qa")

    look(monitor, clock)

    assert alerts_of(tenant, AlertKind.IDLE_WORKER) == []
    assert _ready()["checks"]["workers"]["state"] == "ok"


def test_a_condition_that_returns_raises_a_new_alert(
    engine: Engine, tenant: Tenant, monitor: platform_checks.PlatformMonitor, clock: Clock, soon: None
) -> None:
    for _ in range(2):
        engine.serve(tenant)
        engine.submit(tenant, "qa")
        look(monitor, clock)
        engine.drain()
        look(monitor, clock)

    assert [severity for severity, _ in alerts_of(tenant, AlertKind.IDLE_WORKER)] == ["critical", "info"] * 2


def test_one_of_several_leaders_that_see_a_condition_raises_the_alert(engine: Engine, tenant: Tenant) -> None:
    finding = platform_checks.Finding("qa", "Workers of qa take no work", "over", tenants=lambda: [tenant.pk])

    started = simultaneously(
        *[lambda: platform_checks.announce_changes(AlertKind.IDLE_WORKER, [finding])] * 4
    )
    ended = simultaneously(*[lambda: platform_checks.announce_changes(AlertKind.IDLE_WORKER, [])] * 4)

    assert (sorted(started), sorted(ended)) == ([0, 0, 0, 1], [0, 0, 0, 1])
    assert len(alerts_of(tenant, AlertKind.IDLE_WORKER)) == 2


def test_the_platform_gets_one_alert_however_many_tenants_are_affected(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    finding = platform_checks.Finding(
        "qa", "Workers of qa take no work", "over", tenants=lambda: [tenant.pk, other_tenant.pk]
    )

    with override_settings(ALERT_EMAIL="operators@example.com"):
        platform_checks.announce_changes(AlertKind.IDLE_WORKER, [finding])

    with system_scope():
        assert AlertDelivery.objects.filter(channel_id=None).count() == 1
        assert Alert.objects.count() == 2


def test_a_tenant_that_was_deleted_meanwhile_does_not_stop_alerts_to_others(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    finding = platform_checks.Finding(
        "qa", "Workers of qa take no work", "over", tenants=lambda: [tenant.pk, other_tenant.pk]
    )
    platform_checks.announce_changes(AlertKind.IDLE_WORKER, [finding])
    with connections[OWNER].cursor() as cursor:
        cursor.execute("DELETE FROM activities_alert WHERE tenant_id = %s", [other_tenant.pk])
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("DELETE FROM tenants_tenant WHERE id = %s", [other_tenant.pk])
        cursor.execute("RESET session_replication_role")

    platform_checks.announce_changes(AlertKind.IDLE_WORKER, [])

    assert [severity for severity, _ in alerts_of(tenant, AlertKind.IDLE_WORKER)] == ["warning", "info"]


def test_a_condition_that_cannot_be_announced_keeps_no_other_from_its_alert(
    engine: Engine, tenant: Tenant
) -> None:
    def fail() -> list[UUID]:
        raise ZeroDivisionError

    findings = [
        platform_checks.Finding("a", "Workers of a take no work", "over", tenants=fail),
        platform_checks.Finding("qa", "Workers of qa take no work", "over", tenants=lambda: [tenant.pk]),
    ]

    assert platform_checks.announce_changes(AlertKind.IDLE_WORKER, findings) == 1

    assert alerts_of(tenant, AlertKind.IDLE_WORKER) == [("warning", "Workers of qa take no work")]


def test_work_that_waits_longer_than_the_target_raises_an_alert_until_it_starts(
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    monitor: platform_checks.PlatformMonitor,
    clock: Clock,
) -> None:
    engine.serve(tenant)
    engine.submit(tenant, "qa")
    engine.submit(other_tenant, "seo")
    look(monitor, clock)
    assert alerts_of(tenant, AlertKind.QUEUE_OLD) == []

    with override_settings(ORCHESTRATOR_QUEUE_TARGET_SECONDS=0.001):
        look(monitor, clock)
        engine.drain()
        look(monitor, clock)

    assert [title for _, title in alerts_of(tenant, AlertKind.QUEUE_OLD)] == [
        "Work for qa waits for too long",
        "Work for qa starts in time again",
    ]
    assert [title for _, title in alerts_of(other_tenant, AlertKind.QUEUE_OLD)][:1] == [
        "Work for seo waits for too long"
    ]


@pytest.mark.parametrize("why", ["tenant", "role", "budget", "later"])
def test_work_that_waits_on_purpose_is_not_late(engine: Engine, tenant: Tenant, why: str) -> None:
    engine.submit(tenant, "qa")
    changes = {
        "tenant": "UPDATE tenants_tenant SET paused = true",
        "role": "UPDATE agents_agent SET paused = true WHERE role = 'qa'",
        "budget": "UPDATE activities_wake SET cause = 'budget'",
        "later": "UPDATE activities_wake SET due_at = now() + interval '1 hour'",
    }
    try:
        with (
            connections[OWNER].cursor() as cursor,
            override_settings(ORCHESTRATOR_QUEUE_TARGET_SECONDS=0.001),
        ):
            assert [each.subject for each in platform_checks.find_old_queues()] == ["qa"]
            cursor.execute(changes[why])
            assert platform_checks.find_old_queues() == []
    finally:
        with connections[OWNER].cursor() as cursor:
            cursor.execute("UPDATE agents_agent SET paused = false WHERE role = 'qa'")


def test_work_of_a_disabled_role_waits_on_purpose(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    engine.submit(tenant, "qa")
    engine.submit(other_tenant, "qa")
    with tenant_scope(tenant.pk):
        AgentConfig.objects.update_or_create(tenant_id=tenant.pk, agent_id="qa", defaults={"enabled": False})

    with override_settings(ORCHESTRATOR_QUEUE_TARGET_SECONDS=0.001):
        (late,) = platform_checks.find_old_queues()

    assert list(late.tenants()) == [other_tenant.pk]


def pause_provider(tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        pausing.switch_part(
            tenant.pk, PauseKind.PROVIDER, "anthropic", name="anthropic", paused=True, actor="test"
        )


@pytest.mark.parametrize("adapter", ["anthropic", "batch"])
def test_only_work_that_calls_a_paused_provider_waits_on_purpose(
    engine: Engine, tenant: Tenant, adapter: str
) -> None:
    engine.serve(tenant, "qa", adapter=adapter)
    engine.serve(tenant, "dev", adapter="openai")
    for role in ("qa", "dev", "seo"):
        engine.submit(tenant, role)
    pause_provider(tenant)

    with override_settings(ORCHESTRATOR_QUEUE_TARGET_SECONDS=0.001):
        assert [each.subject for each in platform_checks.find_old_queues()] == ["dev", "seo"]


@pytest.mark.parametrize("pause", ["tenant", "role", "provider", "role of all"])
def test_work_that_people_let_run_in_spite_of_a_pause_may_be_late(
    engine: Engine, tenant: Tenant, pause: str
) -> None:
    engine.serve(tenant, "qa", adapter="anthropic")
    (work,) = engine.submit(tenant, "qa")
    rescheduling.run_now(tenant.pk, work, actor="test", reason="The client waits.")
    changes = {
        "tenant": "UPDATE tenants_tenant SET paused = true",
        "role": "UPDATE agents_agentconfig SET paused = true",
        "role of all": "UPDATE agents_agent SET paused = true WHERE role = 'qa'",
    }
    try:
        if pause == "provider":
            pause_provider(tenant)
        else:
            with connections[OWNER].cursor() as cursor:
                cursor.execute(changes[pause])
        with override_settings(ORCHESTRATOR_QUEUE_TARGET_SECONDS=0.001):
            found = [each.subject for each in platform_checks.find_old_queues()]
        assert found == ([] if pause == "role of all" else ["qa"])
    finally:
        with connections[OWNER].cursor() as cursor:
            cursor.execute("UPDATE agents_agent SET paused = false WHERE role = 'qa'")


@pytest.mark.parametrize(
    ("change", "is_late"),
    [("priority", False), ("date", False), ("run now", True), ("priority of due work", True)],
)
def test_changes_of_waiting_work_neither_begin_nor_end_its_wait_for_a_retry(
    engine: Engine, tenant: Tenant, change: str, is_late: bool
) -> None:
    delay = 0.0 if change == "priority of due work" else 3600.0
    engine.serve(tenant, "qa", retry={"strategy": "fixed", "base_seconds": delay, "jitter": 0.0})
    engine.agent.behaviour = fail
    (work,) = engine.submit(tenant, "qa")
    engine.drain()
    with without_guards() as run:  # the failure was a minute ago
        run("UPDATE activities_activityevent SET at = at - interval '1 minute'")
        if not delay:
            run("UPDATE activities_activityevent SET detail = detail - 'due_at'")

    if change == "run now":
        rescheduling.run_now(tenant.pk, work, actor="test", reason="The client waits.")
    else:
        rescheduling.reschedule(tenant.pk, work, {"priority": 5}, actor="test")
    if change == "date":
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        rescheduling.reschedule(tenant.pk, work, {"not_before": tomorrow}, actor="test")
    engine.make_due(tenant)

    with override_settings(ORCHESTRATOR_QUEUE_TARGET_SECONDS=0.001):
        assert bool(platform_checks.find_old_queues()) is is_late
    if change == "priority of due work":
        with system_scope():
            waited = {role.role: role.oldest_seconds for role in queue_stats.stats_of_queues().roles}
        assert waited["qa"] >= 60


def fail(request: AgentRequest) -> AgentResult:
    raise RetryableAgentError("busy")


def test_an_open_circuit_breaker_of_a_provider_alerts_the_tenants_that_use_it(
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    monitor: platform_checks.PlatformMonitor,
    clock: Clock,
) -> None:
    endpoint = "http://127.0.0.1:7/v1"
    engine.serve(tenant, "qa", adapter="openai", endpoint=endpoint)
    engine.serve(other_tenant, "qa")
    for needs in (tenant, other_tenant):
        engine.submit(needs, "qa")
    with tenant_scope(tenant.pk):
        provider = providers.provider_of(settings_for(tenant.pk, "qa").adapter)
    providers.note_call(provider)
    governor = provider.governor
    for number in range(provider.profile.breaker_faults):
        call = Call(id=str(number), deadline_seconds=5)
        assert governor.acquire(call).granted
        governor.report(call, Outcome.FAULT)

    look(monitor, clock)

    assert [severity for severity, _ in alerts_of(tenant, AlertKind.BREAKER_OPEN)] == ["warning"]
    assert "127.0.0.1:7" in alerts_of(tenant, AlertKind.BREAKER_OPEN)[0][1]
    assert alerts_of(other_tenant, AlertKind.BREAKER_OPEN) == []


def test_a_broken_invariant_alerts_the_tenant_whose_rows_break_it(
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    monitor: platform_checks.PlatformMonitor,
    clock: Clock,
) -> None:
    (broken,) = engine.submit(tenant, "qa")
    engine.submit(other_tenant, "qa")
    report = Report(held=["I01"])
    report.note("I04", 1, (str(broken),))
    invariants.store_outcome(report)
    look(monitor, clock)
    invariants.store_outcome(Report(held=["I01", "I04"]))
    look(monitor, clock)

    assert alerts_of(tenant, AlertKind.INVARIANT_BROKEN) == [
        ("critical", "The invariant I04 does not hold"),
        ("info", "The invariant I04 holds again"),
    ]
    assert alerts_of(other_tenant, AlertKind.INVARIANT_BROKEN) == []


def test_a_failing_system_job_alerts_tenants_with_unfinished_work(
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    monitor: platform_checks.PlatformMonitor,
    clock: Clock,
) -> None:
    engine.submit(tenant, "qa")
    assert Leader().campaign()
    failing = job_records.JobReport(
        "deadlines",
        "activities.human_tasks.deadlines",
        1.0,
        5.0,
        finished=0.0,
        failures=3,
        error="LockNotAvailable",
    )
    job_records.write_jobs(1, [failing])
    look(monitor, clock)
    job_records.write_jobs(1, [replace(failing, failures=0, error="")])
    look(monitor, clock)

    assert alerts_of(tenant, AlertKind.UPKEEP_FAILING) == [
        ("critical", "A system job fails: deadlines"),
        ("info", "A system job works again: deadlines"),
    ]
    assert alerts_of(other_tenant, AlertKind.UPKEEP_FAILING) == []


def test_alerts_stay_open_while_redis_is_away(
    engine: Engine, tenant: Tenant, monitor: platform_checks.PlatformMonitor, clock: Clock, soon: None
) -> None:
    engine.submit(tenant, "qa")
    look(monitor, clock)

    with override_settings(REDIS_URL="redis://127.0.0.1:1/0"):
        look(monitor, clock)
        answer = _ready()

    assert [severity for severity, _ in alerts_of(tenant, AlertKind.IDLE_WORKER)] == ["critical"]
    assert "workers" not in answer["checks"], "only the check of Redis reports the outage"


def test_each_condition_is_checked_at_its_own_interval(
    database: None, monitor: platform_checks.PlatformMonitor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[AlertKind] = []
    from activities.maintenance import platform_checks

    counted = {kind: (lambda kind=kind: kinds.append(kind) or []) for kind in platform_checks.CHECKS}
    monkeypatch.setattr(platform_checks, "CHECKS", counted)

    for _ in range(61):
        monitor.check_due()
        clock.now += 1.0

    assert kinds.count(AlertKind.IDLE_WORKER) == 7
    assert kinds.count(AlertKind.QUEUE_OLD) == 2


def test_the_database_role_of_tenants_cannot_read_conditions_and_counters(
    database: None, tenant: Tenant
) -> None:
    for table in ("activities_condition", "activities_counter", "activities_countingmark"):
        with pytest.raises(ProgrammingError, match="permission denied"), tenant_scope(tenant.pk):
            connections[APP].cursor().execute(f"SELECT FROM {table}")
