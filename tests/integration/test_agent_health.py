"""Health checks of agents' endpoints over real HTTP: which fail and recover, and the alerts about it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.utils import timezone

from activities import background_tasks, tasks
from activities.models import Alert
from agents import deployments, health, outbound
from agents.models import Agent
from pipelines import versions
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tests.engine import simultaneously
from tests.frozen_server import frozen_server
from tests.registry import temporary_agent

pytestmark = pytest.mark.usefixtures("database")


class Handler(BaseHTTPRequestHandler):
    """An agent without a route for health: it answers 405 to OPTIONS, and at /health the server's `status`."""

    protocol_version = "HTTP/1.0"

    def do_OPTIONS(self) -> None:
        self._respond(405)

    def do_GET(self) -> None:
        self._respond(self.server.status)  # type: ignore[attr-defined]

    def _respond(self, status: int) -> None:
        self.server.calls.append((self.command, self.path, self.headers.get("Authorization")))  # type: ignore[attr-defined]
        self.send_response(status)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def agent_server(port: int = 0) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.status, server.calls = 200, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server(settings: Any) -> Iterator[Any]:
    with agent_server() as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW = (f"127.0.0.1:{running.server_port}",)
        yield running
    outbound.close_connections()


@pytest.fixture
def scribe(server: Any) -> Iterator[Agent]:
    with temporary_agent("scribe", endpoint=f"http://127.0.0.1:{server.server_port}/scribe") as agent:
        yield agent


def check_scribe() -> Agent:
    """Check the agent once more and return it."""
    with system_scope():
        Agent.objects.filter(role="scribe").update(health_due_at=None)
    health.check_waiting()
    return scribe_now()


def scribe_now() -> Agent:
    return Agent.objects.get(role="scribe")


def alerts(tenant: Tenant) -> list[tuple[str, str]]:
    with tenant_scope(tenant.pk):
        rows = Alert.objects.filter(kind="agent_health").order_by("created_at")
        return list(rows.values_list("title", "severity"))


@pytest.fixture
def pipeline_with_scribe(tenant: Tenant, scribe: Agent) -> None:
    definition = {"key": "flow", "name": "Flow", "steps": [{"id": "a", "agent_role": "scribe"}]}
    versions.save(tenant.pk, definition, actor="test")


def test_an_agent_that_fails_and_recovers_raises_one_alert_each(
    scribe: Agent,
    server: Any,
    settings: Any,
    tenant: Tenant,
    other_tenant: Tenant,
    pipeline_with_scribe: None,
) -> None:
    assert check_scribe().health == "healthy"

    port = server.server_port
    server.shutdown()
    server.server_close()
    outbound.close_connections()
    first = check_scribe()
    assert (first.health, first.health_failures, alerts(tenant)) == ("healthy", 1, [])
    assert first.health_due_at is not None
    assert first.health_due_at < timezone.now() + timedelta(seconds=31), (
        "a failing agent is checked again soon"
    )
    second, third = check_scribe(), check_scribe()
    assert (second.health, third.health, third.health_failures) == ("unhealthy", "unhealthy", 3)
    assert "could not be reached" in third.health_detail
    assert third.health_due_at is not None
    assert 31 < (third.health_due_at - timezone.now()).total_seconds() < 61, (
        "it is asked every minute while it is away"
    )
    assert alerts(tenant) == [("The agent scribe cannot be reached", "warning")]
    with tenant_scope(tenant.pk):
        alert = Alert.objects.get()
    assert "pipeline flow (acme)" in alert.body
    assert f":{port}" not in f"{alert.body} {alert.facts}", "alerts to tenants contain no addresses"

    with agent_server(port):
        recovered = check_scribe()
        check_scribe()
    assert (recovered.health, recovered.health_failures) == ("healthy", 0)
    assert alerts(tenant)[1:] == [("The agent scribe can be reached again", "info")]
    assert alerts(other_tenant) == [], "this tenant does not use the agent"


def test_the_platforms_channels_get_one_alert_however_many_tenants_use_the_agent(
    scribe: Agent,
    server: Any,
    settings: Any,
    tenant: Tenant,
    other_tenant: Tenant,
    pipeline_with_scribe: None,
) -> None:
    from activities.models import AlertDelivery

    versions.save(
        other_tenant.pk,
        {"key": "flow", "name": "Flow", "steps": [{"id": "a", "agent_role": "scribe"}]},
        actor="test",
    )
    settings.SLACK_WEBHOOK_URL = "https://hooks.example.com/x"
    Agent.objects.filter(role="scribe").update(endpoint="http://127.0.0.1:9/", health_failures=1)
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("127.0.0.1:9",)

    check_scribe()

    assert len(alerts(tenant)) == len(alerts(other_tenant)) == 1
    with system_scope():
        assert AlertDelivery.objects.count() == 1


def test_an_agent_needs_no_route_for_health_and_gets_no_credentials(scribe: Agent, server: Any) -> None:
    Agent.objects.filter(role="scribe").update(auth_sealed="whatever")

    assert check_scribe().health_detail == "Answered with status 405."
    assert server.calls == [("OPTIONS", "/scribe", None)]


def test_a_separate_health_address_must_answer_with_success(scribe: Agent, server: Any) -> None:
    Agent.objects.filter(role="scribe").update(health_url=f"http://127.0.0.1:{server.server_port}/health")
    assert (check_scribe().health, server.calls[-1][:2]) == ("healthy", ("GET", "/health"))

    server.status = 503
    check_scribe()

    assert "503; 2xx was expected" in check_scribe().health_detail
    assert scribe_now().health == "unhealthy"


def test_the_endpoint_of_the_production_version_is_checked(scribe: Agent, server: Any) -> None:
    deployments.deploy(
        "scribe", "2.0.0", "production", endpoint=f"http://127.0.0.1:{server.server_port}/v2", actor="test"
    )

    check_scribe()

    assert [path for _, path, _ in server.calls] == ["/v2"]


def test_a_forbidden_address_is_not_called(scribe: Agent, server: Any, settings: Any) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()

    assert "https" in check_scribe().health_detail
    assert server.calls == []


def test_a_hanging_endpoint_costs_no_more_than_the_timeout(scribe: Agent, settings: Any) -> None:
    settings.ORCHESTRATOR_HEALTH_TIMEOUT_SECONDS = 0.2
    with frozen_server() as frozen:
        settings.ORCHESTRATOR_EGRESS_ALLOW = (f"127.0.0.1:{frozen.port}",)
        Agent.objects.filter(role="scribe").update(endpoint=f"http://127.0.0.1:{frozen.port}/")

        assert "within 0.2 s" in check_scribe().health_detail


def test_a_new_address_resets_the_health(scribe: Agent, server: Any) -> None:
    check_scribe()

    deployments.deploy("scribe", "2.0.0", "production", endpoint="http://127.0.0.1:9/", actor="test")

    scribe = scribe_now()
    assert (scribe.health, scribe.health_detail, scribe.health_checked_at) == ("unknown", "", None)
    assert (scribe.health_failures, scribe.health_due_at) == (0, None)


def test_a_result_for_an_address_that_was_replaced_meanwhile_does_not_count(
    scribe: Agent, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_at_the_old_address(agent: Agent, endpoint: str) -> health.Finding:
        return health.Finding(False, "away")

    with system_scope():
        claims = health._claim_due(health.waiting().filter(role="scribe"))
    deployments.deploy("scribe", "2.0.0", "production", actor="test")
    monkeypatch.setattr(health, "call_agent", fail_at_the_old_address)
    with system_scope():
        health._check(claims)

    assert (scribe_now().health, scribe_now().health_failures, scribe_now().health_checked_at) == (
        "unknown",
        0,
        None,
    )


def test_an_agent_whose_check_breaks_does_not_stop_the_others(
    scribe: Agent, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_for_one(agent: Agent, endpoint: str) -> health.Finding:
        if agent.role == "a-broken-one":
            raise ZeroDivisionError
        return health.Finding(True, "Answered.")

    monkeypatch.setattr(health, "call_agent", fail_for_one)
    with temporary_agent("a-broken-one", endpoint=f"http://127.0.0.1:{server.server_port}/"):
        health.check_waiting()

    assert scribe_now().health == "healthy"


def test_the_agent_that_is_due_for_longest_is_checked_first(
    scribe: Agent, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise many agents that cannot be reached, and are due again soon, would keep the last ones of the alphabet from their turn."""
    monkeypatch.setattr(health, "TURN", 1)
    with temporary_agent("a-first-one", endpoint=f"http://127.0.0.1:{server.server_port}/a"), system_scope():
        Agent.objects.filter(role="a-first-one").update(health_due_at=timezone.now() - timedelta(seconds=1))
        Agent.objects.filter(role="scribe").update(health_due_at=timezone.now() - timedelta(minutes=1))
        only_these = health.waiting().filter(role__in=["a-first-one", "scribe"])

        assert [[claim.agent.role for claim in health._claim_due(only_these)] for _ in range(2)] == [
            ["scribe"],
            ["a-first-one"],
        ]


def test_each_agent_is_checked_by_one_of_many_processes(scribe: Agent, server: Any) -> None:
    simultaneously(*[health.check_waiting for _ in range(4)])

    assert len(server.calls) == 1


def test_the_background_task_is_due_while_agents_with_an_address_are_due(scribe: Agent, server: Any) -> None:
    assert tasks.health is health
    assert background_tasks._with_waiting_rows(["agents-health"]) == ["agents-health"]

    health.check_waiting()

    assert scribe_now().health == "healthy"
    assert background_tasks._with_waiting_rows(["agents-health"]) == []


@pytest.mark.parametrize("fields", [{"enabled": False}, {"adapter": "inline"}, {"endpoint": ""}])
def test_an_agent_without_an_address_is_not_checked(scribe: Agent, fields: dict[str, Any]) -> None:
    Agent.objects.filter(role="scribe").update(**fields)

    assert not health.waiting().filter(role="scribe").exists()


def test_a_check_requested_over_the_api_is_left_to_a_worker(
    api: Any, tenant: Tenant, scribe: Agent, server: Any
) -> None:
    health.check_waiting()
    calls_before = len(server.calls)

    answer = api(platform=True).post("/api/v1/agents/scribe/check/")

    assert (answer.status_code, answer.json()["health"]) == (202, "healthy")
    assert (len(server.calls), scribe_now().health_due_at) == (calls_before, None)
    assert api("viewer").get("/api/v1/agents/scribe/").json()["health"] == "healthy"
