"""The roles that migrations create, with their queues, names and limits per tenant, and the sizes of workers."""

from __future__ import annotations

from typing import Any

import pytest
from celery import current_app
from celery.concurrency import prefork, thread

from activities.admission import limits
from agents.models import Agent, AgentConfig
from agents.routing import SYSTEM_QUEUES, canonical, queue_of, roles_of, route, select_queues
from orchestrator import celery
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine
from tests.registry import temporary_agent

#: Role, name, queue, limit of concurrent activities per tenant.
ROLES = (
    ("client-researcher", "Client Researcher", "agent__client-researcher", 1),
    ("competitor-researcher", "Competitor Researcher", "agent__competitor-researcher", 1),
    ("context-file-writer", "Context File Writer", "agent__context-file-writer", 1),
    ("strategy-writer", "Strategy Writer", "agent__strategy-writer", 1),
    ("deliverable-planner", "Deliverable Planner", "agent__deliverable-planner", 1),
    ("activity-planner", "Activity Planner", "agent__activity-planner", 2),
    ("keyword-researcher", "Keyword Researcher", "agent__keyword-researcher", 2),
    ("content-brief-writer", "Content Brief Writer", "agent__content-brief-writer", 3),
    ("site-auditor", "Site Auditor", "agent__site-auditor", 1),
    ("backlink-researcher", "Backlink Researcher", "agent__backlink-researcher", 2),
    ("backlink-outreach-writer", "Backlink Outreach Writer", "agent__backlink-outreach-writer", 3),
    ("blog-writer", "Blog Writer", "agent__blog-writer", 3),
    ("gbp-post-writer", "GBP Post Writer", "agent__gbp-post-writer", 4),
    ("social-post-writer", "Social Post Writer", "agent__social-post-writer", 4),
    ("email-writer", "Email Writer", "agent__email-writer", 3),
    ("landing-page-writer", "Landing Page Writer", "agent__landing-page-writer", 2),
    ("google-ads-writer", "Google Ads Writer", "agent__google-ads-writer", 3),
    ("meta-ads-writer", "Meta Ads Writer", "agent__meta-ads-writer", 3),
    ("social-calendar-planner", "Social Calendar Planner", "agent__social-calendar-planner", 2),
    ("ads-analyst", "Ads Analyst", "agent__ads-analyst", 2),
    ("report-writer", "Report Writer", "agent__report-writer", 2),
    ("anomaly-detector", "Anomaly Detector", "agent__anomaly-detector", 4),
    ("topic-researcher", "Topic Researcher", "agent__topic-researcher", 2),
    ("research-note-writer", "Research Note Writer", "agent__research-note-writer", 3),
    ("review-response-writer", "Review Response Writer", "agent__review-response-writer", 4),
    ("chief-of-staff", "Chief of Staff", "agent__chief-of-staff", 2),
    ("ba", "Business Analyst", "agent__ba", 5),
    ("architect", "Architect", "agent__architect", 5),
    ("dev", "Developer", "agent__dev", 3),
    ("qa", "QA", "agent__qa", 5),
    ("memory", "Memory", "agent__memory", 5),
)


@pytest.mark.parametrize(("role", "name", "queue", "limit"), ROLES, ids=[role for role, *_ in ROLES])
def test_a_role_has_its_name_queue_and_limit_per_tenant(
    database: None, role: str, name: str, queue: str, limit: int
) -> None:
    agent = Agent.objects.get(role=role)

    assert (agent.name, agent.tenant_concurrency, agent.enabled, agent.paused) == (name, limit, True, False)
    assert route("activities.run", (), {"role": role}, {}) == {"queue": queue}
    assert (queue_of(role), roles_of([queue])) == (queue, [role])
    assert queue in select_queues([], Agent.objects.values_list("role", flat=True))
    assert limits.current()["caps"][f"pair:*:{role}"] == limit


@pytest.mark.parametrize(
    ("name", "queue"),
    [
        ("queue:chief_of_staff", "agent__chief-of-staff"),
        ("queue:ba", "agent__ba"),
        ("queue:architect", "agent__architect"),
        ("queue:dev", "agent__dev"),
        ("queue:qa", "agent__qa"),
        ("queue:memory", "agent__memory"),
        ("queue:webhook-outbound", "webhook-outbound"),
        ("queue:digest", "digest"),
        ("agent__dev", "agent__dev"),
    ],
)
def test_a_queue_can_be_named_in_another_spelling(name: str, queue: str) -> None:
    assert canonical(name) == queue


def test_a_role_may_be_written_with_underscores(engine: Engine, tenant: Tenant, api: Any) -> None:
    body = {"name": "Plan", "description": "Plan it.", "agent_role": "chief_of_staff"}

    answer = api("operator").post("/api/v1/activities/", body)

    assert (answer.status_code, answer.json()["agent_role"]) == (201, "chief-of-staff")
    unknown = api("operator").post("/api/v1/activities/", {**body, "agent_role": "chief_of_nothing"})
    assert [fault["path"] for fault in unknown.json()["errors"]] == ["agent_role"]


def test_a_role_may_be_written_with_underscores_wherever_one_is_named(
    engine: Engine, tenant: Tenant, api: Any
) -> None:
    written, role, admin = "chief_of_staff", "chief-of-staff", api("admin")

    def create(place: str, **body: Any) -> Any:
        answer = admin.post(f"/api/v1/{place}/", body)
        assert answer.status_code in {200, 201}, (place, answer.content)
        return answer.json()

    step = {"id": "a", "agent_role": written}
    pipeline = create("pipelines", key="flow", name="Flow", steps=[step])
    once = {"repeat": "once", "start_at": "2199-01-01T00:00:00Z", "target_type": "agent"}
    created = [
        create("templates", key="t", name="T", agent_role=written)["agent_role"],
        pipeline["definition"]["steps"][0]["agent_role"],
        create("schedules", name="S", agent_role=written, **once)["agent_role"],
        create("budgets", name="B", cap=1, agent_role=written)["agent_role"],
        *create("skills", key="s", name="S", content="S", roles=[written])["roles"],
        create("subagents", subagent_type=written, prompt="P")["subagent_type"],
    ]
    (work,) = engine.submit(tenant)
    move = {"assignee_type": "agent", "agent_role": written, "reason": "Better there."}
    created.append(create(f"activities/{work}/reassign", **move)["agent_role"])
    dry = {"action": "cancel", "filter": {"agent_role": written}, "dry_run": True}

    assert created == [role] * 7
    assert create("activities/bulk", **dry)["count"] == 2
    for place, name in (
        ("activities", "agent_role"),
        ("schedules", "agent_role"),
        ("budgets", "agent_role"),
        ("skills", "role"),
        ("subagents", "subagent_type"),
    ):
        found = admin.get(f"/api/v1/{place}/?{name}={written}").json()["results"]
        assert found, place


def test_the_limit_of_a_tenant_overrides_that_of_the_role(tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        AgentConfig.objects.create(tenant=tenant, agent_id="blog-writer", max_concurrency=7)

    caps = limits.current()["caps"]

    assert (caps[f"pair:{tenant.pk}:blog-writer"], caps["pair:*:blog-writer"]) == (7, 3)


def test_dead_letters_have_their_own_system_queue() -> None:
    assert "dead-letter" in SYSTEM_QUEUES
    assert not roles_of(SYSTEM_QUEUES)
    assert current_app.conf.task_default_queue == "system"


@pytest.mark.parametrize(
    ("queues", "environment", "size"),
    [
        ("agent__blog-writer", {"WORKER_CONCURRENCY_BLOG_WRITER": "6", "WORKER_CONCURRENCY": "9"}, 6),
        ("agent__blog-writer", {"WORKER_CONCURRENCY": "9"}, 9),
        ("agent__blog-writer", {}, 16),
        ("agent__blog-writer,agent__qa", {"WORKER_CONCURRENCY_QA": "6"}, 16),
        ("agent__*", {"WORKER_CONCURRENCY": "3"}, 3),
        ("queue:chief_of_staff", {"WORKER_CONCURRENCY_CHIEF_OF_STAFF": "2"}, 2),
        ("", {"WORKER_CONCURRENCY": "5"}, 5),
        ("dead-letter", {"WORKER_CONCURRENCY": "5"}, 4),
        ("system", {"WORKER_CONCURRENCY_SYSTEM": "2"}, 2),
    ],
)
def test_environment_variables_set_the_concurrency_of_a_worker(
    database: None, monkeypatch: pytest.MonkeyPatch, queues: str, environment: dict[str, str], size: int
) -> None:
    for name in (
        "WORKER_CONCURRENCY_CHIEF_OF_STAFF",
        "WORKER_CONCURRENCY",
        "WORKER_CONCURRENCY_QA",
        "WORKER_CONCURRENCY_BLOG_WRITER",
        "WORKER_CONCURRENCY_SYSTEM",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(celery, "_named_queues", [])
    monkeypatch.setattr(celery, "cores", lambda: 2)
    configured: Any = type("Configured", (), {"worker_concurrency": None})()

    celery.choose_concurrency(sender="w", instance=None, conf=configured, options={"queues": queues})

    assert configured.worker_concurrency == size


def test_a_worker_with_an_invalid_concurrency_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_CONCURRENCY_QA", "many")
    with pytest.raises(
        SystemExit, match="WORKER_CONCURRENCY_QA must be a whole number from 1 to 1000, not 'many'"
    ):
        celery.choose_concurrency(sender="w", instance=None, conf=None, options={"queues": "agent__qa"})


@pytest.mark.parametrize(
    ("queues", "cores", "size"),
    [
        ("agent__coder", 1, 1), ("agent__coder", 6, 6), ("agent__coder,agent__qa", 6, 48), ("agent__qa", 1, 16), ("agent__qa", 4, 32),
        ("agent__qa", 32, 64), ("", 4, 32), ("agent__nobody", 4, 32),
    ],
)  # fmt: skip
def test_the_default_concurrency_follows_from_the_cores_and_the_adapters_of_the_roles(
    database: None, monkeypatch: pytest.MonkeyPatch, queues: str, cores: int, size: int
) -> None:
    monkeypatch.delenv("WORKER_CONCURRENCY", raising=False)
    monkeypatch.setattr(celery, "_named_queues", [])
    monkeypatch.setattr(celery, "cores", lambda: cores)
    configured: Any = type("Configured", (), {"worker_concurrency": None})()

    with temporary_agent("coder", adapter="cli"):
        celery.choose_concurrency(sender="w", instance=None, conf=configured, options={"queues": queues})

    assert configured.worker_concurrency == size


def test_forked_children_are_one_per_core_by_default(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKER_CONCURRENCY", raising=False)
    monkeypatch.setattr(celery, "_named_queues", [])
    monkeypatch.setattr(celery, "cores", lambda: 3)
    configured: Any = type("Configured", (), {"worker_concurrency": None})()
    options = {"queues": "agent__qa", "pool": prefork.TaskPool}

    celery.choose_concurrency(sender="w", instance=None, conf=configured, options=options)

    assert configured.worker_concurrency == 3


def test_threads_cannot_be_scaled_automatically(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery would start such a worker, whose threads then take one message and no second one."""
    monkeypatch.setattr(celery, "_named_queues", [])
    options = {"queues": "agent__qa", "pool": thread.TaskPool, "autoscale": "4,1"}

    with pytest.raises(SystemExit, match="--autoscale needs --pool=prefork"):
        celery.choose_concurrency(sender="w", instance=None, conf=None, options=options)


def test_children_cannot_end_after_one_message_which_may_be_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celery, "_named_queues", [])
    options = {"queues": "agent__qa", "pool": prefork.TaskPool, "max_tasks_per_child": 1}

    with pytest.raises(SystemExit, match="--max-tasks-per-child must be at least 2"):
        celery.choose_concurrency(sender="w", instance=None, conf=None, options=options)


def test_the_command_line_overrides_the_environment_for_the_concurrency_of_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKER_CONCURRENCY_QA", "6")
    monkeypatch.setattr(celery, "_named_queues", [])
    configured: Any = type("Configured", (), {"worker_concurrency": 2})()

    celery.choose_concurrency(
        sender="w", instance=None, conf=configured, options={"queues": "agent__qa", "concurrency": 2}
    )

    assert configured.worker_concurrency == 2
