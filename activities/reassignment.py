"""Reassignment: gives work to another agent or to a person, as a new activity that takes the place of this one.

The successor inherits the input, the place in the pipeline and the parent that waits for the result. Agents may reassign work a limited
number of times, and never to a role that had it before. Decisions of people cannot be reassigned to agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.conf import settings

from activities import activity_tree, cancellation, suspension, transitions
from activities.decision_rules import DecisionRules
from activities.exceptions import NotFound, QuotaExceeded, ToolRefused, TransitionRefused
from activities.human_tasks.revisions import successor_of
from activities.mailboxes import producer
from activities.models import Activity, Wake
from activities.models.activity import in_status
from activities.run_tokens import RunToken
from activities.states import LIVE, LinkKind, WakeReason
from activities.submission import NewActivity, submit
from tenants import clock
from tenants.context import tenant_scope

TOOL = "reassign_task"

#: Questions to people. They go to other people only through their own escalation.
NOT_REASSIGNABLE = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.APPROVAL, LinkKind.ESCALATION)


def reassign(
    tenant_id: UUID, activity_id: UUID, *, actor: str, reason: str, agent_role: str | None = None, human_role: str | None = None
) -> Activity:  # fmt: skip
    """Reassign work for an operator; returns the successor. Raises `TransitionRefused`, `NotFound`."""
    with tenant_scope(tenant_id):
        # Lock everything that this may end now, in order of ids, because the pipeline run is locked later.
        activity = activity_tree.lock_with_dependents(tenant_id, activity_id)
        if activity is None:
            raise NotFound("activity", activity_id)
        _refuse_question(activity, agent_role)
        successor = _create_successor(
            activity, reason=reason, agent_role=agent_role, human_role=human_role, actor=actor
        )
        cancellation.release_everything(tenant_id, activity_id, actor=actor)
        return successor


def _refuse_question(activity: Activity, agent_role: str | None) -> None:
    if activity.link_kind in NOT_REASSIGNABLE:
        reason = f"is a question ({activity.link_kind}): the people who are asked must answer it"
    else:
        reason = why_no_agent(activity) if agent_role else ""
    if reason:
        raise TransitionRefused(activity.pk, "reassign", activity.status, f"Activity {activity.pk} {reason}.")


def why_no_agent(activity: Activity) -> str:
    """Say why only people can get an activity; empty if an agent can."""
    if activity.is_approval_gate and not activity_tree.was_taken_over(activity):
        return "is a decision: only people decide"
    if activity_tree.resolves_blocker(activity):
        return "resolves a blocker that an agent could not remove: only a person can"
    return ""


def reassign_by_agent(
    run: RunToken, *, reason: str, agent_role: str | None = None, human_role: str | None = None
) -> UUID:
    """Reassign the work of a run at its agent's request; returns the successor's id.

    In the caller's `tenant_scope`, which holds the locks of what ends with the activity and of the root of its tree. Raises
    `QuotaExceeded`, `ToolRefused`, `RunSuperseded`.
    """
    activity = activity_tree.lock_live(run)
    suspension.refuse_unlisted(activity, agent_role)
    if human_role and activity.requires_approval and DecisionRules.read(activity.decision_rules).needs_people:
        # The person with the work would approve it alone.
        raise ToolRefused(
            "Several people, or others than the one who asked for it, must approve this work, so it cannot be passed to one person. "
            "Ask with request_human_review, or report a blocker."
        )
    line = activity_tree.line_of(activity.tenant_id, activity)
    limit = settings.ORCHESTRATOR_REASSIGNMENTS
    if sum(member.link_kind == LinkKind.REASSIGNED_FROM for member in line) >= limit:
        raise QuotaExceeded("reassignments", f"Work may be reassigned at most {limit} times.")
    if agent_role and agent_role in {member.agent_role for member in line}:
        raise ToolRefused(
            f"{agent_role} has had this work before; reassign it to another role or to a person."
        )
    suspension.refuse_full_tree(activity_tree.tree_of(run.tenant_id, run.activity_id))
    actor = f"run:{run.run_id}"
    successor = _create_successor(
        activity, reason=reason, agent_role=agent_role, human_role=human_role, actor=actor, run=run
    )
    cancellation.release_everything(run.tenant_id, run.activity_id, actor=actor)
    return successor.pk


def _create_successor(
    activity: Activity, *, reason: str, agent_role: str | None, human_role: str | None, actor: str, run: RunToken | None = None
) -> Activity:  # fmt: skip
    # Create the successor before announcing the end of the first activity, so that the pipeline sees the step continue.
    new = _new_successor(activity, reason, agent_role, human_role)
    if run is not None:
        # Only people decide that work starts in spite of its expiry.
        new = replace(new, expires_at=activity.expires_at)
    if messages := producer.move_items(activity, new.id):
        new = replace(new, input=messages)
    (submitted,) = submit([new], actor=actor)
    detail = {"heir": str(submitted.id), "reason": reason}
    if run is None:
        transitions.apply(activity.pk, "reassign", actor=actor, detail=detail, reassign_reason=reason)
    else:
        suspension.suspend(run, "reassign", tool=TOOL, detail=detail, reassign_reason=reason)
    successors = Activity.objects.for_tenant(activity.tenant_id).filter(pk=submitted.id)
    # Messages that come later are for the agent of the mailbox, so the key that joins them to this activity stays behind.
    if activity.dedup_key and activity.mailbox_id is None and not _is_taken(activity):
        # Only now, because two live activities may not share it.
        successors.update(dedup_key=activity.dedup_key)
    return successors.get()


def _is_taken(activity: Activity) -> bool:
    """Whether another activity with the same dedup key is live: one may have been submitted after this one failed."""
    same = Activity.objects.for_tenant(activity.tenant_id).filter(dedup_key=activity.dedup_key)
    return same.filter(in_status(*LIVE)).exists()


def _new_successor(
    activity: Activity, reason: str, agent_role: str | None, human_role: str | None
) -> NewActivity:
    line = activity_tree.line_of(activity.tenant_id, activity)
    taken_over = next((member.agent_role for member in line if member.agent_role), None)
    reassignment = {"reassigned_from": str(activity.pk), "reassign_reason": reason}
    wake_reason, payload = _reason_to_start(activity, line)
    rules = _rules_for("agent" if agent_role else "human", line)
    due_at = activity.due_at
    if human_role and rules and "due_seconds" in rules:
        if due_at is None:
            # Somebody has removed the due time, and the rules must not set it again.
            rules = {name: value for name, value in rules.items() if name != "due_seconds"} or None
        elif due_at <= clock.now():
            due_at = None  # The rules give the successor as much time again.
    return successor_of(
        activity,
        LinkKind.REASSIGNED_FROM,
        agent_role=agent_role,
        human_role=human_role,
        # A person who takes over an agent's work may approve the existing output or do the work. A decision stays a decision.
        is_approval_gate=human_role is not None and (bool(taken_over) or activity.is_approval_gate),
        metadata={**activity.metadata, **reassignment, activity_tree.TAKEN_OVER: taken_over},
        not_before=activity.not_before,
        due_at=due_at,
        decision_rules=rules,
        reviewer_notes=activity.reviewer_notes,
        wake_reason=wake_reason,
        wake_payload={**payload, **reassignment},
    )


def _rules_for(assignee_type: str, line: Sequence[Activity]) -> Mapping[str, Any] | None:
    """Return the rules of the newest member with this type of assignee: an agent's are for the gate, a person's for the task itself."""
    return next((member.decision_rules for member in line if member.assignee_type == assignee_type), None)


def _reason_to_start(activity: Activity, line: Sequence[Activity]) -> tuple[str, Mapping[str, Any]]:
    """Return the wake reason and payload: those of the rejection for a revision, or else a new task."""
    same_round = [member.pk for member in line if member.round == activity.round]
    wakes = Wake.objects.for_tenant(activity.tenant_id).filter(
        activity_id__in=same_round, reason=WakeReason.REJECTION
    )
    rejection = wakes.order_by("-created_at").first()
    return (rejection.reason, rejection.payload) if rejection else (WakeReason.NEW_TASK.value, {})
