"""Approval gates: an agent's result waits for a person, who approves it or sends it back.

The gate is an activity of its own, the inbox item; the agent's activity waits in `awaiting_approval` until it closes. One decision moves
both in one transaction. Of several decisions at once one wins; the others learn who decided what and when. A rejection makes a
revision: the same work again, with the rejected output and the notes, as the next round.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings

from activities import states, transitions
from activities.exceptions import ActivityNotFound, AlreadyDecided, TransitionRefused
from activities.models import Activity
from activities.states import LinkKind, Status, WakeReason
from activities.submission import NewActivity, submit
from tenants.context import tenant_scope

REVISION_SUFFIX = " (revision)"
DEFAULT_REVIEWER = "reviewer"


def open_gate(activity: Any) -> None:
    """Put a gate into the inbox for an activity that has just begun to wait. In the caller's transaction."""
    submit(
        [
            NewActivity(
                name=f"Approve: {activity.name}"[:200],
                human_role=(activity.metadata or {}).get("approver_role") or DEFAULT_REVIEWER,
                is_approval_gate=True,
                priority=states.BANDS["gated"],
                input_ref=activity.output_ref,
                parent_id=activity.id,
                link_kind=LinkKind.GATE,
                deliverable_id=activity.deliverable_id,
                pipeline_run_id=activity.pipeline_run_id,
                step=activity.step,
                branch=activity.branch,
                round=activity.round,
                due_at=None,
            )
        ],
        actor="engine",
    )


def approve(
    tenant_id: UUID, activity_id: UUID, *, actor: str, notes: str = "", chosen_option: str | None = None
) -> Activity:
    """Approve what waits behind a gate; `activity_id` is the gate's or the waiting activity's.

    Raises `AlreadyDecided` naming the winner, `TransitionRefused` when nothing waits for a decision, `ActivityNotFound`.
    """
    return _decide(tenant_id, activity_id, "approve", actor, notes, chosen_option)


def reject(
    tenant_id: UUID, activity_id: UUID, *, actor: str, notes: str, chosen_option: str | None = None
) -> Activity:
    """Send it back with notes for the agent. Raises as `approve` does."""
    return _decide(tenant_id, activity_id, "reject", actor, notes, chosen_option)


def _decide(
    tenant_id: UUID, activity_id: UUID, decision: str, actor: str, notes: str, chosen_option: str | None
) -> Activity:
    with tenant_scope(tenant_id):
        asked = Activity.objects.for_tenant(tenant_id).filter(pk=activity_id).first()
        if asked is None:
            raise ActivityNotFound(f"There is no activity {activity_id}.")
        waiting, gate = _pair(asked)
        decided: dict[str, Any] = {
            "decided_by": actor, "decided_at": transitions.NOW, "reviewer_notes": notes or None, "chosen_option": chosen_option
        }  # fmt: skip
        try:
            if waiting is not None:
                if decision == "reject":
                    _make_anew(waiting, notes, actor)
                transitions.apply(
                    waiting.id, decision, actor=actor, detail=_told(notes, chosen_option), **decided
                )
            if gate is not None:
                transitions.apply(
                    gate.id, f"{decision}_gate", actor=actor, detail=_told(notes, chosen_option), **decided
                )
        except TransitionRefused as refusal:
            raise _who_was_first(tenant_id, refusal, decision) from refusal
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def _pair(asked: Activity) -> tuple[Activity | None, Activity | None]:
    """The waiting activity and its gate, whichever of them was asked for. Both are locked in the order of their ids."""
    if asked.link_kind == LinkKind.GATE and asked.parent_id is not None:
        _lock(asked.parent_id, asked.pk)
        return Activity.objects.get(pk=asked.parent_id), asked
    if asked.assignee_type == "human":
        if not asked.is_approval_gate:
            raise TransitionRefused(
                asked.id, "approve", asked.status, f"Activity {asked.id} is not an approval gate."
            )
        return None, asked
    gate = asked.children.filter(link_kind=LinkKind.GATE).order_by("-created_at").first()
    _lock(asked.pk, *([gate.pk] if gate else []))
    return Activity.objects.get(pk=asked.pk), gate


def _lock(*ids: UUID) -> None:
    """In the order of their ids, before anything is written.

    A revision's key to its parent takes a shared lock on it; two rejections that both had one and then wanted to move the parent
    would wait for each other.
    """
    list(Activity.objects.filter(pk__in=ids).order_by("pk").select_for_update().values_list("pk", flat=True))


def _make_anew(rejected: Activity, notes: str, actor: str) -> None:
    """Create the revision before the rejection is announced, so that the pipeline sees the step go on."""
    if rejected.status != Status.AWAITING_APPROVAL:
        return  # Decided already: the transition will say so.
    if rejected.round >= settings.ORCHESTRATOR_MAX_ROUNDS:
        _escalate(rejected, notes)
    else:
        revise(rejected, notes=notes, actor=actor)


def revise(rejected: Activity, *, notes: str, actor: str, requires_approval: bool | None = None) -> UUID:
    """The same work again as the next round, told what was wrong. In the caller's transaction; idempotent per round."""
    name = (
        rejected.name
        if rejected.name.endswith(REVISION_SUFFIX)
        else f"{rejected.name[: 200 - len(REVISION_SUFFIX)]}{REVISION_SUFFIX}"
    )
    revision = NewActivity(
        name=name,
        description=rejected.description,
        agent_role=rejected.agent_role,
        requires_approval=rejected.requires_approval if requires_approval is None else requires_approval,
        priority=min(rejected.priority, states.BANDS["gated"]),
        params=rejected.params,
        metadata=rejected.metadata,
        input=rejected.input,
        input_ref=rejected.input_ref,
        parent_id=rejected.id,
        link_kind=LinkKind.REVISION_OF,
        deliverable_id=rejected.deliverable_id,
        pipeline_run_id=rejected.pipeline_run_id,
        step=rejected.step,
        branch=rejected.branch,
        round=rejected.round + 1,
        group_key=rejected.group_key,
        timeout_seconds=rejected.timeout_seconds,
        retry=rejected.retry,
        max_attempts=rejected.max_attempts,
        reviewer_notes=notes,
        wake_reason=WakeReason.REJECTION,
        wake_payload={"rejection_ref": str(rejected.output_ref), "reviewer_notes": notes},
    )
    return submit([revision], actor=actor)[0].id


def _escalate(rejected: Activity, notes: str) -> None:
    submit(
        [
            NewActivity(
                name=f"Rejected {rejected.round} times: {rejected.name}"[:200],
                description="No further revision is made by itself. Change the work, its agent or its instructions.",
                human_role=DEFAULT_REVIEWER,
                priority=states.BANDS["urgent"],
                parent_id=rejected.id,
                link_kind=LinkKind.ESCALATION,
                deliverable_id=rejected.deliverable_id,
                reviewer_notes=notes,
            )
        ],
        actor="engine",
    )


def _told(notes: str, chosen_option: str | None) -> dict[str, Any]:
    return {"notes": notes, "chosen_option": chosen_option}


def _who_was_first(tenant_id: UUID, refusal: TransitionRefused, decision: str) -> TransitionRefused:
    now = Activity.objects.for_tenant(tenant_id).get(pk=refusal.activity_id)
    if now.decided_by and now.decided_at:
        return AlreadyDecided(
            refusal.activity_id,
            decision,
            now.status,
            f"{now.decided_by} {now.status} this at {now.decided_at:%Y-%m-%dT%H:%M:%SZ}.",
        )
    return TransitionRefused(
        refusal.activity_id,
        decision,
        now.status,
        f"Activity {refusal.activity_id} is {now.status}; nothing waits for a decision there.",
    )
