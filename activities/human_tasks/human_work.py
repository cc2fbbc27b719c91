"""Tasks of people: claiming and completing them. A person who takes over an agent's work may approve its output or do the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from activities import activity_tree, outputs, selectors, suspension, transitions
from activities.activity_tree import OPEN
from activities.exceptions import NotFound, SubmissionInvalid, TransitionRefused
from activities.models import Activity
from tenants.context import tenant_scope


def take_up(tenant_id: UUID, activity_id: UUID, *, actor: str) -> Activity:
    """Record that a person claims the activity. It reserves nothing: others can still answer it.

    Raises `TransitionRefused`, which names an earlier claimant, also for an agent's activity, and `NotFound`.
    """
    with tenant_scope(tenant_id):
        _refuse_agents(tenant_id, activity_id, "take_up")
        try:
            transitions.apply(activity_id, "take_up", actor=actor, started_at=transitions.NOW)
        except TransitionRefused as refusal:
            raise _name_claimant(tenant_id, refusal) from refusal
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def complete(
    tenant_id: UUID, activity_id: UUID, *, actor: str, output: Mapping[str, Any] | None = None, note: str = "", note_path: str = "note"
) -> Activity:  # fmt: skip
    """Complete a person's task, with or without an output.

    Raises `TransitionRefused`, also for a decision, `NotFound`, and `SubmissionInvalid` with `note_path` if a blocker is resolved without
    a note.
    """
    with tenant_scope(tenant_id):
        activity = _refuse_agents(tenant_id, activity_id, "finish")
        if activity_tree.is_decision(activity):
            raise TransitionRefused(
                activity_id,
                "finish",
                activity.status,
                f"Activity {activity_id} needs a decision: approve or reject it.",
            )
        if not note.strip() and activity.status in OPEN and activity_tree.resolves_blocker(activity):
            raise SubmissionInvalid(
                [{"path": note_path, "message": "is required to resolve a blocker: the agent works by it"}]
            )
        activity_tree.lock(tenant_id, (activity_id, activity_tree.origin_of(tenant_id, activity).parent_id))
        changes: dict[str, Any] = {
            "decided_by": actor,
            "decided_at": transitions.NOW,
            "reviewer_notes": note or None,
        }
        if output:
            changes["output_ref"] = outputs.store(tenant_id, activity_id, output)
        try:
            transitions.apply(activity_id, "finish", actor=actor, detail={"note": note}, **changes)
        except TransitionRefused as refusal:
            raise suspension.explain_refusal(tenant_id, refusal, "completed") from refusal
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def _name_claimant(tenant_id: UUID, refusal: TransitionRefused) -> TransitionRefused:
    """Return the refusal of a second claim with the facts, or else the refusal as it is."""
    activity = Activity.objects.for_tenant(tenant_id).get(pk=refusal.activity_id)
    claim = selectors.claims_of(tenant_id, [activity]).get(activity.pk)
    if claim is None:
        return refusal
    return TransitionRefused(
        activity.pk,
        refusal.verb,
        activity.status,
        f"{claim.actor} claimed this at {claim.at:%Y-%m-%dT%H:%M:%SZ}. You can still answer it, and an operator can reassign it.",
    )


def _refuse_agents(tenant_id: UUID, activity_id: UUID, verb: str) -> Activity:
    activity = Activity.objects.for_tenant(tenant_id).get_or_raise(NotFound, "activity", activity_id)
    if activity.assignee_type != "human":
        raise TransitionRefused(
            activity_id, verb, activity.status, f"Activity {activity_id} belongs to an agent."
        )
    return activity
