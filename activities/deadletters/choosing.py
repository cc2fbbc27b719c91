"""Choosing: which of the dead letters that somebody names can still be acted on, with their activities locked in the order that all use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from django.db.models import QuerySet

from activities import states
from activities.models import Activity, DeadLetter, MailboxItem
from activities.models.dead_letter import DeadLetterState
from activities.models.mailbox import ItemState

AT_ONCE = 100  # activities that one statement moves; its cost grows with the square of their number
FAILED = states.sources_of("retry")


def activities_of(tenant_id: UUID, chosen: QuerySet[DeadLetter], *, lock: bool) -> list[UUID]:
    """The failed activities of open letters, oldest failure first. The others were dealt with before.

    Locked, all at once: of two who choose overlapping letters at the same time, the second waits for the first and then finds them
    dealt with.
    """
    failed = chosen.filter(state=DeadLetterState.OPEN, activity__status__in=FAILED).order_by("pk")
    ids = [found for found in failed.values_list("activity_id", flat=True) if found is not None]
    if lock:
        rows = Activity.objects.for_tenant(tenant_id).filter(pk__in=ids).order_by("pk")
        list(rows.select_for_update().values_list("pk"))
        # Asked again: whoever held the locks before may have dealt with some of them.
        again = failed.filter(activity_id__in=ids).values_list("activity_id", flat=True)
        ids = [found for found in again if found is not None]
    return ids


def items_of(tenant_id: UUID, chosen: QuerySet[DeadLetter], *, lock: bool) -> list[UUID]:
    """The failed items of mailboxes of open letters, oldest failure first; locked as `activities_of`."""
    letters = chosen.filter(state=DeadLetterState.OPEN, mailbox_item_id__isnull=False).order_by("pk")
    ids = [found for found in letters.values_list("mailbox_item_id", flat=True) if found is not None]
    if not ids:
        return []
    failed = MailboxItem.objects.for_tenant(tenant_id).filter(pk__in=ids, state=ItemState.FAILED)
    rows = failed.order_by("pk").select_for_update() if lock else failed
    found = set(rows.values_list("pk", flat=True))
    return [item_id for item_id in ids if item_id in found]


def without_twins(tenant_id: UUID, ids: Sequence[UUID]) -> list[UUID]:
    """Those that can be live again. Of activities with one dedup key at most one is, and the same work may have been submitted anew or
    have failed twice."""
    rows = Activity.objects.for_tenant(tenant_id)
    keys = dict(rows.filter(pk__in=ids, dedup_key__isnull=False).values_list("pk", "dedup_key"))
    live = rows.filter(dedup_key__in=set(keys.values()), status__in=states.LIVE)
    taken = set(live.values_list("dedup_key", flat=True)) if keys else set()
    kept = []
    for activity_id in ids:
        key = keys.get(activity_id)
        if key is None or key not in taken:
            kept.append(activity_id)
            taken.add(key)
    return kept


def escalations_of(letters: QuerySet[DeadLetter]) -> list[UUID]:
    """The activities that ask people about these letters."""
    return [found for found in letters.values_list("escalation_id", flat=True) if found is not None]


def portions(ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    for start in range(0, len(ids), AT_ONCE):
        yield ids[start : start + AT_ONCE]
