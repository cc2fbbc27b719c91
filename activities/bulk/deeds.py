"""Deeds: what is done to a portion of activities, by the functions that do it to one.

Most are alike and lie by themselves, so they are moved together; one that others hang on is dealt with in a transaction of its own, since
its end locks more than itself. In the caller's `tenant_scope`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import DatabaseError, transaction

from activities import cancellation, families, reassignment, relay, states, transitions
from activities.admission import Exchange
from activities.admission.exchange import Offer
from activities.deadletters import choosing, replaying
from activities.exceptions import ActivityError, ActivityNotFound, TransitionRefused
from activities.models import Activity, ApprovalLink, BulkJob, Wake
from activities.models.bulk import BulkAction, ItemState
from activities.models.decision import LinkState
from activities.states import Status
from tenants import outages
from tenants.context import APP

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one item; `state` is None when it is to be dealt with alone."""

    state: ItemState | None
    error: Mapping[str, str] | None = None


DONE, ALONE = Outcome(ItemState.DONE), Outcome(None)
Outcomes = dict[UUID, Outcome]


def together(job: BulkJob, ids: Sequence[UUID]) -> Outcomes:
    """Deal with many activities in one go. What the database refuses them together is tried with each of them alone."""
    try:
        with transaction.atomic(using=APP):
            return _TOGETHER[job.action](job, ids)
    except DatabaseError as error:
        if outages.may_pass(error):
            raise
        facts = {"action": "bulk_portion_refused", "job": str(job.pk), "reason": type(error).__name__}
        logger.warning("A portion of a bulk job was refused", extra=facts)
        return dict.fromkeys(ids, ALONE)


def alone(job: BulkJob, activity_id: UUID) -> Outcome:
    """Deal with one activity. What it or the database refuses is its outcome; that the server is away, or met others, is raised."""
    try:
        with transaction.atomic(using=APP):
            if job.action not in _ALONE:
                return _TOGETHER[job.action](job, [activity_id])[activity_id]
            _ALONE[job.action](job, activity_id)
    except (TransitionRefused, ActivityNotFound) as refusal:
        return _skipped(str(refusal), refusal.code)
    except ActivityError as error:
        return Outcome(ItemState.FAILED, {"code": error.code, "message": str(error)})
    except Exception as error:
        if outages.may_pass(error):
            raise
        logger.exception(
            "A bulk item failed", extra={"action": "bulk_item_failed", "activity": str(activity_id)}
        )
        return Outcome(
            ItemState.FAILED, {"code": "internal_error", "message": "Something went wrong on our side."}
        )
    return DONE


def _skipped(message: str, code: str = TransitionRefused.code) -> Outcome:
    return Outcome(ItemState.SKIPPED, {"code": code, "message": message})


def _cancel_many(job: BulkJob, ids: Sequence[UUID]) -> Outcomes:
    """Cancel those that nothing hangs on; the others are left for later."""
    found = families.lock(job.tenant_id, ids)
    plain = [
        activity_id for activity_id in _childless(job.tenant_id, ids) if _is_plain(found.get(activity_id))
    ]
    reason = job.arguments.get("reason", "")
    moved = transitions.apply_many(
        plain, "cancel", actor=job.created_by, detail=_detail(job), cancel_reason=reason or None
    )
    relay.after_commit(Exchange(withdrawals=[activity.id for activity in moved]))
    done = {activity.id for activity in moved}
    return {activity_id: DONE if activity_id in done else ALONE for activity_id in ids}


def _is_plain(activity: Activity | None) -> bool:
    """Whether an activity waits for its agent and is no part of anything."""
    return (
        activity is not None
        and activity.status == Status.CREATED
        and activity.assignee_type == "agent"
        and activity.parent_id is None
        and activity.pipeline_run_id is None
        and activity.schedule_id is None
    )


def _childless(tenant_id: UUID, ids: Sequence[UUID]) -> list[UUID]:
    children = Activity.objects.for_tenant(tenant_id).filter(parent_id__in=ids)
    links = ApprovalLink.objects.for_tenant(tenant_id).filter(activity_id__in=ids, state=LinkState.WAITING)
    parents = set(children.values_list("parent_id", flat=True)) | set(
        links.values_list("activity_id", flat=True)
    )
    return [activity_id for activity_id in ids if activity_id not in parents]


def _retry_many(job: BulkJob, ids: Sequence[UUID]) -> Outcomes:
    failed = [
        activity.pk
        for activity in families.lock(job.tenant_id, ids).values()
        if activity.status in choosing.FAILED
    ]
    moved = set(
        replaying.reopen(job.tenant_id, choosing.without_twins(job.tenant_id, failed), job.created_by, None)
    )
    return {
        activity_id: DONE
        if activity_id in moved
        else _skipped("It has not failed, or its dedup key is taken.")
        for activity_id in ids
    }


def _prioritise_many(job: BulkJob, ids: Sequence[UUID]) -> Outcomes:
    """What waits is offered again at its new place; what is at work goes on."""
    priority = int(job.arguments["priority"])
    live = [
        activity
        for activity in families.lock(job.tenant_id, ids).values()
        if activity.status not in states.SETTLED
    ]
    rows = Activity.objects.for_tenant(job.tenant_id).filter(pk__in=[activity.pk for activity in live])
    rows.update(priority=priority)
    waiting = [
        a
        for a in live
        if a.status == Status.CREATED and a.assignee_type == "agent" and a.priority != priority
    ]
    due = Wake.objects.for_tenant(job.tenant_id).filter(
        activity_id__in=[activity.pk for activity in waiting], state="pending", due_at=None
    )
    ready = set(due.values_list("activity_id", flat=True))
    for activity in waiting:
        activity.priority = priority
    relay.after_commit(
        Exchange(
            withdrawals=[activity.pk for activity in waiting],
            offers=[Offer.of(activity) for activity in waiting if activity.pk in ready],
        )
    )
    done = {activity.pk for activity in live}
    return {activity_id: DONE if activity_id in done else _skipped("It has ended.") for activity_id in ids}


def _cancel_one(job: BulkJob, activity_id: UUID) -> None:
    cancellation.cancel(
        job.tenant_id, activity_id, actor=job.created_by, reason=job.arguments.get("reason", "")
    )


def _reassign_one(job: BulkJob, activity_id: UUID) -> None:
    given = job.arguments
    reassignment.reassign(
        job.tenant_id, activity_id, actor=job.created_by, reason=given["reason"],
        agent_role=given.get("agent_role"), human_role=given.get("human_role"),
    )  # fmt: skip


def _detail(job: BulkJob) -> dict[str, Any]:
    return {"reason": job.arguments.get("reason", ""), "bulk_job": str(job.pk)}


_TOGETHER: dict[str, Callable[[BulkJob, Sequence[UUID]], Outcomes]] = {
    BulkAction.CANCEL: _cancel_many,
    BulkAction.RETRY: _retry_many,
    BulkAction.PRIORITY: _prioritise_many,
}
_ALONE: dict[str, Callable[[BulkJob, UUID], None]] = {
    BulkAction.CANCEL: _cancel_one,
    BulkAction.REASSIGN: _reassign_one,
}
