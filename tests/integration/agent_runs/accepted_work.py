"""Work that an agent has accepted with 202, and the agent that reports on it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.test import APIClient

from activities.models import ActivityRun
from agents.contracts import AgentRequest
from tenants.models import Tenant
from tests.engine import Engine
from tests.integration.test_api_access import problem

RESULT = {"output": {"content": "# Bees", "data": {"words": [1, 2.5, None]}, "content_type": "text/markdown"}}


class Agent:
    """An agent as a client of the API: it knows the callback's address and token."""

    def __init__(self, request: AgentRequest, token: str = "") -> None:
        self.run_id = request.run_id
        self.address = request.callback.url.partition("//")[2].partition("/")[2]
        self.client = APIClient()
        self.client.credentials(HTTP_AUTHORIZATION=f"Bearer {token or request.callback.token}")

    def get(self) -> Any:
        return self.client.get(f"/{self.address}")

    def post(self, verb: str, body: Any = None) -> Any:
        return self.client.post(f"/{self.address}{verb}/", {} if body is None else body)


def accept_work(engine: Engine, acme: Tenant, **fields: Any) -> tuple[UUID, Agent]:
    """Submit an activity that its agent accepts; return its id and the agent."""
    (activity_id,) = engine.submit(acme, **fields)
    engine.drain()
    return activity_id, Agent(engine.agent.calls[-1])


def run_of(engine: Engine, acme: Tenant, activity_id: UUID) -> ActivityRun:
    return engine.runs(acme, activity_id)[-1]


def assert_superseded(response: Any, reason: str = "") -> None:
    """Assert that the response tells the agent to stop."""
    body = problem(response, 409, "run_superseded")
    assert body["stop"] is True
    assert reason in body["reason"]
