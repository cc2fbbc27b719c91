"""A tenant with one of everything in the API, so that requests of all operations of the OpenAPI document find objects."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from activities.alerts import raise_alert
from activities.models import DeadLetter, ProviderBatch
from agents.contracts import Accepted
from pipelines.models import Deliverable, ScheduleExecution
from tenants.context import tenant_scope
from tenants.models import Tenant
from tenants.models.events import WebhookDelivery, WebhookDeliveryState
from tests.accepted_work import AgentClient, accept_work
from tests.engine import Engine
from tests.failed_work import submit_failing
from tests.tickers import body as schedule_body

ROOT = "/api/v1/"
STEPS = [
    {"id": "a", "agent_role": "qa"},
    {"id": "b", "agent_role": "dev", "depends_on": ["a"], "requires_approval": True},
]


@dataclass
class ApiObjects:
    """The path parameters of a tenant's objects, by the beginning of their addresses. `agent` has a live run."""

    tenant: Tenant
    agent: AgentClient
    parameters: dict[str, dict[str, str]]

    def parameters_of(self, path: str) -> dict[str, str]:
        """Return the path parameters of the object for this path of the OpenAPI document."""
        beginnings = [each for each in self.parameters if path.startswith(f"{ROOT}{each}")]
        return self.parameters[max(beginnings, key=len)] if beginnings else {}

    def address(self, path: str) -> str:
        """Fill in this path of the OpenAPI document."""
        known = self.parameters_of(path)
        return re.sub(r"\{(\w+)\}", lambda match: known[match[1]], path)


def create_api_objects(engine: Engine, tenant: Tenant, admin: Any) -> ApiObjects:
    """Create one of everything. From then on agents accept their work."""

    def create(address: str, body: Any) -> Any:
        answer = admin.post(f"{ROOT}{address}", body)
        assert answer.status_code < 300, (address, answer.content)
        return answer.json()

    engine.serve(tenant)
    create("templates/", {"key": "t", "name": "T", "agent_role": "qa"})
    create("pipelines/", {"key": "flow", "name": "Flow", "steps": STEPS})
    run = create("pipelines/flow/runs/", {"params": {"topic": "x"}})
    engine.drain()
    (failed,) = submit_failing(engine, tenant)
    engine.agent.behaviour = lambda request: Accepted()
    _, agent = accept_work(engine, tenant)
    activity = run["steps"][0]["activity"]
    attempt = admin.get(f"{ROOT}activities/{activity}/runs/").json()["results"][0]["id"]
    create(
        "datasets/",
        {"name": "rows", "fields": {"id": "string", "n": "integer"}, "rows": [{"id": "x", "n": 1}]},
    )
    skill = create("skills/", {"key": "tone", "name": "Tone", "content": "Be kind."})["key"]
    deliverable = create("deliverables/", {"key": "blog", "name": "Blog", "pipelines": ["flow"]})["id"]
    period = create(f"deliverables/{deliverable}/start-period/", {})["id"]
    schedule = create("schedules/", schedule_body())["id"]
    item = create("mailboxes/box/items/", {"kind": "message", "text": "Hello."})["id"]
    batch_of_items = create("mailboxes/box/take/", {"consumer": "somebody", "window_ms": 0})["batch_id"]
    webhook = create("webhooks/", {"url": "https://1.1.1.1/events"})["id"]
    with tenant_scope(tenant.pk):
        delivery = WebhookDelivery.objects.create(
            tenant=tenant, endpoint_id=webhook, kind="webhook.test", state=WebhookDeliveryState.FAILED
        ).pk
        batch = ProviderBatch.objects.create(
            tenant=tenant, agent_role="qa", provider="anthropic|1.1.1.1:443|0", model="m", size=1
        ).pk
        execution = ScheduleExecution.objects.create(
            tenant=tenant, schedule_id=schedule, schedule_name="Daily", definition={"schedule": str(schedule)}
        ).pk
        alert = raise_alert(tenant.pk, "dead_letter", "It failed")
        letter = DeadLetter.objects.get(activity_id=failed).pk
    engine.submit(tenant, "dev", 1)
    bulk = {"action": "cancel", "filter": {"agent_role": "dev", "status": ["created"]}, "expected_count": 1}
    parameters = {
        "activities/{id}": {"id": activity},
        "activities/": {"activity_id": activity, "run_id": attempt},
        "agent-configs/": {"role": "qa"},
        "agent-runs/": {"run_id": str(agent.run_id), "key": skill, "tool": "report_blocker"},
        "agents/": {"role": "qa", "agent_role": "qa", "id": str(uuid4())},
        "alerts/": {"id": str(alert)},
        "approvals/": {"id": create("approvals/", {"type": "content", "title": "May it?"})["id"]},
        "budgets/": {"id": create("budgets/", {"name": "All", "cap": 5, "period": "day"})["id"]},
        "batches/": {"id": str(batch)},
        "bulk-jobs/": {"id": (job := create("activities/bulk/", bulk)["id"]), "job_id": job},
        "channels/": {"id": create("channels/", {"kind": "ads", "name": "Ads"})["id"]},
        "datasets/": {"name": "rows", "key": "x"},
        "dead-letters/": {"id": str(letter)},
        "deliverable-periods/": {"id": period, "period_id": period},
        "deliverables/": {"id": deliverable},
        "mailboxes/": {"key": "box", "batch_id": batch_of_items, "item_id": item},
        "notification-channels/": {"id": create("notification-channels/", {
            "kind": "email", "name": "Ops", "target": "ops@example.com", "kinds": ["dead_letter"],
        })["id"]},
        "pipeline-runs/": {"id": run["id"], "run_id": run["id"]},
        "pipelines/": {"key": "flow"},
        "providers/": {"name": "anthropic"},
        "queues/": {"role": "qa"},
        "schedules/": {"id": schedule, "schedule_id": schedule, "execution_id": str(execution)},
        "skills/": {"key": skill},
        "subagents/": {"id": create("subagents/", {"subagent_type": "qa", "prompt": "Look."})["subagent_id"]},
        "templates/": {"key": "t"},
        "webhooks/": {"id": webhook, "webhook_id": webhook, "delivery_id": str(delivery)},
    }  # fmt: skip
    return ApiObjects(tenant, agent, parameters)


def create_deliverable(tenant: Tenant) -> str:
    """Return the id of a new deliverable, for bodies that name one."""
    with tenant_scope(tenant.pk):
        return str(Deliverable.objects.create(tenant_id=tenant.pk, key="seo", name="SEO").pk)
