"""Dead letters: people are told of work that failed for good, once, and can set it going again, one by one or all that failed alike.

The failure itself is recorded with a dead letter by `burial`. What follows is done here: the activity goes to `needs_review`, an
escalation asks a person, an alert goes out. Whoever dies half-way has done nothing; at most one process does it at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import Count, Max, Min, QuerySet
from django.db.models.functions import Now

from activities import families, states, transitions, wakes
from activities.alerts import raise_alert
from activities.decision_rules import DEFAULT_ESCALATION_ROLE
from activities.models import Activity, DeadLetter
from activities.models.dead_letter import BurialReason, DeadLetterState
from activities.signals import activity_reopened
from activities.states import BANDS, LinkKind, Status
from activities.submission import child_of, submit
from tenants.context import SYSTEM, system_scope, tenant_scope

logger = logging.getLogger(__name__)

PAGE = 200
TURN_LOCK = 0x6465616C  # "deal": whoever holds it handles dead letters; never change it
AT_ONCE = 500  # activities that one statement sets going again

_SAID = {
    BurialReason.EXHAUSTED: "its attempts are used up",
    BurialReason.PERMANENT: "another attempt would fail alike",
    BurialReason.STALLED: "its worker was lost once too often",
    BurialReason.WAKE_BUDGET: "it was woken again and again without getting anywhere",
}


def handle_waiting() -> int:
    """Tell people of every dead letter that they were not told of yet; how many. One process at a time, others return at once."""
    handled = 0
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [TURN_LOCK])
        if not cursor.fetchone()[0]:
            return 0
        try:
            while page := _unhandled():
                for tenant_id, activity_id, letter_id in page:
                    handled += _handle(tenant_id, activity_id, letter_id)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [TURN_LOCK])
    return handled


def unhandled() -> QuerySet[Any]:
    """What people were not told of yet, of all tenants."""
    rows: QuerySet[Any] = DeadLetter.objects.filter(handled_at=None)
    return rows


def unhandled_since(age: timedelta) -> bool:
    """Whether somebody should have been told of something that long ago."""
    with system_scope():
        return unhandled().filter(created_at__lt=Now() - age).exists()


def _unhandled() -> list[Any]:
    with system_scope():
        return list(unhandled().order_by("pk").values_list("tenant_id", "activity_id", "pk")[:PAGE])


def _handle(tenant_id: UUID, activity_id: UUID, letter_id: UUID) -> bool:
    with tenant_scope(tenant_id):
        activity = families.lock_with_parent(tenant_id, activity_id)
        letters = DeadLetter.objects.for_tenant(tenant_id).filter(pk=letter_id)
        letter = letters.select_for_update().get()
        if letter.handled_at is not None:
            return False
        if activity is not None and letter.state == DeadLetterState.OPEN:
            if activity.status == Status.FAILED:
                transitions.apply(
                    activity_id, "escalate", actor="engine", detail={"dead_letter": str(letter_id)}
                )
            letter.escalation_id = _escalate(activity, letter)
            _alert(activity, letter)
        letters.update(handled_at=Now(), escalation_id=letter.escalation_id)
    return True


def _escalate(activity: Activity, letter: DeadLetter) -> UUID:
    escalation = child_of(
        activity,
        LinkKind.ESCALATION,
        name=f"Failed: {activity.name}"[:200],
        description=f"{_told(activity, letter)}\n\nTry it again, hand it to somebody else, or cancel it.",
        human_role=DEFAULT_ESCALATION_ROLE,
        priority=BANDS["urgent"],
        metadata={"dead_letter": str(letter.pk), "fingerprint": letter.fingerprint, "reason": letter.reason},
    )
    return submit([escalation], actor="engine")[0].id


def _alert(activity: Activity, letter: DeadLetter) -> None:
    raise_alert(
        letter.tenant_id,
        "wake_budget" if letter.reason == BurialReason.WAKE_BUDGET else "dead_letter",
        f"Failed: {activity.name}"[:200],
        body=_told(activity, letter),
        severity="critical",
        activity_id=activity.pk,
        facts={
            "agent_role": letter.agent_role,
            "reason": letter.reason,
            "error": letter.error.get("code"),
            "attempts": letter.attempts,
            "stalls": letter.stalls,
            "cost_usd": str(letter.cost_usd),
            "fingerprint": letter.fingerprint,
        },
        dedup_key=f"dead-letter:{letter.pk}",
    )


def _told(activity: Activity, letter: DeadLetter) -> str:
    said = _SAID[BurialReason(letter.reason)]
    message = str(letter.error.get("message") or letter.error.get("code") or "")
    return (
        f"{letter.agent_role} has given up: {said}. "
        f"Attempts {letter.attempts}, stalls {letter.stalls}, cost so far ${letter.cost_usd:f}. {message}"
    )


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay has done, or would do."""

    count: int
    skipped: int  # chosen, but dealt with before
    seconds: float  # until the last of them starts


def replay(
    tenant_id: UUID,
    chosen: QuerySet[DeadLetter],
    *,
    actor: str,
    per_second: float | None = None,
    dry_run: bool = False,
) -> Replayed:
    """Set the activities of open dead letters going again, oldest first, at most `per_second` of them a second.

    Each is opened again by a guarded move, so of two replays at once one gets it. In the caller's `tenant_scope`.
    """
    total = chosen.count()
    waiting = chosen.filter(state=DeadLetterState.OPEN, activity__status__in=states.sources_of("retry"))
    if dry_run:
        count = waiting.count()
        return Replayed(count, total - count, _seconds(count, per_second))
    ids = list(waiting.order_by("pk").values_list("activity_id", flat=True))
    done, began = 0, datetime.now(UTC)
    for start in range(0, len(ids), AT_ONCE):
        done += _reopen(tenant_id, ids[start : start + AT_ONCE], actor, began, done, per_second)
    return Replayed(done, total - done, _seconds(done, per_second))


def _seconds(count: int, per_second: float | None) -> float:
    return max(0, count - 1) / per_second if per_second else 0.0


def _reopen(
    tenant_id: UUID, ids: Sequence[UUID], actor: str, began: datetime, before: int, per_second: float | None
) -> int:
    """Must know nothing of the order in which the database answers: the oldest start first."""
    moved = transitions.apply_many(
        ids, "retry", actor=actor, detail={"replay": True}, attempts=0, stalls=0, error=None
    )
    if not moved:
        return 0
    moved.sort(key=lambda activity: ids.index(activity.id))
    pause = 1 / per_second if per_second else 0.0
    due = [began + timedelta(seconds=(before + index) * pause) for index in range(len(moved))]
    wakes.record_many(moved, due, cause="replay")
    reopened = [activity.id for activity in moved]
    letters = DeadLetter.objects.for_tenant(tenant_id).filter(
        activity_id__in=reopened, state=DeadLetterState.OPEN
    )
    escalations = list(letters.exclude(escalation_id=None).values_list("escalation_id", flat=True))
    letters.update(state=DeadLetterState.REPLAYED, closed_at=Now(), closed_by=actor)
    if escalations:
        transitions.apply_many(
            escalations, "cancel", actor=actor, detail={"reason": "obsolete"}, cancel_reason="obsolete"
        )
    for activity in moved:
        if activity.pipeline_run_id is not None:
            activity_reopened.send(sender=Activity, activity=activity)
    return len(moved)


def groups(rows: QuerySet[Any]) -> list[dict[str, Any]]:
    """Dead letters that look alike, most frequent first, each with its newest as an example."""
    return list(
        rows.order_by()
        .values("fingerprint", "agent_role", "reason")
        .annotate(count=Count("pk"), first_at=Min("created_at"), last_at=Max("created_at"), example=Max("pk"))
        .order_by("-count", "fingerprint")
    )
