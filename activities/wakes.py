"""Wakes: durable reasons to run. They are the engine's outbox.

A wake is recorded in the transaction that gives the reason. Equal pending wakes merge; wakes that arrive during a run wait and
lead to exactly one further run that carries them all. A wake of a terminal activity is refused by its status at the claim.

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

from activities import burial, relay, transitions
from activities.admission import Exchange
from activities.admission.exchange import Offer
from activities.models import ActivityRun
from activities.models.dead_letter import BurialReason
from activities.states import Status, WakeReason
from tenants import provenance, wide_json
from tenants.context import APP
from tenants.identifiers import uuid7
from tenants.sql import Statement

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent / "sql"
_RECORD, _LAST_REASONS, _FRUITLESS = (
    Statement.load(_FOLDER, name) for name in ("record_wakes", "last_reasons", "fruitless_wakes")
)

#: In which status an activity waits for which wakes.
WAITS_IN = {
    WakeReason.UNBLOCKED: Status.BLOCKED,
    WakeReason.SUBTASK_COMPLETED: Status.AWAITING_SUBTASK,
    WakeReason.REVIEW_APPROVED: Status.AWAITING_REVIEW,
    WakeReason.REVIEW_FEEDBACK: Status.AWAITING_REVIEW,
}

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
        cls, activity_id: UUID, reason: str, payload: Mapping[str, Any], due_at: datetime | None = None, **told: Any
    ) -> _Reason:  # fmt: skip
        document = wide_json.dumps(dict(payload), default=str, option=orjson.OPT_SORT_KEYS)
        return cls(
            activity_id, reason, document.decode(), hashlib.sha256(document).hexdigest(), due_at, **told
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
    if due_at is None:
        offer(activity)
    wake_id: UUID = wake.id
    return wake_id


def add(
    activity: Any, wake_id: UUID, reason: str, *, payload: Mapping[str, Any], due_at: datetime | None = None
) -> None:
    """Record one wake more, with this id, of an activity that is live and locked. One that runs has one run more afterwards."""
    _record(activity.tenant_id, [_Reason.of(activity.id, reason, payload, due_at, id=wake_id)], cause="wake")
    if due_at is None and activity.status == Status.CREATED:
        offer(activity)


def record_again(moved: Sequence[Any], *, cause: str, due: Sequence[datetime] = ()) -> None:
    """Record for each activity, `created` anew, the wakes that its failure consumed: an agent hears again all that it has not acted on.

    With `due` the promoter offers each at the time in the same place, else they are offered after the commit. Must run inside
    `tenant_scope`.
    """
    if not moved:
        return
    tenant_id = moved[0].tenant_id
    at = dict(zip((activity.id for activity in moved), due, strict=True)) if due else {}
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
    if not due:
        relay.after_commit(Exchange(offers=[Offer.of(activity) for activity in moved]))


def _record(tenant_id: UUID, reasons: Sequence[_Reason], *, cause: str) -> list[Any]:
    return _RECORD.run(
        {
            "tenant": tenant_id,
            "cause": cause,
            "provenance": provenance.written(),
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
    """`wake` for many activities of a tenant at once, for the same reason, in as many statements as for one; those that were woken."""
    waiting = [
        activity
        for activity in activities
        if activity.status == WAITS_IN[reason] and not _woke_itself(activity, run_id)
    ]
    if not waiting:
        return set()
    progress = payload.get("subtask_outcome") in GOOD_ENDS
    spent = set() if progress else _over_budget(waiting)
    for activity in waiting:
        if activity.id in spent:
            _stop(activity, reason, payload, actor)
    detail = {"reason": reason.value} | ({"progress": True} if progress else {})
    heard = [activity.id for activity in waiting if activity.id not in spent]
    moved = (
        transitions.apply_many(
            heard,
            "wake",
            actor=actor,
            detail=detail,
            blocker_type=None,
            blocker_message=None,
            blocked_at=None,
        )
        if heard
        else []
    )
    if moved:
        _record(moved[0].tenant_id, [_Reason.of(one.id, reason, payload) for one in moved], cause="wake")
        relay.after_commit(Exchange(offers=[Offer.of(one) for one in moved]))
    return spent | {one.id for one in moved}


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
    burial.bury(moved, reason=BurialReason.WAKE_BUDGET, run_id=None, error=error)
    logger.warning(
        "Woken without progress", extra={"action": "wake_budget_used", "activity": str(activity.id)}
    )


def offer(activity: Any) -> None:
    """Offer a claimable activity to admission after the commit."""
    relay.after_commit(Exchange(offers=[Offer.of(activity)]))
