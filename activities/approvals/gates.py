"""Approval gates: an agent's result waits for a person, who approves it or sends it back.

The gate is an activity of its own, the inbox item; the agent's activity waits in `awaiting_approval` until it closes.
"""

from __future__ import annotations

from typing import Any

from activities import states
from activities.decision_rules import GENERAL_ROLE
from activities.states import LinkKind
from activities.submission import NewActivity, submit


def open_gate(activity: Any) -> None:
    """Put a gate into the inbox for an activity that has just begun to wait. In the caller's transaction."""
    submit(
        [
            NewActivity(
                name=f"Approve: {activity.name}"[:200],
                human_role=(activity.metadata or {}).get("approver_role") or GENERAL_ROLE,
                is_approval_gate=True,
                priority=states.BANDS["gated"],
                input_ref=activity.output_ref,
                parent_id=activity.id,
                link_kind=LinkKind.GATE,
                deliverable_id=activity.deliverable_id,
                mailbox_id=activity.mailbox_id,
                pipeline_run_id=activity.pipeline_run_id,
                step=activity.step,
                branch=activity.branch,
                round=activity.round,
                decision_rules=activity.decision_rules,
            )
        ],
        actor="engine",
    )
