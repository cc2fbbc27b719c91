"""Where an activity's end reaches the activity that waits for it. `connect` is the one place where this is wired.

Runs inside the transaction that ended it. A parent that does not wait any more, or waits for something else by now, is left alone: a
second end of the same child, such as one that had failed and was tried again, changes nothing.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Count

from activities import activity_tree, dead_letter_records, outbox, states, subagents, suspension
from activities.activity_tree import Origin
from activities.alerts import alert_agent_health, alert_expired_channel, alert_expiring_channel
from activities.human_tasks import approvals
from activities.mailboxes import producer
from activities.models import Activity
from activities.models.activity import in_status
from activities.models.dead_letter import DeadLetterState
from activities.signals import activity_settled
from activities.states import LinkKind, Status, WakeReason
from agents import registry
from agents.registry import BrokenReference, Reference, ReferenceSource
from agents.signals import health_changed
from tenants.context import SYSTEM
from tenants.models import Tenant
from tenants.signals import channel_expired, channel_expiring


def connect() -> None:
    activity_settled.connect(answer_whoever_waits, dispatch_uid="activities.answer_whoever_waits")
    activity_settled.connect(end_wakes, dispatch_uid="activities.end_what_was_told")
    channel_expired.connect(alert_expired_channel, dispatch_uid="activities.tell_of_expired_channel")
    channel_expiring.connect(alert_expiring_channel, dispatch_uid="activities.tell_of_expiring_channel")
    health_changed.connect(alert_agent_health, dispatch_uid="activities.tell_of_agent_health")
    registry.provide_references("activities", SOURCE)


def end_wakes(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    """`activity` is a `transitions.Moved`."""
    producer.follow(activity)
    producer.tell_decision(activity)
    subagents.tell_parent(activity)


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


def _answer_parent(ended: Any) -> None:
    origin = activity_tree.origin_of(ended.tenant_id, ended)
    if origin.parent_id is None or origin.kind not in _REASONS:
        return
    if ended.status == Status.REJECTED and activity_tree.has_successor(ended.tenant_id, ended.id):
        return  # Its revision will answer.
    parent = activity_tree.lock(ended.tenant_id, [origin.parent_id]).get(origin.parent_id)
    reason = _REASONS[LinkKind(origin.kind)] or suspension.reason_of(ended)
    if parent is None or parent.status != reason.ends or not activity_tree.holds_up(ended.tenant_id, origin):
        return
    actor = getattr(ended, "decided_by", None) or "engine"
    if origin.kind == LinkKind.REVIEW:
        outbox.deliver_answer([parent], reason, payload=_describe_end(ended, origin), actor=actor)
    else:
        outbox.wake(parent, reason, payload=_describe_end(ended, origin), actor=actor)


#: Why a parent wakes when this ends. A review's answer decides it itself.
_REASONS: dict[LinkKind, WakeReason | None] = {
    LinkKind.RESOLUTION: WakeReason.UNBLOCKED,
    LinkKind.SUBTASK: WakeReason.SUBTASK_COMPLETED,
    LinkKind.REVIEW: None,
}


def _describe_end(ended: Any, origin: Origin) -> dict[str, Any]:
    if origin.kind == LinkKind.SUBTASK:
        return suspension.outcome_of_subtask(ended, origin)
    return (
        suspension.outcome_of_blocker(ended)
        if origin.kind == LinkKind.RESOLUTION
        else suspension.outcome_of_review(ended)
    )


def _close_dead_letter(escalation: Any) -> None:
    """A person has said that the failure is dealt with. An escalation that fell away with its cause has nothing to close."""
    if escalation.status == Status.DONE and escalation.parent_id is not None:
        dead_letter_records.close(
            escalation.tenant_id,
            escalation.parent_id,
            DeadLetterState.CLOSED,
            actor=escalation.decided_by or "engine",
        )


# Work that is not done yet, as a reference to its agent: an agent that goes away leaves it standing.


def of(role: str) -> list[Reference]:
    """One reference for each tenant that has open activities of the role."""
    # The tenants are named, so that the index by tenant and status serves.
    tenants = dict(Tenant.objects.using(SYSTEM).filter(is_active=True).values_list("pk", "slug"))
    open_ones = Activity.objects.using(SYSTEM).filter(
        in_status(*states.LIVE), tenant_id__in=list(tenants), agent_role=role
    )
    counts = open_ones.order_by().values("tenant_id").annotate(number=Count("pk"))
    return [
        Reference("activities", f"{row['number']:,} open", row["tenant_id"], tenants[row["tenant_id"]], role)
        for row in counts
    ]


def list_broken() -> list[BrokenReference]:
    """None: work was checked when it was submitted, and waits when its agent is switched off."""
    return []


SOURCE = ReferenceSource(of, list_broken)
