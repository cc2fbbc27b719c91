"""Withdrawing: whoever asked takes an approval back. What waits for it wakes and learns so."""

from __future__ import annotations

from uuid import UUID

from activities import transitions
from activities.approvals import linking
from activities.approvals.deciding import who_was_first
from activities.decision_rules import Voter
from activities.exceptions import ActivityNotFound, DecisionForbidden, TransitionRefused
from activities.models import Activity, Approval
from tenants.context import tenant_scope

WITHDRAW = "withdraw"


def withdraw(tenant_id: UUID, approval_id: UUID, *, by: Voter, reason: str = "") -> Activity:
    """Take an open approval back; for whoever asked, and for those who decide everything.

    Raises `AlreadyDecided` naming who was first, `TransitionRefused`, `DecisionForbidden`, `ActivityNotFound`.
    """
    with tenant_scope(tenant_id):
        approval = Approval.objects.for_tenant(tenant_id).filter(pk=approval_id).first()
        if approval is None:
            raise ActivityNotFound(f"There is no approval {approval_id}.")
        if not by.decides_all and approval.requested_identity != by.identity:
            raise DecisionForbidden(f"{approval.requested_by} has asked this, and may take it back.")
        linking.lock_concerned_by(tenant_id, [approval_id])
        try:
            transitions.apply(
                approval_id, "cancel", actor=by.actor, detail={"reason": reason}, cancel_reason=reason or None,
                decided_by=by.actor, decided_at=transitions.NOW,
            )  # fmt: skip
        except TransitionRefused as refusal:
            raise who_was_first(tenant_id, refusal, WITHDRAW) from refusal
        return Activity.objects.for_tenant(tenant_id).get(pk=approval_id)
