"""Wakes: durable reasons to run an activity. They are the engine's outbox.

A wake is recorded in the transaction that causes it. Equal pending wakes merge. Wakes that arrive during a run lead to exactly one further
run, which carries them all. The claim refuses the wake of a terminal activity because of its status.

Reasons to run and reasons to wait are independent. A run begins when the last reason to wait is over, and carries all wakes that have
arrived: while one wake of an activity is postponed, the others are too (`sql/record_wakes.sql`; the claim checks it again). An activity
that an open question holds goes to `awaiting_review` before it would start.

An activity that is woken repeatedly without progress is stopped, and people decide instead of paying for another run.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings
from django.db import connections, transaction

from activities import activity_tree, dead_letter_records, relay, transitions
from activities.admission import Exchange
from activities.admission.exchange import Offer
from activities.models import Activity, ActivityRun, Wake
from activities.models.dead_letter import DeadLetterReason
from activities.states import MAY_RUN, WILL_RUN, Status, WakeReason, WakeState
from tenants import request_context, wire_json
from tenants.context import APP, SYSTEM, system_scope
from tenants.identifiers import uuid7
from tenants.sql import Statement

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent / "sql"
_RECORD, _LAST_REASONS, _FRUITLESS = (
    Statement.load(_FOLDER, name) for name in ("record_wakes", "last_reasons", "fruitless_wakes")
)

#: The cause of a wake with a later date that postpones no other wake of the activity.
LATER = "later"

#: The columns of an activity that does not wait for a blocker any more.
_UNBLOCKED: Mapping[str, None] = dict.fromkeys(("blocker_type", "blocker_message", "blocked_at"))

#: Only a subtask that ended like this counts as progress.
GOOD_ENDS = (Status.DONE, Status.APPROVED)


@dataclass(frozen=True, slots=True)
class _Reason:
    """One reason to run one activity. `payload` is JSON."""

    activity_id: UUID
    reason: str
    payload: str
    fingerprint: str
    due_at: datetime | None = None
    id: UUID = field(default_factory=uuid7)

    @classmethod
    def of(
        cls, activity_id: UUID, reason: str, payload: Mapping[str, Any], due_at: datetime | None = None, **columns: Any
    ) -> _Reason:  # fmt: skip
        document = wire_json.dumps_stored(dict(payload), default=str, option=orjson.OPT_SORT_KEYS)
        return cls(
            activity_id, reason, document.decode(), hashlib.sha256(document).hexdigest(), due_at, **columns
        )


def record(
    activity: Any,
    reason: str,
    *,
    payload: Mapping[str, Any] | None = None,
    cause: str = "wake",
    due_at: datetime | None = None,
) -> UUID:
    """Record a wake of an activity, and offer it after the commit. Returns the wake's id.

    `activity` is a row of Activity (a model or a `transitions.Moved`) that is `created` or running. A running one runs once more after
    its run has succeeded. Must run inside `tenant_scope`.
    """
    (wake,) = _record(
        activity.tenant_id, [_Reason.of(activity.id, reason, payload or {}, due_at)], cause=cause
    )
    if wake.due_at is None:
        offer(activity)
    return wake.id


def add(
    activity: Any, wake_id: UUID, reason: str, *, payload: Mapping[str, Any], due_at: datetime | None = None
) -> None:
    """Record a wake with this id for an activity that is live and locked. A running activity runs once more afterwards.

    With `due_at` the wake is for later, and postpones no other wake.
    """
    cause = "wake" if due_at is None else LATER
    (wake,) = _record(
        activity.tenant_id, [_Reason.of(activity.id, reason, payload, due_at, id=wake_id)], cause=cause
    )
    if wake.due_at is None and activity.status == Status.CREATED:
        offer(activity)


def record_again(moved: Sequence[Any], *, due: Sequence[datetime] = ()) -> None:
    """Record again, for each activity that is `created` again, the wakes that its failure consumed. So the agent gets all of them again.

    `due` holds a time for each activity, at which the promoter offers it; without it they are offered after the commit. Activities held
    by an open question wait for its answer, and none starts before its `not_before`. Must run inside `tenant_scope`.
    """
    if not moved:
        return
    tenant_id = moved[0].tenant_id
    due_of: dict[UUID, datetime] = dict(zip((one.id for one in moved), due, strict=True)) if due else {}
    rows = _LAST_REASONS.run(
        {"tenant": tenant_id, "activities": [activity.id for activity in moved]}, using=APP
    )
    reasons = [
        _Reason(row.activity_id, row.reason, row.payload, row.fingerprint, due_of.get(row.activity_id))
        for row in rows
    ]
    with_reason = {reason.activity_id for reason in reasons}
    reasons += [
        _Reason.of(activity.id, WakeReason.NEW_TASK, {}, due_of.get(activity.id))
        for activity in moved
        if activity.id not in with_reason
    ]
    _offer_or_hold(moved, _record(tenant_id, reasons, cause="replay"))


def _offer_or_hold(moved: Sequence[Any], recorded: Sequence[Any]) -> None:
    """Offer those of these `created` activities whose wakes are due and that no open question holds."""
    ready = {wake.activity_id for wake in recorded if wake.due_at is None}
    ready -= _hold(moved[0].tenant_id, [one.id for one in moved])
    relay.after_commit(Exchange(offers=[Offer.of(one) for one in moved if one.id in ready]))


def _record(tenant_id: UUID, reasons: Sequence[_Reason], *, cause: str) -> list[Any]:
    return _RECORD.run(
        {
            "tenant": tenant_id,
            "cause": cause,
            "provenance": request_context.dump_current(),
            "ids": [reason.id for reason in reasons],
            "activities": [reason.activity_id for reason in reasons],
            "reasons": [reason.reason for reason in reasons],
            "payloads": [reason.payload for reason in reasons],
            "fingerprints": [reason.fingerprint for reason in reasons],
            "due": [reason.due_at for reason in reasons],
        },
        using=APP,
    )


def wake(
    activity: Any, reason: WakeReason, *, payload: Mapping[str, Any], actor: str, run_id: UUID | None = None
) -> bool:
    """Wake an activity that waits for this. Returns False if it no longer waits for it, or if its own run caused the wake.

    `activity` is its locked row. `run_id` is the run that caused the wake, if any: a run never wakes its own activity. If the activity was
    woken too often without progress, it goes to people instead. Must run inside `tenant_scope`.
    """
    return bool(wake_all([activity], reason, payload=payload, actor=actor, run_id=run_id))


def wake_all(
    activities: Iterable[Any], reason: WakeReason, *, payload: Mapping[str, Any], actor: str, run_id: UUID | None = None
) -> set[UUID]:  # fmt: skip
    """Wake many activities of a tenant for the same reason, with as many statements as for one. Returns the ids of the woken ones.

    An activity that an open question holds does not start yet, but waits for the answer. See `wake`.
    """
    waiting = [
        activity
        for activity in activities
        if activity.status == reason.ends and not _woke_itself(activity, run_id)
    ]
    if not waiting:
        return set()
    progress = payload.get("subtask_outcome") in GOOD_ENDS
    over_budget = set() if progress else _over_budget(waiting)
    for activity in waiting:
        if activity.id in over_budget:
            _stop(activity, reason, payload, actor)
    detail = {"reason": reason.value} | ({"progress": True} if progress else {})
    in_budget = [activity.id for activity in waiting if activity.id not in over_budget]
    moved = (
        transitions.apply_many(
            in_budget,
            "wake",
            actor=actor,
            detail=detail,
            **_UNBLOCKED,
        )
        if in_budget
        else []
    )
    if moved:
        reasons = [_Reason.of(one.id, reason, payload) for one in moved]
        _offer_or_hold(moved, _record(moved[0].tenant_id, reasons, cause="wake"))
    return over_budget | {one.id for one in moved}


def deliver_answer(
    activities: Iterable[Any], reason: WakeReason, *, payload: Mapping[str, Any], actor: str
) -> set[UUID]:
    """Deliver people's answer to a question about these activities of one tenant: the next run of each receives it.

    An activity that waits for this answer only is woken. A running one runs once more afterwards. One that is blocked, postponed or held
    by another question gets the answer when that is over; a failed one when it is retried. Returns those that will run: the others have
    ended, belong to a person, or need a retry by an operator. `activities` are locked rows; the question is closed.
    """
    agents = [activity for activity in activities if activity.assignee_type == "agent"]
    awaiting = [activity for activity in agents if activity.status == Status.AWAITING_REVIEW]
    still_held = (
        activity_tree.find_held(awaiting[0].tenant_id, [one.id for one in awaiting]) if awaiting else set()
    )
    woken = wake_all(
        (one for one in awaiting if one.id not in still_held), reason, payload=payload, actor=actor
    )
    will_run = [one for one in agents if one.id not in woken and one.status in WILL_RUN]
    failed = [one for one in agents if one.status in MAY_RUN]
    if not will_run and not failed:
        return woken
    reasons = [_Reason.of(one.id, reason, payload) for one in (*will_run, *failed)]
    recorded = _record(agents[0].tenant_id, reasons, cause="wake")
    due = {wake.activity_id for wake in recorded if wake.due_at is None}
    ready = [one for one in will_run if one.status == Status.CREATED and one.id in due]
    relay.after_commit(Exchange(offers=[Offer.of(one) for one in ready]))
    if failed:
        # Mark the wakes as consumed, so that nothing starts before a retry, which records them again.
        wakes = Wake.objects.for_tenant(failed[0].tenant_id).filter(
            activity_id__in=[one.id for one in failed], state=WakeState.PENDING
        )
        wakes.update(state=WakeState.CONSUMED)
    return woken | {one.id for one in will_run}


def run_again(moved: Any, *, later: bool = False) -> None:
    """Let an activity whose run has just ended run again: offer it, or let it wait for the question that holds it.

    With `later` the promoter offers it. `moved` is a row of `transitions.finish` or `transitions.requeue`.
    """
    if moved.held:
        _hold(moved.tenant_id, [moved.id])
    elif not later:
        offer(moved)


def _hold(tenant_id: UUID, activity_ids: Sequence[UUID]) -> set[UUID]:
    """Let those of these `created` activities that open questions hold wait for the answers. Returns their ids."""
    held_ids = activity_tree.find_held(tenant_id, activity_ids)
    if held_ids:
        transitions.apply_many(sorted(held_ids), "hold", actor="engine", detail={"reason": "questions"})
    return held_ids


def _woke_itself(activity: Any, run_id: UUID | None) -> bool:
    if run_id is None:
        return False
    runs = ActivityRun.objects.for_tenant(activity.tenant_id)
    return runs.filter(pk=run_id, activity_id=activity.id).exists()


def _over_budget(activities: Sequence[Any]) -> set[UUID]:
    """Return the activities for which this wake would be one too many without progress."""
    rows = _FRUITLESS.run(
        {
            "tenant": activities[0].tenant_id,
            "activities": [activity.id for activity in activities],
            "window": settings.ORCHESTRATOR_WAKE_BUDGET_SECONDS,
        },
        using=APP,
    )
    return {row.activity_id for row in rows if row.wakes + 1 >= settings.ORCHESTRATOR_WAKE_BUDGET}


def _stop(activity: Any, reason: WakeReason, payload: Mapping[str, Any], actor: str) -> None:
    """Hand the activity to people. The wake is recorded, so that a retry starts with it."""
    error = {
        "code": "wake_budget",
        "message": f"It was woken {settings.ORCHESTRATOR_WAKE_BUDGET} times within "
        f"{settings.ORCHESTRATOR_WAKE_BUDGET_SECONDS:g} s without progress.",
        "retryable": False,
    }
    _record(activity.tenant_id, [_Reason.of(activity.id, reason, payload)], cause="wake")
    moved = transitions.apply(
        activity.id,
        "trip",
        actor="engine",
        detail={"woken_by": actor, "error": error},
        error=error,
        **_UNBLOCKED,
    )
    # No run is live, because the activity waited. This consumes the wake, but keeps its row.
    transitions.end_run(tenant_id=activity.tenant_id, activity_id=activity.id, run_status="cancelled")
    dead_letter_records.record_dead_letter(
        moved, reason=DeadLetterReason.WAKE_BUDGET, run_id=None, error=error
    )
    logger.warning(
        "Activity was woken too often", extra={"action": "wake_budget_used", "activity": str(activity.id)}
    )


def offer(activity: Any) -> None:
    """Offer a claimable activity to admission after the commit."""
    relay.after_commit(Exchange(offers=[Offer.of(activity)]))


# Promotion: delays and retries are stored in PostgreSQL, and due wakes are offered to admission.
#
# One statement takes a limited number of due wakes and clears their delay; two promoters at once take different ones. A crash before the
# offer loses nothing, because the wake is pending and due, and recovery offers it.

# ARRAY keeps PostgreSQL from choosing its own join with the subquery.
_PROMOTE = """
    UPDATE activities_wake SET due_at = NULL
    WHERE id = ANY(ARRAY(
        SELECT id FROM activities_wake WHERE state = 'pending' AND due_at <= now()
        ORDER BY due_at LIMIT %s FOR UPDATE SKIP LOCKED))
    RETURNING activity_id
"""


def promote(limit: int | None = None) -> int:
    """Offer activities whose wakes have become due; returns how many."""
    with transaction.atomic(using=SYSTEM), connections[SYSTEM].cursor() as cursor:
        # Force the index on due wakes, whatever the statistics say, because sorting all waiting wakes is slow.
        cursor.execute("SET LOCAL enable_sort = off")
        cursor.execute(_PROMOTE, [limit or settings.ORCHESTRATOR_PROMOTE_PER_TICK])
        ids = [row[0] for row in cursor.fetchall()]
    if not ids:
        return 0
    with system_scope():
        # Filter by primary key only: with the status in the query, PostgreSQL may read all waiting activities instead.
        due = [each for each in Activity.objects.filter(pk__in=ids) if each.status == Status.CREATED]
    relay.hand_over(Exchange(offers=[Offer.of(activity) for activity in due]))
    return len(due)
