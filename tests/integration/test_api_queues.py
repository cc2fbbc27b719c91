"""Queues and workers over the API: waiting and running work, and pauses of a role."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.db import connections
from django.test.utils import CaptureQueriesContext

from activities.admission import limits
from agents.contracts import Accepted
from agents.models import Agent, AgentConfig
from agents.routing import queue_of
from tenants.context import APP, tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine

pytestmark = pytest.mark.usefixtures("one_at_a_time")

QUEUES, WORKERS = "/api/v1/queues/", "/api/v1/workers/"


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant, max_concurrency=2)
    return tenant


def queue(client: Any, role: str) -> dict[str, Any]:
    (entry,) = (item for item in client.get(f"{QUEUES}?limit=200").json()["results"] if item["role"] == role)
    return dict(entry)


def test_there_is_a_queue_for_every_role_in_use(api: Any, engine: Engine, acme: Tenant) -> None:
    page = api("viewer").get(f"{QUEUES}?limit=200").json()

    assert {item["role"] for item in page["results"]} == set(
        Agent.objects.filter(enabled=True).values_list("role", flat=True)
    )
    assert page["results"][0].keys() == {
        "role", "queue", "waiting", "granted", "running", "delayed", "oldest_wait_seconds", "workers", "paused",
        "backlog", "turned_away",
    }  # fmt: skip
    assert queue(api(), "seo")["queue"] == queue_of("seo") == "agent__seo"


def test_waiting_work_is_counted_by_band_and_delayed_work_separately(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    for priority, count in ((1, 1), (4, 1), (5, 2), (9, 1), (10, 3), (19, 1), (20, 2)):
        engine.submit(acme, "ba", count, priority=priority)
    engine.submit(acme, "ba", 4, not_before=datetime.now(UTC) + timedelta(hours=1))

    entry = queue(api(), "ba")

    assert entry["waiting"] == {"urgent": 2, "gated": 3, "normal": 4, "background": 2}
    assert (entry["delayed"], entry["running"], entry["granted"], entry["workers"]) == (4, 0, 0, 0)
    assert 0 <= entry["oldest_wait_seconds"] < 60


def test_an_empty_queue_has_no_oldest_wait(api: Any, engine: Engine, acme: Tenant) -> None:
    assert queue(api(), "ba")["oldest_wait_seconds"] is None


def test_running_and_granted_work_are_counted_separately(api: Any, engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    engine.submit(acme, "qa", 3)
    engine.deliver()

    entry = queue(api(), "qa")

    assert (entry["running"], entry["granted"], entry["waiting"]["normal"], entry["workers"]) == (1, 1, 2, 1)


def test_without_an_answer_from_redis_only_the_granted_count_is_missing(
    api: Any, engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.submit(acme, "ba", 2)
    client = api()

    def fail(self: Any, name: Any) -> Any:
        raise redis.TimeoutError("no answer")

    monkeypatch.setattr(redis.Redis, "get", fail)

    assert queue(client, "ba")["waiting"]["normal"] == 2


def test_work_of_other_tenants_is_not_counted(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.submit(acme, "ba", 2)

    entry = queue(api(tenant=other_tenant), "ba")

    assert (sum(entry["waiting"].values()), entry["oldest_wait_seconds"]) == (0, None)


def test_the_number_of_statements_does_not_depend_on_the_number_of_queues(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api()

    def statements(limit: int) -> int:
        with CaptureQueriesContext(connections[APP]) as captured:
            assert len(client.get(f"{QUEUES}?limit={limit}").json()["results"]) == limit
        return len(captured)

    statements(1)
    assert statements(1) == statements(30) <= 11


def test_a_paused_role_starts_nothing_until_it_is_resumed(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api("operator")

    paused = client.post(f"{QUEUES}qa/pause/")
    limits.refresh()
    engine.submit(acme, "qa")
    assert (paused.status_code, paused.json()) == (200, {"role": "qa", "queue": "agent__qa", "paused": True})
    assert queue(client, "qa")["paused"] is True
    assert engine.drain() == 0

    resumed = client.post(f"{QUEUES}qa/resume/")
    limits.refresh()
    engine.submit(acme, "qa")
    assert resumed.json()["paused"] is False
    assert engine.drain() == 2


def test_pausing_changes_the_version_of_the_settings_once(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api()

    def version() -> int:
        with tenant_scope(acme.pk):
            return AgentConfig.objects.get(agent_id="qa").version

    before = version()
    client.post(f"{QUEUES}qa/pause/")
    client.post(f"{QUEUES}qa/pause/")

    assert version() == before + 1


def test_a_role_without_settings_can_be_paused_and_other_tenants_go_on(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    assert api().post(f"{QUEUES}ba/pause/").status_code == 200

    assert (queue(api(), "ba")["paused"], queue(api(tenant=other_tenant), "ba")["paused"]) == (True, False)


@pytest.fixture
def a_paused_agent(database: None) -> Iterator[str]:
    Agent.objects.filter(role="ba").update(paused=True)
    yield "ba"
    Agent.objects.filter(role="ba").update(paused=False)


def test_a_role_that_the_platform_paused_is_reported_as_paused(
    api: Any, engine: Engine, acme: Tenant, a_paused_agent: str
) -> None:
    assert queue(api(), a_paused_agent)["paused"] is True


def test_every_role_of_a_paused_tenant_is_reported_as_paused(api: Any, engine: Engine, acme: Tenant) -> None:
    with tenant_scope(acme.pk):
        Tenant.objects.filter(pk=acme.pk).update(paused=True)

    assert {item["paused"] for item in api().get(QUEUES).json()["results"]} == {True}


@in_one_test("verb", ["pause", "resume"])
def test_pause_and_resume_need_an_operator_and_an_existing_role(
    api: Any, engine: Engine, acme: Tenant, verb: str
) -> None:
    assert (
        problem(api("reviewer").post(f"{QUEUES}qa/{verb}/"), 403, "forbidden")["required_role"] == "operator"
    )
    problem(api("operator").post(f"{QUEUES}no-such/{verb}/"), 404, "not_found")
    problem(api("operator").post(f"{QUEUES}qa/{verb}/", {"why": "x"}), 400, "validation_failed")


def test_live_workers_are_listed_with_their_roles(api: Any, engine: Engine, acme: Tenant) -> None:
    (worker,) = api("viewer").get(WORKERS).json()["results"]

    assert (worker["roles"], worker["concurrency"]) == (["qa", "dev", "seo"], 10)
    assert worker.keys() == {
        "id", "name", "host", "pid", "version", "roles", "concurrency", "active", "utilisation", "runs", "taken", "load", "draining",
        "closed", "started_at", "beat_at", "beat_age_seconds",
    }  # fmt: skip
    assert worker["name"] == f"{worker['host']}:{worker['pid']}:{worker['id']}"
    assert (worker["runs"], worker["load"], worker["draining"], worker["closed"]) == ([], None, False, {})
    assert 0 <= worker["beat_age_seconds"] < 60


def test_a_worker_that_has_ended_is_not_listed(api: Any, engine: Engine, acme: Tenant) -> None:
    engine.lease.end()

    assert api().get(WORKERS).json()["results"] == []
    assert queue(api(), "qa")["workers"] == 0


@in_one_test("address", [QUEUES, WORKERS])
def test_unknown_parameters_are_refused(api: Any, engine: Engine, acme: Tenant, address: str) -> None:
    problem(api().get(f"{address}?role=qa"), 400, "validation_failed")
