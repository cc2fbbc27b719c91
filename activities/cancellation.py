"""Cancels and retries activities for operators.

A cancellation is committed in PostgreSQL. A waiting activity never starts; the worker or agent of a running one learns of it at its next
heartbeat, and its late result is refused. Open questions about the activity are closed as obsolete, its subtasks are cancelled, and its
request leaves the batch of a model provider that it waits for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from activities import activity_tree, backlog, dead_letter_records, outbox, relay, transitions
from activities.admission import Exchange
from activities.admission.exchange import Release
from activities.exceptions import NotFound, TransitionRefused
from activities.human_tasks import approvals
from activities.models import Activity, BatchItem
from activities.models.activity import in_status
from activities.models.batch import OPEN_ITEMS, ItemState
from activities.models.dead_letter import DeadLetterState
from activities.models.decision import answered_before
from activities.signals import activity_reopened
from activities.states import EXPIRING, LIVE, LinkKind, Status
from tenants import money
from tenants.context import tenant_scope

EXPIRED = "expired"


def cancel(tenant_id: UUID, activity_id: UUID, *, actor: str, reason: str = "") -> Activity:
    """Cancel an activity. Cancelling a question to people withdraws it.

    Raises `TransitionRefused` if it has ended or is a gate, `NotFound`.
    """
    with tenant_scope(tenant_id):
        _cancel(_lock_activity(tenant_id, activity_id), actor, reason)
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def expire(tenant_id: UUID, activity_id: UUID, *, actor: str) -> bool:
    """Cancel an activity whose `expires_at` has passed, together with the questions that it waits for.

    Returns False if meanwhile it runs, has ended, or has a later expiry, or if a person has completed it in time and can still undo that.
    Raises `TransitionRefused` for a gate, `NotFound`.
    """
    with tenant_scope(tenant_id):
        activity = _lock_activity(tenant_id, activity_id)
        # Read again, because the values read before the lock may be outdated.
        late = Activity.objects.for_tenant(tenant_id).filter(
            ~answered_before("pk", "expires_at"), pk=activity_id, status__in=EXPIRING, expires_at__lte=Now()
        )
        if not late.exists():
            return False
        _cancel(activity, actor, EXPIRED)
        if activity.agent_role:
            backlog.count_refused(tenant_id, backlog.Reason.EXPIRED, {activity.agent_role: 1})
        return True


def expire_repeated(tenant_id: UUID, dedup_keys: Collection[str], *, actor: str) -> None:
    """Expire work with these dedup keys whose `expires_at` has passed, so that the same work can be submitted again before the next sweep.

    In the caller's `tenant_scope`.
    """
    if not dedup_keys:
        return
    expired = Activity.objects.for_tenant(tenant_id).filter(
        in_status(*EXPIRING), dedup_key__in=dedup_keys, expires_at__lte=Now()
    )
    for activity_id in expired.order_by("pk").values_list("pk", flat=True):
        expire(tenant_id, activity_id, actor=actor)


def _cancel(activity: Activity, actor: str, reason: str) -> None:
    # Without an open gate, the activity behind it could never be decided.
    if activity.link_kind == LinkKind.GATE and activity.status in (Status.CREATED, Status.IN_PROGRESS):
        raise TransitionRefused(
            activity.pk,
            "cancel",
            activity.status,
            f"Decide this gate, or cancel activity {activity.parent_id}, which waits behind it.",
        )
    transitions.apply(
        activity.pk, "cancel", actor=actor, detail={"reason": reason}, cancel_reason=reason or None
    )
    release_everything(activity.tenant_id, activity.pk, actor=actor)


def _lock_activity(tenant_id: UUID, activity_id: UUID) -> Activity:
    activity = Activity.objects.for_tenant(tenant_id).get_or_raise(NotFound, "activity", activity_id)
    if activity.link_kind == LinkKind.APPROVAL:
        return approvals.lock_concerned(tenant_id, activity)[activity_id]
    # Lock everything that this may end now, in order of ids, because the pipeline run is locked later.
    return activity_tree.lock_with_dependents(tenant_id, activity_id) or activity


def release_everything(tenant_id: UUID, activity_id: UUID, *, actor: str) -> None:
    """End everything that an activity that has just ended still holds: its run, slots, questions, subtasks and dead letter.

    In the transaction of the move that ended it.
    """
    ended = {activity_id: _stop_work(tenant_id, activity_id, actor)}
    # Loop, because a running dependent may create more dependents before it is cancelled.
    while open_ones := activity_tree.open_dependents(tenant_id, activity_id):
        # Cancel all before announcing any end, so that none of them is woken by the end of another.
        cancelled = transitions.cancel_obsolete(open_ones, actor=actor)
        ended |= {dependent.id: _stop_work(tenant_id, dependent.id, actor) for dependent in cancelled}
    # A run that waits for a batch counts as accepted by its agent.
    if accepted := [pk for pk, run in ended.items() if run is not None and run.accepted_at]:
        drop_batch_items(tenant_id, accepted)
    # Last, because budgets are locked after everything else.
    if reserved := [run.id for run in ended.values() if run is not None and run.reserved]:
        money.release(tenant_id, reserved)


def _stop_work(tenant_id: UUID, activity_id: UUID, actor: str) -> Any | None:
    """Return the run that this ended, if one was live."""
    run = transitions.end_run(tenant_id=tenant_id, activity_id=activity_id, run_status="cancelled")
    freed = Exchange(withdrawals=[activity_id])
    if run and run.accepted_at:
        freed.releases.append(Release(activity_id, run.grant))
    # A worker that still waits for the agent keeps its slots until the call has ended, because they are in use.
    relay.after_commit(freed)
    dead_letter_records.close(tenant_id, DeadLetterState.CLOSED, actor=actor, activity_id=activity_id)
    approvals.drop_links_of(tenant_id, activity_id, actor=actor)
    return run


def drop_batch_items(tenant_id: UUID, activity_ids: list[UUID]) -> None:
    """Close the items with which runs of these activities waited for a batch of a model provider."""
    items = BatchItem.objects.for_tenant(tenant_id)
    waiting = items.filter(activity_id__in=activity_ids, state__in=OPEN_ITEMS)
    # Locked in the order of ids, as by the process that binds items to a batch.
    ids = list(waiting.order_by("id").select_for_update(of=("self",)).values_list("id", flat=True))
    items.filter(pk__in=ids).update(state=ItemState.DROPPED, closed_at=Now(), body=None)


#: What a retry changes. People who retry expired work want it in spite of its expiry.
AGAIN: dict[str, Any] = {"attempts": 0, "stalls": 0, "error": None, "expires_at": transitions.IF_AHEAD}


def retry(tenant_id: UUID, activity_id: UUID, *, actor: str) -> Activity:
    """Start a failed activity again with all its attempts, for the same wake reasons as its last run.

    Raises `TransitionRefused`, `NotFound`.
    """
    with tenant_scope(tenant_id):
        _refuse_duplicate(activity_tree.lock_with_dependents(tenant_id, activity_id))
        moved = transitions.apply(activity_id, "retry", actor=actor, **AGAIN)
        outbox.record_again([moved])
        escalations = dead_letter_records.close(
            tenant_id, DeadLetterState.REPLAYED, actor=actor, activity_id=activity_id
        )
        transitions.cancel_obsolete(escalations, actor=actor)
        activity_reopened.send(sender=Activity, activity=moved)  # Last: it locks the pipeline run.
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def _refuse_duplicate(activity: Activity | None) -> None:
    """Raise `TransitionRefused` if another activity with the same dedup key was submitted after the failure and is live."""
    if activity is None or activity.dedup_key is None:
        return
    same = Activity.objects.for_tenant(activity.tenant_id).filter(
        in_status(*LIVE), dedup_key=activity.dedup_key
    )
    duplicate = same.exclude(pk=activity.pk).values_list("pk", flat=True).first()
    if duplicate is not None:
        raise TransitionRefused(
            activity.pk, "retry", activity.status, f"Activity {duplicate} has the same dedup key and is live."
        )
