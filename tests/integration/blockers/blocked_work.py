"""Blocked work, its agent, and the resolution that a person is asked for."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tenants.models import Tenant
from tests.accepted_work import AgentClient, accept_work
from tests.engine import Engine

DOWN = {"type": "api_outage", "message": "The rank tracker is down.\nSince noon."}


def block_work(engine: Engine, acme: Tenant, **fields: Any) -> tuple[UUID, AgentClient, UUID]:
    """Block an activity; return its id, the agent that reported the blocker, and the id of the resolution."""
    activity_id, agent = accept_work(engine, acme, **fields)
    return activity_id, agent, agent.create_with("report_blocker", **DOWN)
