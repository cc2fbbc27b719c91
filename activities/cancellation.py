"""Cancelling, and trying again: what operators do.

A cancellation is a fact in PostgreSQL. A waiting activity never starts; a worker or agent that has it learns at its next heartbeat, and
whatever it still delivers is refused. What others were asked because of it is closed as obsolete, and its subtasks end with it.
"""

from __future__ import annotations

from uuid import UUID

from activities import approvals, burial, families, relay, transitions, wakes
from activities.admission import Exchange
from activities.admission.exchange import Release
from activities.exceptions import ActivityNotFound, TransitionRefused
from activities.models import Activity, Wake
from activities.models.dead_letter import DeadLetterState
from activities.signals import activity_reopened
from activities.states import LinkKind, Status, WakeReason
from tenants.context import tenant_scope

#: What was asked for the sake of an activity and is of no use without it.
DEPENDENTS = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.RESOLUTION, LinkKind.ESCALATION, LinkKind.SUBTASK)
OBSOLETE = "obsolete"


def cancel(tenant_id: UUID, activity_id: UUID, *, actor: str, reason: str = "") -> Activity:
    """Cancelling what people were asked withdraws the question. Raises `TransitionRefused` when it has ended, `ActivityNotFound`."""
    with tenant_scope(tenant_id):
        activity = _locked(tenant_id, activity_id)
        _refuse_gate(activity)
        transitions.apply(
            activity_id, "cancel", actor=actor, detail={"reason": reason}, cancel_reason=reason or None
        )
        let_go(tenant_id, activity_id, actor=actor)
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def _locked(tenant_id: UUID, activity_id: UUID) -> Activity:
    asked = Activity.objects.for_tenant(tenant_id).filter(pk=activity_id).first()
    if asked is None:
        raise ActivityNotFound(f"There is no activity {activity_id}.")
    return approvals.lock_concerned(tenant_id, asked)[activity_id]


def _refuse_gate(activity: Activity) -> None:
    """Without its gate, what waits behind it could never be decided."""
    if activity.link_kind == LinkKind.GATE and activity.status in (Status.CREATED, Status.IN_PROGRESS):
        raise TransitionRefused(
            activity.pk,
            "cancel",
            activity.status,
            f"Decide this gate, or cancel activity {activity.parent_id}, which waits behind it.",
        )


def let_go(tenant_id: UUID, activity_id: UUID, *, actor: str, run_status: str = "cancelled") -> None:
    """End everything that an activity which has just ended still holds: its run, its slots, its questions, its subtasks, its dead letter.

    In the transaction of the move that ended it.
    """
    run = transitions.end_run(tenant_id=tenant_id, activity_id=activity_id, run_status=run_status)
    freed = Exchange(withdrawals=[activity_id])
    if run and run.accepted_at:
        freed.releases.append(Release(activity_id, run.grant))
    # A worker that is still waiting for the agent keeps its slots until the call has ended: they are in use.
    relay.after_commit(freed)
    burial.close(tenant_id, activity_id, DeadLetterState.CLOSED, actor=actor)
    approvals.drop_links_of(tenant_id, activity_id, actor=actor)
    for child in families.open_children(tenant_id, activity_id, DEPENDENTS):
        transitions.apply(
            child.pk, "cancel", actor=actor, detail={"reason": OBSOLETE}, cancel_reason=OBSOLETE
        )
        let_go(tenant_id, child.pk, actor=actor)


def retry(tenant_id: UUID, activity_id: UUID, *, actor: str) -> Activity:
    """Start a failed activity anew, for the reason it ran last, with all its attempts."""
    with tenant_scope(tenant_id):
        moved = transitions.apply(activity_id, "retry", actor=actor, attempts=0, stalls=0, error=None)
        last = Wake.objects.for_tenant(tenant_id).filter(activity_id=activity_id).order_by("-id").first()
        wakes.record(
            moved,
            last.reason if last else WakeReason.NEW_TASK,
            payload=last.payload if last else None,
            cause="replay",
        )
        activity_reopened.send(sender=Activity, activity=moved)
        if escalation := burial.close(tenant_id, activity_id, DeadLetterState.REPLAYED, actor=actor):
            transitions.apply_many(
                [escalation], "cancel", actor=actor, detail={"reason": OBSOLETE}, cancel_reason=OBSOLETE
            )
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)
