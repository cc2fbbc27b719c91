"""Bulk jobs: apply one action to many activities, which a filter selected once, in portions and by any worker.

Each item's state changes in the transaction of its effect, so a job that is killed half-way resumes where it stopped, and no activity is
processed twice. Activities may change meanwhile: an item whose activity no longer allows the action is skipped. If the job's creator may no
longer do this, the remaining items are refused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import DatabaseError, transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Coalesce, Now

from activities import (
    activity_tree,
    cancellation,
    dead_letters,
    reassignment,
    relay,
    rescheduling,
    states,
    transitions,
)
from activities.admission import Exchange
from activities.exceptions import ActivityError, NotFound, TransitionRefused
from activities.models import Activity, ApprovalLink, BulkItem, BulkJob
from activities.models.bulk import BulkAction, BulkStatus, ItemState
from activities.models.decision import LinkState
from activities.states import Status
from tenants import outages, present_rights, sweeps
from tenants.context import APP, tenant_scope
from tenants.exceptions import Forbidden
from tenants.identifiers import uuid7
from tenants.models import Role
from tenants.principals import Principal
from tenants.sql import Statement
from tenants.sweeps import TURN_SECONDS, Sweep
from tenants.wording import describe_count

logger = logging.getLogger(__name__)

MOST = 50_000  # items of one job

_ADD = Statement.load(Path(__file__).parent / "sql", "add_bulk_items")


class CountChanged(ActivityError):
    """The filter matches another number of activities than the caller expects. Nothing was done."""

    code = "count_changed"

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(
            f"The filter now matches {describe_count(actual, 'activity', 'activities')}, not {expected:,}. Review them again."
        )
        self.problem_members = {"count": actual}


def start(
    tenant_id: UUID,
    action: str,
    ids: Sequence[UUID],
    *,
    expected: int,
    filter: Mapping[str, Any],
    arguments: Mapping[str, Any],
    creator: Principal,
) -> BulkJob:
    """Create a job. In the caller's `tenant_scope`. Raises `CountChanged`, or `ActivityError` if too many match."""
    if len(ids) != expected:
        raise CountChanged(expected, len(ids))
    if len(ids) > MOST:
        raise ActivityError(
            f"One job may process at most {MOST:,} activities; the filter matches {len(ids):,}.",
            code="too_many_items",
        )
    job = BulkJob.objects.create(
        tenant_id=tenant_id, action=action, filter=dict(filter), arguments=dict(arguments), total=len(ids),
        created_by=creator.actor, credential=creator.credential,
    )  # fmt: skip
    # Reassigning creates a successor, which locks more than the activity itself.
    alone = action == BulkAction.REASSIGN
    _ADD.run(
        {
            "tenant": tenant_id,
            "job": job.pk,
            "ids": [uuid7() for _ in ids],
            "activities": list(ids),
            "alone": alone,
        },
        using=APP,
    )
    job.refresh_from_db()
    return job


def cancel(tenant_id: UUID, job_id: UUID, *, actor: str) -> None:
    """Cancel the job; processed items stay as they are. Idempotent. Waits for the portion that is being processed.

    Raises `ActivityError` if the job has completed.
    """
    moved = (
        BulkJob.objects.for_tenant(tenant_id)
        .filter(pk=job_id, status=BulkStatus.RUNNING)
        .update(status=BulkStatus.CANCELLED, cancelled_by=actor, finished_at=Now())
    )
    job = BulkJob.objects.for_tenant(tenant_id).filter(pk=job_id).first()
    if not moved and job is not None and job.status == BulkStatus.COMPLETED:
        raise ActivityError("The job has completed already.", code="bulk_job_ended")


def refuse_unknown(tenant_id: UUID, job_id: UUID) -> None:
    """Raise `NotFound` unless the tenant has such a job."""
    if not BulkJob.objects.for_tenant(tenant_id).filter(pk=job_id).exists():
        raise NotFound("bulk job", job_id)


# Processing: one transaction per portion, until nothing waits or the time is up.
#
# A worker locks the row of the job for the portion, so a second worker skips the job and takes the next one. If a worker dies, the
# transaction of its portion is rolled back.

PORTION = 100  # activities that one statement moves; its cost grows with the square of their number
_JOBS = Sweep[Any]()


def jobs_waiting() -> QuerySet[BulkJob]:
    """Return the running jobs of all tenants."""
    return BulkJob.objects.filter(status=BulkStatus.RUNNING)


def work(within: float = TURN_SECONDS) -> int:
    """Process the waiting items, a portion of each job in turn; returns how many items. Safe to run twice at once."""
    until, count = time.monotonic() + within, 0
    while time.monotonic() < until:
        before = count
        for _, job_id, tenant_id in _JOBS.turn(sweeps.pages(jobs_waiting(), "created_at", "pk", "tenant_id")):
            # A portion that fails was rolled back, and the next turn repeats it.
            with outages.one_of_many(logger, "A bulk job broke", action="bulk_job_broke", job=str(job_id)):
                count += process_portion(tenant_id, job_id)
        if count == before:
            break
    return count


def process_portion(tenant_id: UUID, job_id: UUID) -> int:
    """Process the next items of one job; returns how many. Returns 0 if another process works on the job, or if it has ended."""
    refusal = _refusal(tenant_id, job_id)
    with tenant_scope(tenant_id):
        running = BulkJob.objects.for_tenant(tenant_id).filter(pk=job_id, status=BulkStatus.RUNNING)
        job = running.select_for_update(skip_locked=True, no_key=True).first()
        if job is None:
            return 0
        items = BulkItem.objects.for_tenant(tenant_id).filter(job_id=job_id, state=ItemState.WAITING)
        chosen = list((items if refusal else items.filter(alone=False)).order_by("activity_id")[:PORTION])
        if refusal:
            outcomes = {item.activity_id: refusal for item in chosen}
        elif chosen:
            outcomes = apply_to_all(job, [item.activity_id for item in chosen])
        elif chosen := _next_alone(items.filter(alone=True)):
            outcomes = {item.activity_id: apply_to_one(job, item) for item in chosen}
        if not chosen:
            running.update(
                status=BulkStatus.COMPLETED, finished_at=Now(), started_at=Coalesce(F("started_at"), Now())
            )
            return 0
        _record(job, chosen, outcomes)
        return len(chosen)


def _next_alone(items: QuerySet[BulkItem]) -> list[BulkItem]:
    """Return the next item to be processed alone: those that took too long come last, so that they hold up no others."""
    first = items.order_by("activity_id")
    return list(first.filter(error__isnull=True)[:1]) or list(first[:1])


def _refusal(tenant_id: UUID, job_id: UUID) -> Outcome | None:
    """Return the outcome of all remaining items if the creator may no longer do this."""
    with tenant_scope(tenant_id):
        created = BulkJob.objects.for_tenant(tenant_id).filter(pk=job_id)
        by, credential = created.values_list("created_by", "credential").first() or ("", "")
    if not credential:  # of a job from before credentials were stored
        return None
    role = present_rights.role_of(tenant_id, credential)
    if role is not None and role.includes(Role.OPERATOR):
        return None
    message = (
        f"The creator of the job, {by}, no longer has the role operator, or the token is no longer valid."
    )
    return Outcome(ItemState.FAILED, {"code": Forbidden.code, "message": message})


def _record(job: BulkJob, items: list[BulkItem], outcomes: dict[UUID, Outcome]) -> None:
    counts = dict.fromkeys((ItemState.DONE, ItemState.SKIPPED, ItemState.FAILED), 0)
    by_state: dict[ItemState | None, list[UUID]] = {}
    changed = []
    for item in items:
        outcome = outcomes[item.activity_id]
        error = None if outcome.error is None else dict(outcome.error)
        if error != item.error:
            item.error = error
            changed.append(item)
        by_state.setdefault(outcome.state, []).append(item.pk)
    BulkItem.objects.bulk_update(changed, ("error",))
    rows = BulkItem.objects.for_tenant(job.tenant_id)
    for state, ids in by_state.items():
        if state is None:
            rows.filter(pk__in=ids).update(alone=True)
        else:
            counts[state] += len(ids)
            rows.filter(pk__in=ids).update(state=state, ended_at=Now())
    BulkJob.objects.for_tenant(job.tenant_id).filter(pk=job.pk).update(
        updated_at=Now(),
        started_at=Coalesce(F("started_at"), Now()),
        **{state.value: F(state.value) + count for state, count in counts.items()},
    )


# Actions on a portion of activities, in the caller's `tenant_scope`.
#
# Most activities have no dependents and are processed together. One that others depend on is processed in a transaction of its own,
# because ending it locks more than its own row.


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one item; `state` is None when the item must be processed alone, or once more."""

    state: ItemState | None
    error: Mapping[str, str] | None = None


DONE, ALONE = Outcome(ItemState.DONE), Outcome(None)
Outcomes = dict[UUID, Outcome]


def apply_to_all(job: BulkJob, ids: Sequence[UUID]) -> Outcomes:
    """Process many activities together. Each is processed alone if the statement is refused or takes too long, or if one is refused."""
    try:
        with transaction.atomic(using=APP):
            return _TOGETHER[job.action](job, ids)
    except (DatabaseError, TransitionRefused) as error:
        if outages.is_away(error) or outages.is_contention(error):
            raise
        facts = {"action": "bulk_portion_refused", "job": str(job.pk), "reason": type(error).__name__}
        logger.warning("A portion of a bulk job was refused", extra=facts)
        return dict.fromkeys(ids, ALONE)


def apply_to_one(job: BulkJob, item: BulkItem) -> Outcome:
    """Process one activity. A refusal or an error becomes its outcome; only an outage or a deadlock is raised.

    If it takes too long, it is tried once more after the others.
    """
    activity_id = item.activity_id
    try:
        with transaction.atomic(using=APP):
            if job.action not in _ALONE:
                return _TOGETHER[job.action](job, [activity_id])[activity_id]
            _ALONE[job.action](job, activity_id)
    except (TransitionRefused, NotFound) as refusal:
        return _skip(str(refusal), refusal.code)
    except ActivityError as error:
        return Outcome(ItemState.FAILED, {"code": error.code, "message": str(error)})
    except Exception as error:
        if outages.is_away(error) or outages.is_contention(error):
            raise
        if outages.may_pass(error):
            late = {"code": "timed_out", "message": "It took longer than a statement may take."}
            return Outcome(ItemState.FAILED if item.error else None, late)
        logger.exception(
            "A bulk item failed", extra={"action": "bulk_item_failed", "activity": str(activity_id)}
        )
        return Outcome(
            ItemState.FAILED, {"code": "internal_error", "message": "Something went wrong on our side."}
        )
    return DONE


def _skip(message: str, code: str = TransitionRefused.code) -> Outcome:
    return Outcome(ItemState.SKIPPED, {"code": code, "message": message})


def _cancel_many(job: BulkJob, ids: Sequence[UUID]) -> Outcomes:
    """Cancel the activities without dependents; the others are left to be processed alone."""
    activities = activity_tree.lock(job.tenant_id, ids)
    independent = [
        activity_id
        for activity_id in _childless(job.tenant_id, ids)
        if _is_independent(activities.get(activity_id))
    ]
    reason = job.arguments.get("reason", "")
    detail = {"reason": reason, "bulk_job": str(job.pk)}
    moved = transitions.cancel_ready(independent, actor=job.created_by, detail=detail, reason=reason or None)
    relay.after_commit(Exchange(withdrawals=[activity.id for activity in moved]))
    done = {activity.id for activity in moved}
    return {activity_id: DONE if activity_id in done else ALONE for activity_id in ids}


def _is_independent(activity: Activity | None) -> bool:
    """Whether an activity waits for its agent and belongs to no parent, pipeline run or schedule."""
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
        for activity in activity_tree.lock(job.tenant_id, ids).values()
        if activity.status in dead_letters.FAILED
    ]
    retryable = dead_letters.find_retryable(job.tenant_id, failed)
    moved = set(dead_letters.reopen(job.tenant_id, retryable, job.created_by, None))
    skipped = _skip("It has not failed, its dedup key is taken, or its pipeline run is being replayed.")
    return {activity_id: DONE if activity_id in moved else skipped for activity_id in ids}


def _prioritise_many(job: BulkJob, ids: Sequence[UUID]) -> Outcomes:
    """Set the priority. Waiting work moves to its new place in the queue; a running activity uses the priority if it waits again."""
    priority = int(job.arguments["priority"])
    live = [
        activity
        for activity in activity_tree.lock(job.tenant_id, ids).values()
        if activity.status not in states.SETTLED
    ]
    rescheduling.reschedule_locked(
        live, {"priority": priority}, actor=job.created_by, detail={"bulk_job": str(job.pk)}
    )
    done = {activity.pk for activity in live}
    return {activity_id: DONE if activity_id in done else _skip("It has ended.") for activity_id in ids}


def _cancel_one(job: BulkJob, activity_id: UUID) -> None:
    cancellation.cancel(
        job.tenant_id, activity_id, actor=job.created_by, reason=job.arguments.get("reason", "")
    )


def _reassign_one(job: BulkJob, activity_id: UUID) -> None:
    arguments = job.arguments
    reassignment.reassign(
        job.tenant_id, activity_id, actor=job.created_by, reason=arguments["reason"],
        agent_role=arguments.get("agent_role"), human_role=arguments.get("human_role"),
    )  # fmt: skip


# By action: the function for many activities at once, and the one for a single activity in a transaction of its own.
_TOGETHER: dict[str, Callable[[BulkJob, Sequence[UUID]], Outcomes]] = {
    BulkAction.CANCEL: _cancel_many,
    BulkAction.RETRY: _retry_many,
    BulkAction.PRIORITY: _prioritise_many,
}
_ALONE: dict[str, Callable[[BulkJob, UUID], None]] = {
    BulkAction.CANCEL: _cancel_one,
    BulkAction.REASSIGN: _reassign_one,
}
