"""Where an activity's end reaches the activity that waits for it. `connect` is the one place where this is wired.

Runs inside the transaction that ended it. A parent that does not wait any more is left alone, so a second end of the same child, or an
end after the parent was cancelled, changes nothing.
"""

from __future__ import annotations

from typing import Any

from activities import approvals, blockers, burial, families, reviews, subtasks, wakes
from activities.alerts.occasions import tell_of_expired_channel
from activities.models.dead_letter import DeadLetterState
from activities.signals import activity_settled
from activities.states import LinkKind, Status, WakeReason
from tenants.signals import channel_expired


def connect() -> None:
    activity_settled.connect(answer_whoever_waits, dispatch_uid="activities.answer_whoever_waits")
    channel_expired.connect(tell_of_expired_channel, dispatch_uid="activities.tell_of_expired_channel")


def answer_whoever_waits(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    """`activity` is a `transitions.Moved`."""
    if activity.link_kind is None or activity.status == Status.REASSIGNED:
        return
    if activity.link_kind == LinkKind.APPROVAL:
        approvals.settle_links(activity)
    elif activity.link_kind == LinkKind.ESCALATION:
        _close_dead_letter(activity)
    elif activity.link_kind != LinkKind.GATE and activity.parent_id is not None:
        _answer_parent(activity)


def _answer_parent(activity: Any) -> None:
    above, kind = families.origin_of(activity.tenant_id, activity)
    if above is None or kind not in _ANSWERS:
        return
    if activity.status == Status.REJECTED and families.has_successor(activity.tenant_id, activity.id):
        return  # Its revision will answer.
    parent = families.lock(activity.tenant_id, [above]).get(above)
    if parent is not None:
        reason, told = _ANSWERS[kind]
        reason = reason or reviews.reason_of(activity)
        wakes.wake(
            parent, reason, payload=told(activity), actor=getattr(activity, "decided_by", None) or "engine"
        )


_ANSWERS: dict[str | None, tuple[WakeReason | None, Any]] = {
    LinkKind.RESOLUTION: (WakeReason.UNBLOCKED, blockers.told),
    LinkKind.SUBTASK: (WakeReason.SUBTASK_COMPLETED, subtasks.told),
    LinkKind.REVIEW: (None, reviews.told),
}


def _close_dead_letter(escalation: Any) -> None:
    """A person has said that the failure is dealt with. An escalation that fell away with its cause has nothing to close."""
    if escalation.status == Status.DONE and escalation.parent_id is not None:
        burial.close(
            escalation.tenant_id,
            escalation.parent_id,
            DeadLetterState.CLOSED,
            actor=escalation.decided_by or "engine",
        )
