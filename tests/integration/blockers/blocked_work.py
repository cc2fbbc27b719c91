"""Blocked work, its agent, and the resolution that a person is asked for."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tenants.models import Tenant
from tests.engine import Engine
from tests.toolbox import (
    Caller,
    at_work,
)

DOWN = {"type": "api_outage", "message": "The rank tracker is down.\nSince noon."}


def block_work(engine: Engine, acme: Tenant, **fields: Any) -> tuple[UUID, Caller, UUID]:
    """Block an activity; return its id, the agent that reported the blocker, and the id of the resolution."""
    activity_id, agent = at_work(engine, acme, **fields)
    return activity_id, agent, agent.used("report_blocker", **DOWN)
