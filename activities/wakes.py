"""Wakes: durable reasons to run. They are the engine's outbox.

A wake is recorded in the transaction that gives the reason. Equal pending wakes merge; wakes that arrive during a run wait and
lead to exactly one further run that carries them all. A wake of a terminal activity is refused by its status at the claim.

An activity that is woken again and again and gets nowhere is stopped: people are asked instead of another run being paid for.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings
from django.db import connections
from django.db.models import Max, Q
from django.db.models.functions import Now
from psycopg.types.json import Jsonb

from activities import burial, relay, transitions
from activities.admission import Exchange
from activities.admission.exchange import Offer, Release
from activities.models import ActivityRun, Wake
from activities.models.dead_letter import BurialReason
from activities.states import RunStatus, Status, WakeReason
from tenants.context import APP
from tenants.identifiers import uuid7

logger = logging.getLogger(__name__)

#: In which status an activity waits for which wakes.
WAITS_IN = {
    WakeReason.UNBLOCKED: Status.BLOCKED,
    WakeReason.SUBTASK_COMPLETED: Status.AWAITING_SUBTASK,
    WakeReason.REVIEW_APPROVED: Status.AWAITING_REVIEW,
    WakeReason.REVIEW_FEEDBACK: Status.AWAITING_REVIEW,
}

#: A subtask that ended like this is progress; whatever else wakes is not.
GOOD_ENDS = (Status.DONE, Status.APPROVED)

_RECORD = """
    INSERT INTO activities_wake (id, tenant_id, activity_id, reason, cause, payload, fingerprint, state, due_at, merged, created_at)
    VALUES (%s, %s, %s, %s, %s, %s, %s, 'pending', %s, 0, clock_timestamp())
    ON CONFLICT (activity_id, reason, fingerprint) WHERE state = 'pending'
    DO UPDATE SET merged = activities_wake.merged + 1
    RETURNING id, merged
"""


def record(
    activity: Any,
    reason: str,
    *,
    payload: Mapping[str, Any] | None = None,
    cause: str = "wake",
    due_at: datetime | None = None,
) -> UUID:
    """Record a wake of an activity that is `created` now, and offer it after the commit. Returns the wake's id.

    `activity` is a row of Activity (a model or a `transitions.Moved`). Must run inside `tenant_scope`.
    """
    wake_id = _insert(activity, reason, payload or {}, cause=cause, due_at=due_at)
    if due_at is None:
        offer(activity)
    return wake_id


def _insert(
    activity: Any, reason: str, payload: Mapping[str, Any], *, cause: str, due_at: datetime | None
) -> UUID:
    document = orjson.dumps(payload, default=str, option=orjson.OPT_SORT_KEYS)
    values: list[Any] = [
        uuid7(), activity.tenant_id, activity.id, reason, cause, Jsonb(orjson.loads(document)),
        hashlib.sha256(document).hexdigest(), due_at,
    ]  # fmt: skip
    with connections[APP].cursor() as cursor:
        cursor.execute(_RECORD, values)
        wake_id: UUID = cursor.fetchone()[0]
    return wake_id


def record_many(moved: Sequence[Any], due: Sequence[datetime], *, cause: str) -> None:
    """Record for each activity, `created` now, the wake that it had last, due at the time in the same place of `due`.

    The promoter offers them as they become due. Must run inside `tenant_scope`.
    """
    with connections[APP].cursor() as cursor:
        cursor.execute(
            _RECORD_AGAIN,
            {
                "tenant": moved[0].tenant_id, "cause": cause, "ids": [uuid7() for _ in moved],
                "activities": [activity.id for activity in moved], "due": list(due),
            },
        )  # fmt: skip


_RECORD_AGAIN = """
    INSERT INTO activities_wake (id, tenant_id, activity_id, reason, cause, payload, fingerprint, state, due_at, merged, created_at)
    SELECT w.id, %(tenant)s, w.activity_id, coalesce(last.reason, 'new_task'), %(cause)s, coalesce(last.payload, '{}'::jsonb),
           coalesce(last.fingerprint, ''), 'pending', w.due_at, 0, clock_timestamp()
    FROM unnest(%(ids)s::uuid[], %(activities)s::uuid[], %(due)s::timestamptz[]) AS w(id, activity_id, due_at)
    LEFT JOIN LATERAL (
        SELECT reason, payload, fingerprint FROM activities_wake o WHERE o.activity_id = w.activity_id ORDER BY o.id DESC LIMIT 1
    ) last ON true
    ON CONFLICT (activity_id, reason, fingerprint) WHERE state = 'pending' DO UPDATE SET merged = activities_wake.merged + 1
"""


def wake(
    activity: Any, reason: WakeReason, *, payload: Mapping[str, Any], actor: str, run_id: UUID | None = None
) -> bool:
    """Wake an activity that waits for this; False when it does not wait for it any more, or woke itself.

    `activity` is its row, locked. `run_id` is the run that caused the wake, if one did: a run never wakes its own activity.
    When the activity has used up its wakes without progress it goes to people instead. Must run inside `tenant_scope`.
    """
    if activity.status != WAITS_IN[reason] or _woke_itself(activity, run_id):
        return False
    detail = {"reason": reason.value}
    if _without_progress(activity, reason, payload) >= settings.ORCHESTRATOR_WAKE_BUDGET:
        _stop(activity, reason, payload, actor)
        return True
    moved = transitions.apply(
        activity.id, "wake", actor=actor, detail=detail, run_id=run_id,
        blocker_type=None, blocker_message=None, blocked_at=None,
    )  # fmt: skip
    record(moved, reason, payload=payload)
    return True


def _woke_itself(activity: Any, run_id: UUID | None) -> bool:
    if run_id is None:
        return False
    runs = ActivityRun.objects.for_tenant(activity.tenant_id)
    return runs.filter(pk=run_id, activity_id=activity.id).exists()


def _without_progress(activity: Any, reason: WakeReason, payload: Mapping[str, Any]) -> int:
    """How many wakes, this one included, have come within the window since the activity got anywhere."""
    if payload.get("subtask_outcome") in GOOD_ENDS:
        return 0
    past = Wake.objects.for_tenant(activity.tenant_id).filter(activity_id=activity.id)
    progress = past.filter(Q(cause="replay") | Q(payload__subtask_outcome__in=GOOD_ENDS))
    accepted = ActivityRun.objects.for_tenant(activity.tenant_id).filter(
        activity_id=activity.id, status=RunStatus.COMPLETED, ended_by_tool=""
    )
    window = timedelta(seconds=settings.ORCHESTRATOR_WAKE_BUDGET_SECONDS)
    fruitless = past.filter(reason__in=[known.value for known in WAITS_IN], created_at__gt=Now() - window)
    for last in (
        progress.aggregate(at=Max("created_at"))["at"],
        accepted.aggregate(at=Max("ended_at"))["at"],
    ):
        if last is not None:
            fruitless = fruitless.filter(created_at__gt=last)
    return 1 + fruitless.count()


def _stop(activity: Any, reason: WakeReason, payload: Mapping[str, Any], actor: str) -> None:
    """Hand the activity to people. The wake is kept, so that a retry starts with it."""
    error = {
        "code": "wake_budget",
        "message": f"It was woken {settings.ORCHESTRATOR_WAKE_BUDGET} times within "
        f"{settings.ORCHESTRATOR_WAKE_BUDGET_SECONDS:g} s without getting anywhere.",
        "retryable": False,
    }
    _insert(activity, reason, payload, cause="wake", due_at=None)
    moved = transitions.apply(
        activity.id, "trip", actor="engine", detail={"woken_by": actor, "error": error}, error=error
    )
    ended = transitions.end_run(
        tenant_id=activity.tenant_id, activity_id=activity.id, run_status="cancelled", error=error
    )
    if ended:
        relay.after_commit(Exchange(releases=[Release(activity.id, ended.grant)]))
    burial.bury(moved, reason=BurialReason.WAKE_BUDGET, run_id=ended.id if ended else None, error=error)
    logger.warning(
        "Woken without progress", extra={"action": "wake_budget_used", "activity": str(activity.id)}
    )


def offer(activity: Any) -> None:
    """Offer a claimable activity to admission after the commit."""
    relay.after_commit(Exchange(offers=[Offer.of(activity)]))
