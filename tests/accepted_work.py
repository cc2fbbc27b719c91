"""Work that an agent has accepted with 202, and the agent as a client of the API: it calls tools and reports with its run's token."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.test import APIClient

from activities.models import Activity, Wake
from activities.states import LinkKind
from agents.contracts import AgentRequest
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine

RESULT = {"output": {"content": "# Bees", "data": {"words": [1, 2.5, None]}, "content_type": "text/markdown"}}


class AgentClient:
    """Calls the API as the agent of one run."""

    def __init__(self, request: AgentRequest, token: str = "") -> None:
        self.request = request
        self.activity_id, self.run_id = request.activity_id, request.run_id
        self.address = request.callback.url.partition("//")[2].partition("/")[2]
        self.client = APIClient()
        self.client.credentials(HTTP_AUTHORIZATION=f"Bearer {token or request.callback.token}")

    def get_job(self) -> Any:
        return self.client.get(f"/{self.address}")

    def post(self, verb: str, body: Any = None, **headers: str) -> Any:
        return self.client.post(f"/{self.address}{verb}/", {} if body is None else body, headers=headers)

    def use(self, tool: str, *, key: str = "", **arguments: Any) -> Any:
        return self.post(f"tools/{tool}", arguments, **({"Idempotency-Key": key} if key else {}))

    def create_with(self, tool: str, **arguments: Any) -> UUID:
        """Use a tool, which must succeed, and return the id of what it created."""
        answer = self.use(tool, **arguments)
        assert answer.status_code == 201, answer.content
        return UUID(answer.json()["id"])


def accept_work(engine: Engine, tenant: Tenant, role: str = "qa", **fields: Any) -> tuple[UUID, AgentClient]:
    """Submit an activity that its agent accepts; return its id and the agent."""
    (activity_id,) = engine.submit(tenant, role, **fields)
    engine.drain()
    return activity_id, agent_of(engine, activity_id)


def accept_and_create(
    engine: Engine, tenant: Tenant, tool: str, arguments: dict[str, Any], **fields: Any
) -> tuple[UUID, UUID]:
    """Let an agent accept an activity and use a tool; return the ids of the activity and of what the tool created."""
    activity_id, agent = accept_work(engine, tenant, **fields)
    return activity_id, agent.create_with(tool, **arguments)


def calls_of(engine: Engine, activity_id: UUID) -> list[AgentRequest]:
    return [call for call in engine.agent.calls if call.activity_id == activity_id]


def agent_of(engine: Engine, activity_id: UUID) -> AgentClient:
    """Return the agent that was called last for the activity."""
    return AgentClient(calls_of(engine, activity_id)[-1])


def next_call(engine: Engine, activity_id: UUID) -> AgentRequest:
    """Run everything that is ready and return the request of the one further call of the activity's agent."""
    before = len(calls_of(engine, activity_id))
    engine.drain()
    calls = calls_of(engine, activity_id)
    assert len(calls) == before + 1, f"called {len(calls) - before} times"
    return calls[-1]


def is_called_again(engine: Engine, activity_id: UUID) -> bool:
    """Run everything that is ready and return whether the activity's agent was called."""
    before = len(calls_of(engine, activity_id))
    engine.drain()
    return len(calls_of(engine, activity_id)) > before


def wakes_per_call(engine: Engine, activity_id: UUID) -> list[tuple[dict[str, Any], ...]]:
    """Return the wakes that each call about the activity received, in order."""
    return [call.wakes for call in calls_of(engine, activity_id)]


def children(tenant: Tenant, parent_id: UUID, kind: LinkKind | str | None = None) -> list[Activity]:
    with tenant_scope(tenant.pk):
        rows = Activity.objects.filter(parent_id=parent_id)
        return list((rows.filter(link_kind=kind) if kind else rows).order_by("created_at", "pk"))


def child(tenant: Tenant, parent_id: UUID, kind: LinkKind | None = None) -> Activity:
    (only,) = children(tenant, parent_id, kind)
    return only


def count_activities(tenant: Tenant) -> int:
    with tenant_scope(tenant.pk):
        return Activity.objects.count()


def wakes_of(tenant: Tenant, activity_id: UUID) -> list[Wake]:
    with tenant_scope(tenant.pk):
        return list(Wake.objects.filter(activity_id=activity_id).order_by("pk"))


def assert_superseded(response: Any, reason: str = "") -> dict[str, Any]:
    """Assert that the response tells the agent to stop."""
    body = problem(response, 409, "run_superseded")
    assert body["stop"] is True
    assert reason in body["reason"]
    return body


def action_url(activity_id: Any, verb: str) -> str:
    return f"/api/v1/activities/{activity_id}/{verb}/"
