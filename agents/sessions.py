"""An agent's conversation is found by (tenant, deliverable, role) and continued by revisions and wakes."""

from __future__ import annotations

from uuid import UUID

from django.db.models.functions import Now

from agents.models import AgentSession


def find(tenant_id: UUID, deliverable_id: UUID | None, role: str) -> str | None:
    """The agent's own id of the conversation, if there is one."""
    if deliverable_id is None:
        return None
    found = AgentSession.objects.for_tenant(tenant_id).filter(deliverable_id=deliverable_id, agent_id=role)
    return found.values_list("external_session_id", flat=True).first()


def save(tenant_id: UUID, deliverable_id: UUID, role: str, external_id: str) -> None:
    """Remember the conversation; the latest id wins."""
    AgentSession.objects.update_or_create(
        tenant_id=tenant_id, deliverable_id=deliverable_id, agent_id=role,
        defaults={"external_session_id": external_id[:200], "updated_at": Now()},
    )  # fmt: skip
