"""Approvals that people ask about activities, and the links of these activities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from activities import activity_tree
from activities.decision_rules import DecisionRules
from activities.human_tasks import approvals
from activities.human_tasks.approvals import NewApproval
from activities.models import ApprovalLink
from tenants.context import tenant_scope
from tenants.models import Tenant

DIRECTION = {"type": "content_direction", "title": "Which direction?"}


def open_approval(
    tenant: Tenant,
    activities: Sequence[UUID] = (),
    *,
    identity: str = "user:asker",
    human_role: str | None = None,
    **rules: Any,
) -> UUID:
    """Open an approval about these activities as an operator. Those that have not started wait for it."""
    with tenant_scope(tenant.pk):
        linked = activity_tree.lock(tenant.pk, activities)
        new = NewApproval(**DIRECTION, human_role=human_role, rules=DecisionRules(**rules))
        approval = approvals.open_approval(tenant.pk, new, actor="operator", identity=identity)
        approvals.link(tenant.pk, approval, list(linked.values()), actor="operator")
    return approval


def links_of(tenant: Tenant, approval: UUID) -> dict[UUID, tuple[str, str]]:
    """Return the state and the reason of each linked activity."""
    with tenant_scope(tenant.pk):
        rows = ApprovalLink.objects.filter(approval_id=approval)
        return {link.activity_id: (link.state, link.reason) for link in rows}
