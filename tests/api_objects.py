"""One of everything that the API has, for a tenant, so that tests can go through all operations of the OpenAPI document."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

from activities.models import BulkJob, ProviderBatch
from agents.contracts import Accepted
from pipelines.models import Deliverable
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import AgentClient, accept_work
from tests.engine import Engine
from tests.tickers import body as schedule

START = "/api/v1/"
FLOW = {
    "key": "flow",
    "name": "Flow",
    "steps": [{"id": "one", "agent_role": "qa", "requires_approval": True}],
}


def create_deliverable(tenant: Tenant) -> str:
    """The id of a new deliverable, for bodies that name one."""
    with tenant_scope(tenant.pk):
        return str(Deliverable.objects.create(tenant_id=tenant.pk, key="seo", name="SEO").pk)


#: What makes one of a collection, in an order in which each finds what it needs.
BODIES: dict[str, dict[str, Any]] = {
    "activities": {"name": "Work", "human_role": "editor"},
    "approvals": {"type": "content_direction", "title": "Which way?", "options": ["Honey", "Hives"]},
    "budgets": {"name": "This month", "cap": "25.50", "period": "month", "agent_role": "qa"},
    "channels": {"kind": "google-ads", "name": "Ads", "details": {"account": "12-34"}},
    "datasets": {"name": "rates", "fields": {"id": "string"}, "rows": [{"id": "a"}]},
    "notification-channels": {"kind": "email", "name": "Mail", "target": "ann@good.example"},
    "pipelines": FLOW,
    "skills": {"key": "tone", "name": "Tone", "description": "How we sound.", "content": "Be kind.\n"},
    "templates": {"key": "page", "name": "Page", "agent_role": "qa"},
    "deliverables": {"key": "blog", "name": "Blog", "pipelines": ["flow"]},
    "schedules": schedule(),
    "subagents": {"subagent_type": "qa", "prompt": "Look.", "description": "A look"},
    "webhooks": {"url": "https://1.1.1.1/events"},
}


class World:
    """What a tenant has. `ids` holds for each collection what its addresses name it by; `agent` has a live run."""

    def __init__(self, engine: Engine, tenant: Tenant, admin: Any) -> None:
        engine.agent.behaviour = lambda request: Accepted()
        engine.serve(tenant)
        self.tenant, self.ids = tenant, {"agents": "qa", "agent-configs": "qa", "queues": "qa"}
        activity, self.agent = accept_work(engine, tenant)
        for collection, body in BODIES.items():
            more = {"activity_ids": [str(activity)]} if collection == "approvals" else {}
            answer = admin.post(f"{START}{collection}/", {**body, **more})
            assert answer.status_code == 201, (collection, answer.content)
            made = answer.json()
            self.ids[collection] = str(made.get("id") or made.get("subagent_id") or made.get("key"))
        run = admin.post(f"{START}pipelines/flow/runs/", {})
        assert run.status_code == 201, run.content
        self.ids |= {"pipelines": "flow", "skills": "tone", "templates": "page", "datasets": "rates"}
        self.ids |= {"pipeline-runs": run.json()["id"], "agent-runs": str(self.agent.run_id)}
        started = admin.post(f"{START}deliverables/{self.ids['deliverables']}/start-period/", {})
        assert started.status_code in (200, 201), started.content
        self.ids["deliverable-periods"] = started.json()["id"]
        said = admin.post(f"{START}mailboxes/box/items/", {"kind": "message", "text": "Hello."})
        assert said.status_code == 201, said.content
        taken = admin.post(f"{START}mailboxes/box/take/", {"consumer": "somebody", "window_ms": 0}).json()
        tried = admin.post(f"{START}webhooks/{self.ids['webhooks']}/test/", {})
        assert tried.status_code == 202, tried.content
        self.ids["mailboxes"] = "box"
        self.parts = {
            "batch_id": taken["batch_id"],
            "item_id": said.json()["id"],
            "delivery_id": tried.json()["id"],
        }
        with tenant_scope(tenant.pk):
            batch = ProviderBatch.objects.create(
                tenant=tenant, agent_role="qa", provider="anthropic|1.1.1.1:443|0", model="m", size=1
            )
            job = BulkJob.objects.create(tenant=tenant, action="cancel", created_by="test")
        self.ids |= {"batches": str(batch.pk), "bulk-jobs": str(job.pk)}
        engine.drain()

    def at(self, address: str) -> str:
        """An address of the OpenAPI document, filled in with what the tenant has."""
        collection = address.removeprefix(START).partition("/")[0]
        own = self.ids.get(collection)
        first = re.sub(r"\{\w+\}", own, address, count=1) if own else address
        named = {"tool": "report_blocker", "key": "a", "role": "qa", **self.parts}
        return re.sub(r"\{(\w+)\}", lambda found: named.get(found[1], str(uuid4())), first)

    def caller(self) -> AgentClient:
        return self.agent
