"""Receivers of signals: notify the activity that waits for one that has ended. `connect` is the only place that connects them.

They run inside the transaction of the end. A parent that no longer waits, or waits for something else, is not changed. So a second end of
the same child, for example after a retry, has no effect.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Count

from activities import (
    activity_tree,
    budgets,
    dead_letter_records,
    intake,
    outbox,
    selectors,
    states,
    subagents,
    suspension,
)
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
from tenants import owned_ids
from tenants.context import SYSTEM
from tenants.models import Tenant
from tenants.signals import channel_expired, channel_expiring, pauses_changed


def connect() -> None:
    activity_settled.connect(notify_waiting, dispatch_uid="activities.answer_whoever_waits")
    activity_settled.connect(end_messages, dispatch_uid="activities.end_what_was_told")
    activity_settled.connect(end_budget_wait, dispatch_uid="activities.end_budget_wait")
    channel_expired.connect(alert_expired_channel, dispatch_uid="activities.tell_of_expired_channel")
    channel_expiring.connect(alert_expiring_channel, dispatch_uid="activities.tell_of_expiring_channel")
    pauses_changed.connect(enforce_pauses, dispatch_uid="activities.enforce_pauses")
    health_changed.connect(alert_agent_health, dispatch_uid="activities.tell_of_agent_health")
    registry.provide_references("activities", SOURCE)
    owned_ids.provide("output", selectors.outputs_that_exist)
    owned_ids.provide("activity", owned_ids.rows_of(Activity))


def enforce_pauses(sender: Any, **kwargs: Any) -> None:
    """Make a pause or its end take effect when it is committed; if Redis does not answer, at the next tick of the leader."""
    intake.update_admission_after_commit()


def end_messages(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    """Update the mailboxes that an ended activity concerns. `activity` is a `transitions.Moved`."""
    producer.end_items_of(activity)
    producer.post_decision(activity)
    subagents.notify_parent(activity)


def end_budget_wait(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    """Delete the budget wait of an agent's activity that ended while it waited. `activity` is a `transitions.Moved`.

    Work that waits for a budget is `created`, or `awaiting_review` if an open question holds it as well.
    """
    may_wait = activity.source in (Status.CREATED, Status.AWAITING_REVIEW)
    if may_wait and activity.assignee_type == "agent":
        budgets.end_wait(activity.tenant_id, activity.id)


def notify_waiting(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    """Notify the activities that waited for an ended one. `activity` is a `transitions.Moved`."""
    if activity.link_kind is None or activity.status == Status.REASSIGNED:
        return
    if activity.link_kind == LinkKind.APPROVAL:
        approvals.settle_links(activity)
    elif activity.link_kind == LinkKind.ESCALATION:
        # A cancelled escalation closes nothing.
        if activity.status == Status.DONE and activity.parent_id is not None:
            dead_letter_records.close(
                activity.tenant_id, DeadLetterState.CLOSED, actor=activity.decided_by or "engine", activity_id=activity.parent_id
            )  # fmt: skip
    elif activity.link_kind != LinkKind.GATE and activity.parent_id is not None:
        _answer_parent(activity)


def _answer_parent(ended: Any) -> None:
    origin = activity_tree.origin_of(ended.tenant_id, ended)
    if origin.parent_id is None or origin.kind not in _REASONS:
        return
    if ended.status == Status.REJECTED and activity_tree.has_successor(ended.tenant_id, ended.id):
        return  # the end of its revision will notify the parent
    parent = activity_tree.lock(ended.tenant_id, [origin.parent_id]).get(origin.parent_id)
    reason = _REASONS[LinkKind(origin.kind)] or suspension.reason_of(ended)
    if parent is None or parent.status != reason.ends or not activity_tree.holds_up(ended.tenant_id, origin):
        return
    actor = getattr(ended, "decided_by", None) or "engine"
    if origin.kind == LinkKind.REVIEW:
        outbox.deliver_answer([parent], reason, payload=_describe_end(ended, origin), actor=actor)
    else:
        outbox.wake(parent, reason, payload=_describe_end(ended, origin), actor=actor)


#: The wake reason of the parent when a child of this kind ends. For a review it depends on the answer.
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


# References from open work to agents, so that removing an agent shows what still needs it.


def references_of_role(role: str) -> list[Reference]:
    """Return one reference for each tenant that has open activities of the role."""
    # The query names the tenants, because the index begins with the tenant.
    tenants = dict(Tenant.objects.using(SYSTEM).filter(is_active=True).values_list("pk", "slug"))
    open_ones = Activity.objects.using(SYSTEM).filter(
        in_status(*states.LIVE), tenant_id__in=list(tenants), agent_role=role
    )
    counts = open_ones.order_by().values("tenant_id").annotate(number=Count("pk"))
    return [
        Reference(
            f"{number:,} open {'activity' if number == 1 else 'activities'}",
            tenant_id,
            tenants[tenant_id],
            role,
        )
        for tenant_id, number in counts.values_list("tenant_id", "number")
    ]


def list_broken() -> list[BrokenReference]:
    """Return none, because work is checked at submission, and waits while its agent is disabled."""
    return []


SOURCE = ReferenceSource(references_of_role, list_broken)
