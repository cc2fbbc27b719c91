"""Replaying: failed work is set going again, one letter or all that failed alike, as fast as is wanted.

Each activity is opened again by a guarded move, so of two replays at once one gets it, and repeating a replay starts nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Now

from activities import transitions, wakes
from activities.deadletters import choosing
from activities.models import Activity, DeadLetter, MailboxItem
from activities.models.dead_letter import DeadLetterState
from activities.models.mailbox import ItemState
from activities.signals import activity_reopened
from tenants import clock

OBSOLETE = "obsolete"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay has done, or would do."""

    count: int
    skipped: int  # chosen, but dealt with before
    seconds: float  # until the last of them starts


def retry_item(tenant_id: UUID, item_id: UUID, *, actor: str) -> bool:
    """Let a failed item of a mailbox be taken again; whether it was one. In the caller's `tenant_scope`."""
    failed = MailboxItem.objects.for_tenant(tenant_id).filter(
        pk=item_id, state=ItemState.FAILED, agent_role=None
    )
    found = list(failed.select_for_update().values_list("pk", flat=True))
    _reopen_items(tenant_id, found, actor, before=0, per_second=None)
    return bool(found)


def replay(
    tenant_id: UUID,
    chosen: QuerySet[DeadLetter],
    *,
    actor: str,
    per_second: float | None = None,
    dry_run: bool = False,
) -> Replayed:
    """Set the activities and items of open dead letters going again, oldest first, at most `per_second` of them a second.

    In the caller's `tenant_scope`.
    """
    total = chosen.count()
    ids = choosing.without_twins(tenant_id, choosing.activities_of(tenant_id, chosen, lock=not dry_run))
    items = choosing.items_of(tenant_id, chosen, lock=not dry_run)
    count = len(ids) if dry_run else len(reopen(tenant_id, ids, actor, per_second))
    if not dry_run:
        _reopen_items(tenant_id, items, actor, before=count, per_second=per_second)
    count += len(items)
    return Replayed(count, total - count, max(0, count - 1) / per_second if per_second else 0.0)


def reopen(tenant_id: UUID, ids: list[UUID], actor: str, per_second: float | None) -> list[UUID]:
    """Set these failed activities going again; those that were. The caller holds their locks."""
    began = clock.now()
    reopened: list[Any] = []
    for portion in choosing.portions(ids):
        moved = transitions.apply_many(
            portion, "retry", actor=actor, detail={"replay": True}, attempts=0, stalls=0, error=None
        )
        # The database answers in an order of its own; the oldest failure starts first.
        place = {activity_id: index for index, activity_id in enumerate(portion)}
        moved.sort(key=lambda activity: place[activity.id])
        wakes.record_again(moved, cause="replay", due=_due(began, len(reopened), len(moved), per_second))
        _close_letters(tenant_id, [activity.id for activity in moved], actor)
        reopened += moved
    _tell_pipelines(reopened)
    return [activity.id for activity in reopened]


def _reopen_items(
    tenant_id: UUID, ids: list[UUID], actor: str, *, before: int, per_second: float | None
) -> None:
    """Items of mailboxes can be taken again, with all their attempts. The caller holds their locks."""
    rows = MailboxItem.objects.for_tenant(tenant_id)
    rows.filter(pk__in=ids).update(state=ItemState.PENDING, attempts=0, error=None, done_at=None, due_at=None)
    times = _due(clock.now(), before, len(ids), per_second)
    later = [MailboxItem(pk=pk, due_at=at) for pk, at in zip(ids, times, strict=False)]
    rows.bulk_update(later, ["due_at"], batch_size=choosing.AT_ONCE)
    letters = DeadLetter.objects.for_tenant(tenant_id).filter(
        mailbox_item_id__in=ids, state=DeadLetterState.OPEN
    )
    letters.update(state=DeadLetterState.REPLAYED, closed_at=Now(), closed_by=actor)


def _due(began: datetime, before: int, count: int, per_second: float | None) -> list[datetime]:
    """When each of the next `count` starts; nothing when they may all start at once."""
    if not per_second:
        return []
    return [began + timedelta(seconds=(before + index) / per_second) for index in range(count)]


def _close_letters(tenant_id: UUID, activities: list[UUID], actor: str) -> None:
    letters = DeadLetter.objects.for_tenant(tenant_id).filter(
        activity_id__in=activities, state=DeadLetterState.OPEN
    )
    escalations = choosing.escalations_of(letters)
    letters.update(state=DeadLetterState.REPLAYED, closed_at=Now(), closed_by=actor)
    if escalations:
        transitions.apply_many(
            escalations, "cancel", actor=actor, detail={"reason": OBSOLETE}, cancel_reason=OBSOLETE
        )


def _tell_pipelines(reopened: Iterable[Any]) -> None:
    """Last, and in the order of the runs, since each is locked: activities come before runs."""
    for activity in sorted(reopened, key=lambda one: str(one.pipeline_run_id)):
        if activity.pipeline_run_id is not None:
            activity_reopened.send(sender=Activity, activity=activity)
