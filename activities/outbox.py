"""Wakes: durable reasons to run. They are the engine's outbox.

A wake is recorded in the transaction that gives the reason. Equal pending wakes merge; wakes that arrive during a run wait and
lead to exactly one further run that carries them all. A wake of a terminal activity is refused by its status at the claim.

Reasons to run and reasons to wait are two things. Whatever comes, a run begins when the last reason to wait is over, and carries all that
has come: wakes are put off as long as one of their activity is (`sql/record_wakes.sql`, and the claim has the last word), and an activity
that an open question holds goes to `awaiting_review` before it would start.

An activity that is woken again and again and gets nowhere is stopped: people are asked instead of another run being paid for.
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

from activities.admission import Exchange
from activities.admission.exchange import Offer
from activities.models import Activity, ActivityRun, Wake
from activities.models.dead_letter import BurialReason
from activities.states import MAY_RUN, WILL_RUN, Status, WakeReason, WakeState
from tenants import clock, request_context, wire_json
from tenants.context import APP, SYSTEM, system_scope
from tenants.identifiers import uuid7
from tenants.sql import Statement

from . import activity_tree, dead_letter_records, relay, transitions

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent / "sql"
_RECORD, _LAST_REASONS, _FRUITLESS = (
    Statement.load(_FOLDER, name) for name in ("record_wakes", "last_reasons", "fruitless_wakes")
)

#: The cause of a wake that is news for later: it holds up nothing else.
LATER = "later"

#: A subtask that ended like this is progress; whatever else wakes is not.
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

    `activity` is a row of Activity (a model or a `transitions.Moved`) that is `created` now, or that runs: then it runs once more when
    its run has ended well. Must run inside `tenant_scope`.
    """
    (wake,) = _record(
        activity.tenant_id, [_Reason.of(activity.id, reason, payload or {}, due_at)], cause=cause
    )
    if wake.due_at is None:
        offer(activity)
    wake_id: UUID = wake.id
    return wake_id


def add(
    activity: Any, wake_id: UUID, reason: str, *, payload: Mapping[str, Any], due_at: datetime | None = None
) -> None:
    """Record one wake more, with this id, of an activity that is live and locked. One that runs has one run more afterwards.

    With `due_at` it is news for later, which holds up nothing else.
    """
    cause = "wake" if due_at is None else LATER
    (wake,) = _record(
        activity.tenant_id, [_Reason.of(activity.id, reason, payload, due_at, id=wake_id)], cause=cause
    )
    if wake.due_at is None and activity.status == Status.CREATED:
        offer(activity)


def record_again(moved: Sequence[Any], *, cause: str, due: Sequence[datetime] = ()) -> None:
    """Record for each activity, `created` again, the wakes that its failure consumed: an agent hears again all that it has not acted on.

    With `due` the promoter offers each at the time in the same place, else they are offered after the commit. Those that an open
    question holds wait for its answer, and none starts before its date. Must run inside `tenant_scope`.
    """
    if not moved:
        return
    tenant_id = moved[0].tenant_id
    at: dict[UUID, datetime] = dict(zip((one.id for one in moved), due, strict=True)) if due else {}
    for one in moved:
        if (date := _later(one.not_before)) is not None:
            at[one.id] = max(date, at.get(one.id, date))
    found = _LAST_REASONS.run(
        {"tenant": tenant_id, "activities": [activity.id for activity in moved]}, using=APP
    )
    reasons = [
        _Reason(row.activity_id, row.reason, row.payload, row.fingerprint, at.get(row.activity_id))
        for row in found
    ]
    known = {reason.activity_id for reason in reasons}
    reasons += [
        _Reason.of(activity.id, WakeReason.NEW_TASK, {}, at.get(activity.id))
        for activity in moved
        if activity.id not in known
    ]
    _record(tenant_id, reasons, cause=cause)
    held_ids = _hold(tenant_id, [activity.id for activity in moved])
    relay.after_commit(
        Exchange(offers=[Offer.of(one) for one in moved if one.id not in held_ids and one.id not in at])
    )


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
    """Wake an activity that waits for this; False when it does not wait for it any more, or woke itself.

    `activity` is its row, locked. `run_id` is the run that caused the wake, if one did: a run never wakes its own activity.
    When the activity has used up its wakes without progress it goes to people instead. Must run inside `tenant_scope`.
    """
    return bool(wake_all([activity], reason, payload=payload, actor=actor, run_id=run_id))


def wake_all(
    activities: Iterable[Any], reason: WakeReason, *, payload: Mapping[str, Any], actor: str, run_id: UUID | None = None
) -> set[UUID]:  # fmt: skip
    """`wake` for many activities of a tenant at once, for the same reason, in as many statements as for one; those that were woken.

    One that an open question holds does not start yet: from now on it waits for the answer.
    """
    waiting = [
        activity
        for activity in activities
        if activity.status == reason.ends and not _woke_itself(activity, run_id)
    ]
    if not waiting:
        return set()
    progress = payload.get("subtask_outcome") in GOOD_ENDS
    spent = set() if progress else _over_budget(waiting)
    for activity in waiting:
        if activity.id in spent:
            _stop(activity, reason, payload, actor)
    detail = {"reason": reason.value} | ({"progress": True} if progress else {})
    in_budget = [activity.id for activity in waiting if activity.id not in spent]
    moved = (
        transitions.apply_many(
            in_budget,
            "wake",
            actor=actor,
            detail=detail,
            blocker_type=None,
            blocker_message=None,
            blocked_at=None,
        )
        if in_budget
        else []
    )
    if moved:
        tenant_id = moved[0].tenant_id
        reasons = [_Reason.of(one.id, reason, payload, _later(one.not_before)) for one in moved]
        recorded = _record(tenant_id, reasons, cause="wake")
        held_ids = _hold(tenant_id, [one.id for one in moved])
        due = {wake.activity_id for wake in recorded if wake.due_at is None} - held_ids
        relay.after_commit(Exchange(offers=[Offer.of(one) for one in moved if one.id in due]))
    return spent | {one.id for one in moved}


def _later(moment: datetime | None) -> datetime | None:
    """It, if it lies ahead: a date that was set while the activity waited holds when that wait is over."""
    return moment if moment is not None and moment > clock.now() else None


def tell(
    activities: Iterable[Any], reason: WakeReason, *, payload: Mapping[str, Any], actor: str
) -> set[UUID]:
    """People have answered a question about these activities, all of one tenant: each hears of it in the next run that it has.

    What waits for the answer, and for no other one, is woken. What runs has one run more afterwards; what is blocked, put off or held by
    another question hears when that is over; what has failed hears when it is tried again. Returns those that will run: the others have
    ended, are a person's, or run only if an operator wants it. `activities` are rows, locked; the question is closed.
    """
    agents = [activity for activity in activities if activity.assignee_type == "agent"]
    awaiting = [activity for activity in agents if activity.status == Status.AWAITING_REVIEW]
    still = (
        activity_tree.find_held(awaiting[0].tenant_id, [one.id for one in awaiting]) if awaiting else set()
    )
    woken = wake_all((one for one in awaiting if one.id not in still), reason, payload=payload, actor=actor)
    hearing = [one for one in agents if one.id not in woken and one.status in WILL_RUN]
    failed = [one for one in agents if one.status in MAY_RUN]
    if not hearing and not failed:
        return woken
    reasons = [_Reason.of(one.id, reason, payload) for one in (*hearing, *failed)]
    recorded = _record(agents[0].tenant_id, reasons, cause="wake")
    due = {wake.activity_id for wake in recorded if wake.due_at is None}
    ready = [one for one in hearing if one.status == Status.CREATED and one.id in due]
    relay.after_commit(Exchange(offers=[Offer.of(one) for one in ready]))
    if failed:
        # Kept as what a failure leaves behind; nothing is to start by itself.
        unheard = Wake.objects.for_tenant(failed[0].tenant_id).filter(
            activity_id__in=[one.id for one in failed], state=WakeState.PENDING
        )
        unheard.update(state=WakeState.CONSUMED)
    return woken | {one.id for one in hearing}


def run_again(moved: Any, *, later: bool = False) -> None:
    """An activity whose run has just ended is to run again: offer it, unless that is for `later`, or have it wait for the question that
    holds it. `moved` is a row of `transitions.finish` or `transitions.requeue`."""
    if moved.held:
        _hold(moved.tenant_id, [moved.id])
    elif not later:
        offer(moved)


def _hold(tenant_id: UUID, activity_ids: Sequence[UUID]) -> set[UUID]:
    """Have those of these activities, `created` just now, that open questions hold wait for the answers; which ones."""
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
    """Those that this wake would be one too many for."""
    counted = _FRUITLESS.run(
        {
            "tenant": activities[0].tenant_id,
            "activities": [activity.id for activity in activities],
            "window": settings.ORCHESTRATOR_WAKE_BUDGET_SECONDS,
        },
        using=APP,
    )
    return {row.activity_id for row in counted if row.wakes + 1 >= settings.ORCHESTRATOR_WAKE_BUDGET}


def _stop(activity: Any, reason: WakeReason, payload: Mapping[str, Any], actor: str) -> None:
    """Hand the activity to people. The wake is kept, so that a retry starts with it."""
    error = {
        "code": "wake_budget",
        "message": f"It was woken {settings.ORCHESTRATOR_WAKE_BUDGET} times within "
        f"{settings.ORCHESTRATOR_WAKE_BUDGET_SECONDS:g} s without getting anywhere.",
        "retryable": False,
    }
    _record(activity.tenant_id, [_Reason.of(activity.id, reason, payload)], cause="wake")
    moved = transitions.apply(
        activity.id, "trip", actor="engine", detail={"woken_by": actor, "error": error}, error=error
    )
    # It waited, so no run is live; this consumes the wake, which stays readable.
    transitions.end_run(tenant_id=activity.tenant_id, activity_id=activity.id, run_status="cancelled")
    dead_letter_records.record_dead_letter(moved, reason=BurialReason.WAKE_BUDGET, run_id=None, error=error)
    logger.warning(
        "Woken without progress", extra={"action": "wake_budget_used", "activity": str(activity.id)}
    )


def offer(activity: Any) -> None:
    """Offer a claimable activity to admission after the commit."""
    relay.after_commit(Exchange(offers=[Offer.of(activity)]))


# Promotion: delays and retries live in PostgreSQL, and what is due is offered.
#
# One statement takes at most so many due wakes and clears their delay; two promoters at once take different ones. A crash before the
# offer loses nothing: the wake is pending and due, so recovery offers it.


# An array, since PostgreSQL would join with a subquery as it sees fit.
_PROMOTE = """
    UPDATE activities_wake SET due_at = NULL
    WHERE id = ANY(ARRAY(
        SELECT id FROM activities_wake WHERE state = 'pending' AND due_at <= now()
        ORDER BY due_at LIMIT %s FOR UPDATE SKIP LOCKED))
    RETURNING activity_id
"""


def promote(limit: int | None = None) -> int:
    """Offer what has become due; returns how many activities."""
    with transaction.atomic(using=SYSTEM), connections[SYSTEM].cursor() as cursor:
        # Whatever the statistics say: in the order of the index of what is due, never through all that waits and sorted.
        cursor.execute("SET LOCAL enable_sort = off")
        cursor.execute(_PROMOTE, [limit or settings.ORCHESTRATOR_PROMOTE_PER_TICK])
        ids = [row[0] for row in cursor.fetchall()]
    if not ids:
        return 0
    with system_scope():
        # By key alone: asked for their status as well, PostgreSQL may read all that waits instead.
        due = [each for each in Activity.objects.filter(pk__in=ids) if each.status == Status.CREATED]
    relay.hand_over(Exchange(offers=[Offer.of(activity) for activity in due]))
    return len(due)
