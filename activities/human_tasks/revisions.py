"""Revisions: a rejection creates the same work again as the next round, with the rejected output and the notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.conf import settings

from activities import states
from activities.decision_rules import GENERAL_ROLE
from activities.human_tasks import approvals
from activities.models import Activity
from activities.states import LinkKind, Status, WakeReason
from activities.submission import NewActivity, child_of, submit
from tenants import clock
from tenants.wording import describe_count

SUFFIX = " (revision)"


def revise_or_escalate(rejected: Activity, notes: str, actor: str) -> UUID | None:
    """Submit the revision and return its id, or ask people after too many rounds.

    Call it before the rejection is announced, so that the pipeline sees that the step continues.
    """
    if rejected.status != Status.AWAITING_APPROVAL:
        return None  # It was decided already; the transition will be refused.
    if rejected.round >= settings.ORCHESTRATOR_MAX_ROUNDS:
        _escalate(rejected, notes)
        return None
    return submit_revision(rejected, notes=notes, actor=actor)


def submit_revision(rejected: Activity, *, notes: str, actor: str) -> UUID:
    """Submit the same work again as the next round, with the reviewer's notes. In the caller's transaction; idempotent per round."""
    return submit_revisions(rejected.tenant_id, [build_revision(rejected, notes=notes)], actor=actor)[0]


def submit_revisions(tenant_id: UUID, revisions: Sequence[NewActivity], *, actor: str) -> list[UUID]:
    """Submit revisions; returns their ids in order. Each waits for the open questions about the work that it replaces."""
    ids = [submitted.id for submitted in submit(revisions, actor=actor, bounded=False)]
    pairs = zip(revisions, ids, strict=True)
    revision_ids = {revision.parent_id: id for revision, id in pairs if revision.parent_id}
    approvals.move_questions(tenant_id, revision_ids, actor=actor)
    return ids


#: The fields that a successor inherits from the activity that it replaces.
_WORK = ("name", "description", "agent_role", "human_role", "params", "metadata", "input", "input_ref")
_PLACE = ("template", "step", "branch", "round", "group_key", "group_scope", "files", "priority")
_RULES = ("requires_approval", "timeout_seconds", "retry", "max_attempts", "agent_options", "decision_rules")


def successor_of(activity: Activity, kind: str, **changes: Any) -> NewActivity:
    """Return the same work in the same place with these changes, for submission. It inherits no expiry that has passed."""
    inherited = {name: getattr(activity, name) for name in (*_WORK, *_PLACE, *_RULES)}
    expires_at = activity.expires_at if activity.expires_at and activity.expires_at > clock.now() else None
    return child_of(activity, kind, **{**inherited, "expires_at": expires_at, **changes})


def build_revision(rejected: Activity, *, notes: str) -> NewActivity:
    """Return the next round of the same work, for submission. A person may have taken over the work."""
    name = (
        rejected.name if rejected.name.endswith(SUFFIX) else f"{rejected.name[: 200 - len(SUFFIX)]}{SUFFIX}"
    )
    return successor_of(
        rejected,
        LinkKind.REVISION_OF,
        name=name,
        priority=min(rejected.priority, states.BANDS["gated"]),
        round=rejected.round + 1,
        # The rules of a person's task compute its own.
        due_at=rejected.due_at if rejected.agent_role else None,
        reviewer_notes=notes,
        wake_reason=WakeReason.REJECTION,
        wake_payload={
            "rejection_ref": str(rejected.output_ref) if rejected.output_ref else None,
            "reviewer_notes": notes,
        },
    )


def _escalate(rejected: Activity, notes: str) -> None:
    submit(
        [
            child_of(
                rejected,
                LinkKind.ESCALATION,
                name=f"Rejected {describe_count(rejected.round, 'time')}: {rejected.name}"[:200],
                description="No further revision is created automatically. Change the work, its agent or its instructions.",
                human_role=GENERAL_ROLE,
                priority=states.BANDS["urgent"],
                reviewer_notes=notes,
            )
        ],
        actor="engine",
    )
