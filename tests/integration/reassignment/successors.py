"""Reassigned work, and agents whose work fails."""

from __future__ import annotations

from uuid import UUID

from activities.models import Activity
from activities.states import LinkKind
from tenants.models import Tenant
from tests.accepted_work import AgentClient, child

TO_AGENT = {"agent_role": "dev", "reason": "Yours."}
TO_PERSON = {"assignee_type": "human", "human_role": "editor", "reason": "Tricky."}


def successor_of(acme: Tenant, activity_id: UUID) -> Activity:
    return child(acme, activity_id, LinkKind.REASSIGNED_FROM)


def fail(agent: AgentClient) -> None:
    agent.post("fail", {"error": {"message": "cannot", "retryable": False}})
