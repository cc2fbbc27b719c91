"""An agent that has accepted its work, as a test plays it: it calls tools and reports with the token of its job."""

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

OUTPUT = {"output": {"content": "# Bees", "data": {"words": 2}}}


class Caller:
    """What an agent has in hand: the address and the token that came with its job."""

    def __init__(self, request: AgentRequest, *, token: str = "") -> None:
        self.request = request
        self.activity_id, self.run_id = request.activity_id, request.run_id
        self.address = request.callback.url.partition("//")[2].partition("/")[2]
        self.client = APIClient()
        self.client.credentials(HTTP_AUTHORIZATION=f"Bearer {token or request.callback.token}")

    def job(self) -> Any:
        return self.client.get(f"/{self.address}")

    def post(self, verb: str, body: Any = None, **headers: str) -> Any:
        return self.client.post(f"/{self.address}{verb}/", {} if body is None else body, headers=headers)

    def use(self, tool: str, *, key: str = "", **arguments: Any) -> Any:
        return self.post(f"tools/{tool}", arguments, **({"Idempotency-Key": key} if key else {}))

    def used(self, tool: str, **arguments: Any) -> UUID:
        """Use a tool that must do its work; the id of what came into being."""
        answer = self.use(tool, **arguments)
        assert answer.status_code == 201, answer.content
        return UUID(answer.json()["id"])


def at_work(engine: Engine, tenant: Tenant, role: str = "qa", **fields: Any) -> tuple[UUID, Caller]:
    """An activity, and its agent, which has accepted the work."""
    (activity_id,) = engine.submit(tenant, role, **fields)
    engine.drain()
    return activity_id, caller_of(engine, activity_id)


def calls_of(engine: Engine, activity_id: UUID) -> list[AgentRequest]:
    return [call for call in engine.agent.calls if call.activity_id == activity_id]


def caller_of(engine: Engine, activity_id: UUID) -> Caller:
    """The agent that was called last for the activity."""
    return Caller(calls_of(engine, activity_id)[-1])


def woken(engine: Engine, activity_id: UUID) -> AgentRequest:
    """Let everything run that is ready: the activity's agent is called exactly once more. What it is told."""
    before = len(calls_of(engine, activity_id))
    engine.drain()
    calls = calls_of(engine, activity_id)
    assert len(calls) == before + 1, f"called {len(calls) - before} times"
    return calls[-1]


def not_woken(engine: Engine, activity_id: UUID) -> bool:
    """Return whether the activity's agent is not called again when everything ready has run."""
    before = len(calls_of(engine, activity_id))
    engine.drain()
    return len(calls_of(engine, activity_id)) == before


def children(tenant: Tenant, parent_id: UUID, kind: LinkKind | None = None) -> list[Activity]:
    with tenant_scope(tenant.pk):
        rows = Activity.objects.for_tenant(tenant.pk).filter(parent_id=parent_id)
        return list((rows.filter(link_kind=kind) if kind else rows).order_by("created_at"))


def child(tenant: Tenant, parent_id: UUID, kind: LinkKind | None = None) -> Activity:
    (only,) = children(tenant, parent_id, kind)
    return only


def count_of(tenant: Tenant) -> int:
    """How many activities the tenant has."""
    with tenant_scope(tenant.pk):
        return Activity.objects.for_tenant(tenant.pk).count()


def wakes_of(tenant: Tenant, activity_id: UUID) -> list[Wake]:
    with tenant_scope(tenant.pk):
        return list(Wake.objects.for_tenant(tenant.pk).filter(activity_id=activity_id).order_by("pk"))


def over(response: Any, reason: str = "") -> dict[str, Any]:
    """The answer tells the agent to stop."""
    body = problem(response, 409, "run_superseded")
    assert body["stop"] is True
    assert reason in body["reason"]
    return body


def of(activity_id: Any, verb: str) -> str:
    """Return the address of an action."""
    return f"/api/v1/activities/{activity_id}/{verb}/"
