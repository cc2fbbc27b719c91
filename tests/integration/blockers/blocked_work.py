"""Work that is blocked, the agent that said so, and the question to a person."""

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


def blocked(engine: Engine, acme: Tenant, **fields: Any) -> tuple[UUID, Caller, UUID]:
    """A blocked activity, the agent that reported the blocker, and the resolution that people are asked for."""
    activity_id, agent = at_work(engine, acme, **fields)
    return activity_id, agent, agent.used("report_blocker", **DOWN)
