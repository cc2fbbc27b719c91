"""Work that waits for a subtask, and the statuses of simultaneous answers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tenants.models import Tenant
from tests.accepted_work import accept_work
from tests.engine import Engine

DOWN = {"type": "api_outage", "message": "It is down."}
PART = {"name": "Look it up", "agent_role": "dev", "blocking": True}
TRIES = 5


def waiting(engine: Engine, acme: Tenant) -> tuple[UUID, UUID]:
    """Return an activity that waits for its subtask, and the subtask, whose agent has accepted it."""
    parent, agent = accept_work(engine, acme)
    subtask = agent.create_with("create_subtask", **PART)
    engine.drain()
    return parent, subtask


def statuses(answers: list[Any]) -> list[int]:
    """Return the status codes of answers of the API."""
    return [answer.status_code for answer in answers]
