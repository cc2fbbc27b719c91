"""A parent that waits for its subtask, and the ways in which the subtask may end."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from activities.models import Activity
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import RESULT, accept_work, agent_of
from tests.engine import Engine

PART = {
    "name": "Look it up",
    "description": "Where do bees live?",
    "agent_role": "dev",
    "params": {"limit": 5},
    "blocking": True,
}
TASK = {"name": "Look it up", "human_role": "editor", "blocking": True}


def start_waiting_parent(engine: Engine, acme: Tenant, **part: Any) -> tuple[UUID, UUID]:
    """Start an activity that waits for a subtask; return both ids. The agent of the subtask is at work."""
    parent, agent = accept_work(engine, acme)
    subtask = agent.create_with("create_subtask", **{**PART, **part})
    engine.drain()
    return parent, subtask


def fail(engine: Engine, activity_id: UUID, *, retryable: bool = False) -> None:
    error = {"message": "cannot", "code": "broken", "retryable": retryable}
    assert agent_of(engine, activity_id).post("fail", {"error": error}).json()["accepted"] is True


def complete(engine: Engine, activity_id: UUID) -> None:
    assert agent_of(engine, activity_id).post("complete", RESULT).json()["accepted"] is True


def require_approval(acme: Tenant, activity_id: UUID) -> None:
    with tenant_scope(acme.pk):
        Activity.objects.filter(pk=activity_id).update(requires_approval=True)
