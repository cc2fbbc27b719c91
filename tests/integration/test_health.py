"""The health and metrics endpoints: liveness, readiness and figures, whatever server fails."""

from __future__ import annotations

import importlib
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.db.models.functions import Now
from django.test import Client, override_settings

from activities import queue_stats
from activities.maintenance import Leader, invariants, job_records, recovery
from activities.maintenance.invariants import Report
from activities.models import LeaderLease, WorkerProcess
from activities.submission import NewActivity, submit
from agents.contracts import Accepted, AgentRequest, AgentResult
from agents.exceptions import RetryableAgentError
from console import health
from console.health import Probe, ask
from orchestrator import metrics
from tenants import row_security
from tenants.context import OWNER, SYSTEM, system_scope, tenant_scope
from tenants.exceptions import RowSecurityMissing
from tenants.models import Tenant
from tests.engine import Engine
from tests.metrics import samples, scrape

NOWHERE = 1  # a port on which nothing listens


@pytest.fixture(autouse=True)
def fresh_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the probes, so that no test waits for those of another."""

    def fresh(probe: Probe) -> Probe:
        return Probe(probe.name, probe.question)

    monkeypatch.setattr(health, "PROBES", tuple(map(fresh, health.PROBES)))
    monkeypatch.setattr(
        metrics, "SOURCES", tuple((fresh(probe), describe) for probe, describe in metrics.SOURCES)
    )


@pytest.fixture
def silent_server() -> Iterator[int]:
    """The port of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listening:
        yield listening.getsockname()[1]


@contextmanager
def _redis_at(address: str) -> Iterator[None]:
    with override_settings(REDIS_URL=f"redis://{address}/0"):
        yield


@pytest.fixture
def without_postgresql(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes new connections fail; probes open new ones."""
    for alias in ("default", "system"):
        monkeypatch.setitem(connections.settings[alias], "PORT", str(NOWHERE))


def _ready(client: Client) -> tuple[int, dict[str, Any]]:
    answer = client.get("/readyz")
    return answer.status_code, answer.json()


def _figures(client: Client) -> dict[tuple[str, ...], float]:
    """Every sample: (name, label values in the order of their names) -> value."""
    return samples(scrape(client))


def test_the_liveness_check_uses_no_server(client: Client) -> None:
    """No database fixture: pytest would refuse any access to one."""
    answer = client.get("/healthz")

    assert (answer.status_code, answer.json()) == (200, {"status": "alive"})
    assert "no-store" in answer["Cache-Control"]


@pytest.mark.parametrize("address", ["/healthz", "/readyz", "/metrics"])
def test_health_and_metrics_can_only_be_read(address: str) -> None:
    answer = Client(enforce_csrf_checks=True).post(address)

    assert (answer.status_code, answer["Allow"]) == (405, "GET, HEAD")


def test_all_checks_are_ready(engine: Engine, client: Client) -> None:
    status, body = _ready(client)

    assert (status, body["status"]) == (200, "ready")
    assert {name: check["state"] for name, check in body["checks"].items()} == {
        "postgresql": "ok",
        "redis": "ok",
        "admission": "open",
        "mongodb": "ok",
        "workers": "ok",
        "upkeep": "ok",
    }
    assert all(check["milliseconds"] >= 0 for check in body["checks"].values())


def test_system_jobs_that_fail_or_hang_are_named(engine: Engine, client: Client) -> None:
    assert Leader().campaign()
    healthy = job_records.JobReport("delays", "activities.outbox", 1.0, 5.0, finished=0.0)
    failing = replace(healthy, name="deadlines", failures=3, error="LockNotAvailable")
    job_records.write_jobs(1, [healthy, failing, replace(healthy, name="outputs", finished=40.0)])

    status, body = _ready(client)

    assert (status, body["status"]) == (200, "degraded")
    assert body["checks"]["upkeep"]["state"] == "failing"
    assert body["checks"]["upkeep"]["detail"] == "deadlines, outputs"
    figures = _figures(client)
    assert figures["system_job_up", "delays", "activities.outbox"] == 1
    assert figures["system_job_up", "deadlines", "activities.outbox"] == 0
    assert figures["system_job_up", "outputs", "activities.outbox"] == 0
    assert figures["system_job_failures", "deadlines"] == 3
    assert figures["leader_up",] == 1


def test_readiness_is_degraded_without_a_leader_but_not_during_a_change_of_the_leader(
    engine: Engine, client: Client
) -> None:
    assert Leader().campaign()
    with system_scope():
        LeaderLease.objects.update(expires_at=Now() - timedelta(seconds=5))
    assert _ready(client)[1]["checks"]["upkeep"]["state"] == "ok"

    with system_scope():
        LeaderLease.objects.update(expires_at=Now() - timedelta(seconds=40))

    assert _ready(client)[1]["status"] == "degraded"
    assert _ready(client)[1]["checks"]["upkeep"]["state"] == "leaderless"
    assert _figures(client)["leader_up",] == 0


def test_readiness_is_degraded_after_a_wipe_of_redis(database: None, client: Client) -> None:
    status, body = _ready(client)

    assert (status, body["status"]) == (200, "degraded")
    assert body["checks"]["admission"]["state"] == "closed"


def test_readiness_is_degraded_without_redis_because_submissions_still_work(
    engine: Engine, client: Client
) -> None:
    with _redis_at(f"user:hunter2@127.0.0.1:{NOWHERE}"):
        answer = client.get("/readyz")

    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    assert answer.json()["checks"]["redis"]["state"] == "failing"
    assert b"hunter2" not in answer.content
    assert b"127.0.0.1" not in answer.content


def test_readiness_is_degraded_without_mongodb(
    engine: Engine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PROBES", _with(Probe("mongodb", _refuse)))

    status, body = _ready(client)

    assert (status, body["status"]) == (200, "degraded")
    assert body["checks"]["mongodb"] == {
        "state": "failing",
        "milliseconds": body["checks"]["mongodb"]["milliseconds"],
        "detail": "OSError",
    }


def test_readiness_is_unavailable_without_postgresql(without_postgresql: None, client: Client) -> None:
    status, body = _ready(client)

    assert (status, body["status"]) == (503, "unavailable")
    assert body["checks"]["postgresql"]["detail"] == "OperationalError"
    assert body["checks"]["redis"]["state"] == "ok"


def test_readiness_is_unavailable_with_unapplied_migrations(engine: Engine, client: Client) -> None:
    with connections[OWNER].cursor() as cursor:
        cursor.execute(
            "DELETE FROM django_migrations WHERE app = 'tenants' AND name = '0001_roles' RETURNING applied"
        )
        (applied,) = cursor.fetchone()
        try:
            status, body = _ready(client)
        finally:
            cursor.execute(
                "INSERT INTO django_migrations (app, name, applied) VALUES ('tenants', '0001_roles', %s)",
                [applied],
            )

    assert (status, body["status"]) == (503, "unavailable")
    assert body["checks"]["migrations"] == {"state": "behind", "milliseconds": 0.0, "detail": "1 not applied"}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readiness waits for three seconds; other tests give a busy machine more."""
    monkeypatch.setitem(health.check_all.__kwdefaults__, "patience_seconds", 3.0)  # type: ignore[arg-type]
    monkeypatch.setattr(health, "REDIS_PATIENCE_SECONDS", 2.0)


@pytest.mark.usefixtures("impatient")
def test_a_silent_redis_does_not_delay_readiness(engine: Engine, client: Client, silent_server: int) -> None:
    with _redis_at(f"127.0.0.1:{silent_server}"):
        status, body = _ready(client)

    assert (status, body["status"]) == (200, "degraded")
    assert body["checks"]["redis"]["state"] in ("failing", "silent")
    assert body["checks"]["admission"]["state"] in ("failing", "silent")
    assert body["checks"]["postgresql"]["state"] == "ok"


@pytest.mark.usefixtures("impatient")
def test_a_silent_postgresql_does_not_delay_readiness(
    engine: Engine, client: Client, monkeypatch: pytest.MonkeyPatch, silent_server: int
) -> None:
    monkeypatch.setitem(connections.settings["default"], "HOST", "127.0.0.1")
    monkeypatch.setitem(connections.settings["default"], "PORT", str(silent_server))

    status, body = _ready(client)

    assert (status, body["status"]) == (503, "unavailable")
    assert body["checks"]["postgresql"]["state"] == "silent"
    assert body["checks"]["redis"]["state"] == "ok"


def test_a_hanging_probe_occupies_one_thread_however_often_it_is_run() -> None:
    released, calls = threading.Event(), []
    probe = Probe("hanging", lambda: calls.append(1) or released.wait())  # type: ignore[func-returns-value]

    answers = [ask([probe], patience_seconds=0.01)["hanging"] for _ in range(5)]

    assert {answer.fault for answer in answers} == {"no answer"}
    assert len(calls) == 1
    released.set()
    assert ask([probe], patience_seconds=10)["hanging"].fault == ""


def test_a_probe_that_answered_is_run_again() -> None:
    answers = iter([1, 2])
    probe = Probe("counting", lambda: next(answers))

    assert [ask([probe], patience_seconds=10)["counting"].value for _ in range(2)] == [1, 2]


def test_metrics_count_waiting_and_running_work_and_workers(
    engine: Engine, tenant: Tenant, other_tenant: Tenant, client: Client
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    engine.serve(tenant, "qa")
    engine.submit(tenant, "qa")
    engine.drain()
    engine.submit(tenant, "blog-writer", count=2, priority=1)
    engine.submit(other_tenant, "blog-writer", priority=20)
    engine.submit(tenant, "blog-writer", not_before=datetime.now(UTC) + timedelta(hours=1))
    with tenant_scope(tenant.pk):
        submit([NewActivity(name="decide", human_role="editor", is_approval_gate=True)], actor="test")

    figures = _figures(client)

    assert figures["queue_waiting", "urgent", "blog-writer"] == 2
    assert figures["queue_waiting", "background", "blog-writer"] == 1
    assert figures["queue_delayed", "normal", "blog-writer"] == 1
    assert figures["queue_waiting", "normal", "seo"] == 0
    assert (figures["queue_running", "qa"], figures["queue_accepted", "qa"]) == (1, 1)
    assert (figures["workers", "qa"], figures["worker_seats", "qa"]) == (1, 10)
    assert figures[("worker_processes",)] == 1
    assert figures["people_waiting", "approval"] == 1
    assert figures[("database_up",)] == figures[("admission_open",)] == 1


def test_metrics_include_the_oldest_wait(engine: Engine, tenant: Tenant, client: Client) -> None:
    engine.submit(tenant, "blog-writer")
    with connections[OWNER].cursor() as cursor:
        cursor.execute("UPDATE activities_wake SET created_at = created_at - interval '5 minutes'")

    assert 300 <= _figures(client)["queue_oldest_wait_seconds", "blog-writer"] < 360


def test_the_wait_of_a_retry_starts_at_the_end_of_its_delay(engine: Engine, tenant: Tenant) -> None:
    def fail(request: AgentRequest) -> AgentResult:
        raise RetryableAgentError("not yet")

    engine.agent.behaviour = fail
    engine.serve(tenant, "qa")
    engine.submit(tenant, "qa", retry={"base_seconds": 0.0})
    engine.drain()
    engine.make_due(tenant)
    with connections[OWNER].cursor() as cursor:
        cursor.execute("UPDATE activities_wake SET created_at = created_at - interval '1 hour'")

    with system_scope():
        roles = {role.role: role for role in queue_stats.stats_of_queues().roles}

    assert roles["qa"].depth == 1
    assert 0 < roles["qa"].oldest_seconds < 60


def test_metrics_count_silent_and_lost_workers(engine: Engine, client: Client) -> None:
    fields = {
        "host": "elsewhere",
        "boot": "b",
        "pid": 1,
        "pid_started": 1,
        "roles": ["dev"],
        "concurrency": 4,
    }
    with system_scope():
        now = datetime.now(UTC)
        WorkerProcess.objects.create(**fields, beat_at=now - timedelta(minutes=5))
        dead = [WorkerProcess.objects.create(**fields, beat_at=now) for _ in range(2)]
    for worker in dead:
        recovery.declare_lost(worker)

    figures = _figures(client)

    assert figures[("workers_silent",)] == 1
    assert figures[("workers_lost_total",)] == 2
    assert figures["workers", "dev"] == 1, "only the worker of the engine, not the silent one"


def test_metrics_name_no_tenant(engine: Engine, tenant: Tenant, client: Client) -> None:
    engine.submit(tenant, "qa", count=3)

    text = client.get("/metrics").content.decode()

    assert "tenant" not in text
    assert str(tenant.pk) not in text
    assert tenant.slug not in text


def test_metrics_work_without_redis(engine: Engine, tenant: Tenant, client: Client) -> None:
    engine.submit(tenant, "blog-writer")

    with _redis_at(f"127.0.0.1:{NOWHERE}"):
        figures = _figures(client)

    assert figures["queue_waiting", "normal", "blog-writer"] == 1
    assert ("admission_open",) not in figures


def test_metrics_without_postgresql_only_say_that_it_is_down(
    without_postgresql: None, client: Client
) -> None:
    figures = _figures(client)

    assert figures[("database_up",)] == 0
    assert not [name for name, *_ in figures if name.startswith("queue_")]


def test_metrics_include_the_last_check_of_invariants(engine: Engine, client: Client) -> None:
    assert not [name for name, *_ in _figures(client) if name == "invariant_violations"]
    report = Report(held=["I01"])
    report.note("I04", 3, ("some-id",))

    invariants.store_outcome(report)

    figures = _figures(client)
    assert (figures["invariant_violations", "I01"], figures["invariant_violations", "I04"]) == (0, 3)
    assert figures[("invariants_checked_timestamp_seconds",)] > 1_700_000_000


def test_figures_of_queues_take_a_fixed_number_of_statements(engine: Engine, tenant: Tenant) -> None:
    engine.submit(tenant, "qa", count=5)
    engine.submit(tenant, "dev", count=5)
    calls = []

    def count(execute: Any, *arguments: Any) -> Any:
        calls.append(arguments[0])
        return execute(*arguments)

    with system_scope(), connections[SYSTEM].execute_wrapper(count):
        queue_stats.stats_of_queues()

    assert len(calls) == 8


def test_a_tenant_sees_only_its_own_figures(engine: Engine, tenant: Tenant, other_tenant: Tenant) -> None:
    engine.submit(tenant, "blog-writer", count=2)
    engine.submit(other_tenant, "blog-writer", count=5)

    with tenant_scope(tenant.pk):
        own = {role.role: role.depth for role in queue_stats.stats_of_queues().roles}

    assert own["blog-writer"] == 2


def test_a_web_process_does_not_start_without_row_level_security(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        row_security, "find_errors", lambda tables: ["table x has no forced row-level security"]
    )

    with pytest.raises(RowSecurityMissing, match="table x"):
        importlib.import_module("orchestrator.wsgi")


def test_a_web_process_starts_during_an_outage_of_postgresql(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tables: list[str]) -> list[str]:
        raise OperationalError("connection refused")

    monkeypatch.setattr(row_security, "find_errors", fail)

    assert callable(importlib.import_module("orchestrator.wsgi").application)
    del sys.modules["orchestrator.wsgi"]


def _refuse() -> None:
    raise OSError("mongodb://root:hunter2@10.0.0.1 refused")


def _with(replacement: Probe) -> tuple[Probe, ...]:
    return tuple(replacement if probe.name == replacement.name else probe for probe in health.PROBES)
