"""Work that has failed permanently, for tests of dead letters."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from activities import dead_letter_records, dead_letters, transitions
from activities.models import Activity, Alert, DeadLetter, Wake
from activities.submission import NewActivity, submit
from agents.contracts import AgentRequest, AgentResult
from agents.exceptions import AgentError, PermanentAgentError
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine


def submit_failing(
    engine: Engine, tenant: Tenant, role: str = "qa", count: int = 1, *, error: AgentError | None = None, **fields: Any
) -> list[UUID]:  # fmt: skip
    """Submit activities that fail permanently. Their dead letters are not handled yet."""
    raised = error or PermanentAgentError("It broke.", code="broken")

    def fail(request: AgentRequest) -> AgentResult:
        raise raised

    before, engine.agent.behaviour = engine.agent.behaviour, fail
    ids = engine.submit(tenant, role, count, **fields)
    engine.drain()
    engine.agent.behaviour = before
    engine.agent.calls.clear()
    return ids


def create_dead_letters(tenant: Tenant, count: int) -> list[UUID]:
    """Create thousands of failed activities with the same statements as the engine, but without calling an agent."""
    error = {"code": "broken", "message": "It broke.", "retryable": False}
    with tenant_scope(tenant.pk):
        items = [NewActivity(name=f"work {number}", agent_role="qa") for number in range(count)]
        ids = [item.id for item in submit(items, actor="test")]
        for portion in dead_letters.portions(ids):
            transitions.apply_many(portion, "claim", actor="test")
            transitions.apply_many(portion, "fail", actor="test", error=error)
        DeadLetter.objects.bulk_create(
            DeadLetter(
                tenant_id=tenant.pk, activity_id=activity_id, agent_role="qa", reason="permanent", error=error,
                fingerprint=dead_letter_records.fingerprint_of("qa", error), attempts=1,
            )
            for activity_id in ids
        )  # fmt: skip
        Wake.objects.filter(activity_id__in=ids).update(state="consumed")
    return ids


def letters_of(tenant: Tenant, *activities: UUID) -> list[DeadLetter]:
    with tenant_scope(tenant.pk):
        return list(DeadLetter.objects.filter(activity_id__in=activities).order_by("pk"))


def alerts_of(tenant: Tenant, activity_id: UUID) -> list[Alert]:
    with tenant_scope(tenant.pk):
        return list(Alert.objects.filter(activity_id=activity_id).order_by("pk"))


def escalations_of(tenant: Tenant, activity_id: UUID) -> list[Activity]:
    with tenant_scope(tenant.pk):
        return list(Activity.objects.filter(parent_id=activity_id, link_kind="escalation").order_by("pk"))
