"""Reassignment: the work is handed to another agent or to a person, as a new activity that takes the place of this one.

The heir inherits input, place in the pipeline and whatever waits for the result: a parent gets its answer from the heir. An agent may
hand on only so many times, and never back to a role that has had it.
"""

from __future__ import annotations

from uuid import UUID

from django.conf import settings

from activities import cancellation, families, suspension, transitions
from activities.exceptions import ActivityNotFound, QuotaExceeded, ToolRefused, TransitionRefused
from activities.models import Activity
from activities.run_tokens import RunToken
from activities.states import LinkKind
from activities.submission import NewActivity, submit
from tenants.context import tenant_scope

TOOL = "reassign_task"

#: Only a person can answer what a person is asked; it may be another one.
_PEOPLE_ONLY = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.APPROVAL, LinkKind.RESOLUTION, LinkKind.ESCALATION)


def reassign(
    tenant_id: UUID, activity_id: UUID, *, actor: str, reason: str, agent_role: str | None = None, human_role: str | None = None
) -> Activity:  # fmt: skip
    """An operator hands the work on; the heir. Raises `TransitionRefused` from where that cannot be, `ActivityNotFound`."""
    with tenant_scope(tenant_id):
        activity = families.lock_with_parent(tenant_id, activity_id)
        if activity is None:
            raise ActivityNotFound(f"There is no activity {activity_id}.")
        if activity.link_kind in _PEOPLE_ONLY:
            raise TransitionRefused(
                activity_id, "reassign", activity.status,
                f"Activity {activity_id} is a {activity.link_kind}: whoever is asked answers it.",
            )  # fmt: skip
        heir = _hand_on(activity, reason=reason, agent_role=agent_role, human_role=human_role, actor=actor)
        cancellation.let_go(tenant_id, activity_id, actor=actor)
        return heir


def reassign_by_agent(
    run: RunToken, *, reason: str, agent_role: str | None = None, human_role: str | None = None
) -> UUID:
    """An agent hands its own work on; the heir's id. Raises `QuotaExceeded`, `ToolRefused`, `RunSuperseded`. In the caller's scope."""
    activity = suspension.live(run)
    line = families.line_of(run.tenant_id, activity)
    if len(line) > settings.ORCHESTRATOR_REASSIGNMENTS:
        raise QuotaExceeded(
            "reassignments", f"Work may be handed on {settings.ORCHESTRATOR_REASSIGNMENTS} times, not more."
        )
    if agent_role and agent_role in {before.agent_role for before in line}:
        raise ToolRefused(f"{agent_role} has had this work before; hand it to somebody else or to a person.")
    heir = _hand_on(
        activity,
        reason=reason,
        agent_role=agent_role,
        human_role=human_role,
        actor=f"run:{run.run_id}",
        run=run,
    )
    cancellation.let_go(run.tenant_id, run.activity_id, actor=f"run:{run.run_id}")
    return heir.pk


def _hand_on(
    activity: Activity, *, reason: str, agent_role: str | None, human_role: str | None, actor: str, run: RunToken | None = None
) -> Activity:  # fmt: skip
    # The heir is there before the end of the first is announced, so that the pipeline sees the step go on.
    (submitted,) = submit([_heir_of(activity, reason, agent_role, human_role)], actor=actor)
    detail = {"heir": str(submitted.id), "reason": reason}
    if run is None:
        transitions.apply(activity.pk, "reassign", actor=actor, detail=detail, reassign_reason=reason)
    else:
        suspension.put_aside(run, "reassign", tool=TOOL, detail=detail, reassign_reason=reason)
    heirs = Activity.objects.for_tenant(activity.tenant_id).filter(pk=submitted.id)
    if activity.dedup_key:
        heirs.update(dedup_key=activity.dedup_key)  # Only now: two live activities may not share it.
    heir: Activity = heirs.get()
    return heir


def _heir_of(activity: Activity, reason: str, agent_role: str | None, human_role: str | None) -> NewActivity:
    return NewActivity(
        name=activity.name,
        description=activity.description,
        agent_role=agent_role,
        human_role=human_role,
        is_approval_gate=human_role is not None and activity.assignee_type == "agent",
        requires_approval=activity.requires_approval and agent_role is not None,
        priority=activity.priority,
        params=activity.params,
        metadata={**activity.metadata, "reassigned_from": str(activity.pk), "reassign_reason": reason},
        input=activity.input,
        input_ref=activity.input_ref,
        parent_id=activity.pk,
        link_kind=LinkKind.REASSIGNED_FROM,
        deliverable_id=activity.deliverable_id,
        pipeline_run_id=activity.pipeline_run_id,
        step=activity.step,
        branch=activity.branch,
        round=activity.round,
        group_key=activity.group_key,
        not_before=activity.not_before,
        expires_at=activity.expires_at,
        due_at=activity.due_at,
        timeout_seconds=activity.timeout_seconds,
        retry=activity.retry,
        max_attempts=activity.max_attempts,
        decision_rules=activity.decision_rules,
    )
