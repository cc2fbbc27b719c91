"""Questions of agents and their calls after the answers, for tests of waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from activities import activity_tree
from activities.decision_rules import DecisionRules
from activities.human_tasks import approvals
from activities.human_tasks.approvals import NewApproval
from activities.models import Activity, ApprovalLink, Wake
from agents.contracts import AgentRequest
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine
from tests.integration.agent_runs.accepted_work import Agent, accept_work

DIRECTION = {"type": "content_direction", "title": "Which direction?"}


def asking(engine: Engine, tenant: Tenant, tool: str, body: Any, **fields: Any) -> tuple[UUID, UUID]:
    """An activity whose agent has accepted it and called the tool; its id, and that of what the tool made."""
    activity_id, agent = accept_work(engine, tenant, **fields)
    return activity_id, called(agent, tool, body)


def called(agent: Agent, tool: str, body: Any) -> UUID:
    answer = agent.post(f"tools/{tool}", body)
    assert answer.status_code == 201, answer.json()
    return UUID(answer.json()["id"])


def asked(
    tenant: Tenant,
    activities: Sequence[UUID] = (),
    *,
    identity: str = "user:asker",
    human_role: str | None = None,
    **rules: Any,
) -> UUID:
    """An approval about these activities, asked by an operator; those that have not started wait for it."""
    with tenant_scope(tenant.pk):
        linked = activity_tree.lock(tenant.pk, activities)
        new = NewApproval(
            type="content_direction",
            title="Which direction?",
            human_role=human_role,
            rules=DecisionRules(**rules),
        )
        approval = approvals.open_approval(tenant.pk, new, actor="operator", identity=identity)
        approvals.link(tenant.pk, approval, list(linked.values()), actor="operator", may_hold=linked)
    return approval


def links_of(tenant: Tenant, approval: UUID) -> dict[UUID, tuple[str, str]]:
    """State and reason of each linked activity."""
    with tenant_scope(tenant.pk):
        rows = ApprovalLink.objects.filter(approval_id=approval)
        return {link.activity_id: (link.state, link.reason) for link in rows}


def wakes_of(tenant: Tenant, activity_id: UUID) -> list[Wake]:
    with tenant_scope(tenant.pk):
        return list(Wake.objects.filter(activity_id=activity_id).order_by("pk"))


def heard(engine: Engine, activity_id: UUID) -> list[tuple[dict[str, Any], ...]]:
    """What each call of the agent about this activity was told, in order."""
    return [call.wakes for call in engine.agent.calls if call.activity_id == activity_id]


def told(request: AgentRequest) -> dict[str, Any]:
    """The newest reason of a call."""
    return request.wakes[-1]


def children(tenant: Tenant, activity_id: UUID, kind: str) -> list[Activity]:
    with tenant_scope(tenant.pk):
        return list(Activity.objects.filter(parent_id=activity_id, link_kind=kind).order_by("pk"))
