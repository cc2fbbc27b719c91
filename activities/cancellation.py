"""Cancelling, and trying again: what operators do.

A cancellation is a fact in PostgreSQL. A waiting activity never starts; a worker or agent that has it learns at its next heartbeat, and
whatever it still delivers is refused. What others were asked because of it is closed as obsolete, and its subtasks end with it.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from activities.admission import Exchange
from activities.admission.exchange import Release
from activities.exceptions import NotFound, TransitionRefused
from activities.human_tasks import approvals
from activities.models import Activity
from activities.models.activity import in_status
from activities.models.dead_letter import DeadLetterState
from activities.signals import activity_reopened
from activities.states import EXPIRING, LIVE, LinkKind, Status
from tenants import money
from tenants.context import tenant_scope

from . import activity_tree, dead_letter_records, outbox, relay, transitions

OBSOLETE = "obsolete"
EXPIRED = "expired"


def cancel(tenant_id: UUID, activity_id: UUID, *, actor: str, reason: str = "") -> Activity:
    """Cancel an activity. Cancelling a question to people withdraws it. Raises `TransitionRefused` when it has ended, `NotFound`."""
    with tenant_scope(tenant_id):
        _cancel(_lock_activity(tenant_id, activity_id), actor, reason)
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def expire(tenant_id: UUID, activity_id: UUID, *, actor: str) -> bool:
    """Cancel an activity that may not start any more, with the questions that it waits for: no answer could let it go on.

    False when by now it runs, has ended, or has got more time. Raises `TransitionRefused` for a gate, `NotFound`.
    """
    with tenant_scope(tenant_id):
        activity = _lock_activity(tenant_id, activity_id)
        # The row is ours from here; what was read before it was locked may be old.
        late = Activity.objects.for_tenant(tenant_id).filter(
            pk=activity_id, status__in=EXPIRING, expires_at__lte=Now()
        )
        if not late.exists():
            return False
        _cancel(activity, actor, EXPIRED)
        return True


def _cancel(activity: Activity, actor: str, reason: str) -> None:
    _refuse_gate(activity)
    transitions.apply(
        activity.pk, "cancel", actor=actor, detail={"reason": reason}, cancel_reason=reason or None
    )
    release_everything(activity.tenant_id, activity.pk, actor=actor)


def _lock_activity(tenant_id: UUID, activity_id: UUID) -> Activity:
    activity = Activity.objects.for_tenant(tenant_id).filter(pk=activity_id).first()
    if activity is None:
        raise NotFound("activity", activity_id)
    if activity.link_kind == LinkKind.APPROVAL:
        return approvals.lock_concerned(tenant_id, activity)[activity_id]
    # Everything that this may end is locked now, in one order: later, the pipeline run is locked as well.
    return activity_tree.lock_with_dependents(tenant_id, activity_id) or activity


def _refuse_gate(activity: Activity) -> None:
    """Without its gate, what waits behind it could never be decided."""
    if activity.link_kind == LinkKind.GATE and activity.status in (Status.CREATED, Status.IN_PROGRESS):
        raise TransitionRefused(
            activity.pk,
            "cancel",
            activity.status,
            f"Decide this gate, or cancel activity {activity.parent_id}, which waits behind it.",
        )


def release_everything(
    tenant_id: UUID, activity_id: UUID, *, actor: str, run_status: str = "cancelled"
) -> None:
    """End everything that an activity still holds when it has just ended: its run, slots, questions, subtasks and dead letter.

    In the transaction of the move that ended it.
    """
    ended = [_stop_work(tenant_id, activity_id, actor, run_status)]
    # Again until there is none: what is at work right now may ask for more while we come to it.
    while open_ones := activity_tree.open_dependents(tenant_id, activity_id):
        # All are moved before any end is told, so that none of them wakes because another has ended.
        cancelled = transitions.apply_many(
            open_ones, "cancel", actor=actor, detail={"reason": OBSOLETE}, cancel_reason=OBSOLETE
        )
        ended += [_stop_work(tenant_id, dependent.id, actor, "cancelled") for dependent in cancelled]
    # Last: budgets are locked after everything else.
    if kept_for := [run.id for run in ended if run is not None and run.reserved]:
        money.release(tenant_id, kept_for)


def _stop_work(tenant_id: UUID, activity_id: UUID, actor: str, run_status: str) -> Any | None:
    """The run that this ended, if one was live."""
    run = transitions.end_run(tenant_id=tenant_id, activity_id=activity_id, run_status=run_status)
    freed = Exchange(withdrawals=[activity_id])
    if run and run.accepted_at:
        freed.releases.append(Release(activity_id, run.grant))
    # A worker that is still waiting for the agent keeps its slots until the call has ended: they are in use.
    relay.after_commit(freed)
    dead_letter_records.close(tenant_id, activity_id, DeadLetterState.CLOSED, actor=actor)
    approvals.drop_links_of(tenant_id, activity_id, actor=actor)
    return run


def retry(tenant_id: UUID, activity_id: UUID, *, actor: str) -> Activity:
    """Start a failed activity again with all its attempts, for the same wake reasons as its last run.

    Raises `TransitionRefused`, `NotFound`.
    """
    with tenant_scope(tenant_id):
        _refuse_twin(activity_tree.lock_with_dependents(tenant_id, activity_id))
        moved = transitions.apply(activity_id, "retry", actor=actor, attempts=0, stalls=0, error=None)
        outbox.record_again([moved], cause="replay")
        if escalation := dead_letter_records.close(
            tenant_id, activity_id, DeadLetterState.REPLAYED, actor=actor
        ):
            transitions.apply_many(
                [escalation], "cancel", actor=actor, detail={"reason": OBSOLETE}, cancel_reason=OBSOLETE
            )
        activity_reopened.send(sender=Activity, activity=moved)  # Last: it locks the pipeline run.
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def _refuse_twin(activity: Activity | None) -> None:
    """Of activities with one dedup key at most one is live. After this one had failed, another may have been submitted."""
    if activity is None or activity.dedup_key is None:
        return
    same = Activity.objects.for_tenant(activity.tenant_id).filter(
        in_status(*LIVE), dedup_key=activity.dedup_key
    )
    twin = same.exclude(pk=activity.pk).values_list("pk", flat=True).first()
    if twin is not None:
        raise TransitionRefused(
            activity.pk, "retry", activity.status, f"Activity {twin} has the same dedup key and is under way."
        )
