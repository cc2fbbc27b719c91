"""The log: a tenant's events in the order of their numbers.

Numbers are given after the commit, by whoever wants to read, under the lock of the tenant's row: one numbering after the other, each of
what has committed by then. So a number never appears below one that somebody has seen, however long a transaction was open, and there is
no gap. Nothing has to run for that, and what nobody reads gets no numbers: the leader numbers for webhooks alone, and shortens what lies
unread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db.models import Min
from django.db.models.functions import Now

from tenants.context import APP, tenant_scope
from tenants.exceptions import TenantError
from tenants.models.events import Event, EventLog, FreshEvent
from tenants.sql import Statement

BATCH = 1_000  # fresh rows numbered under one lock
PATIENCE_SECONDS = 2.0  # of a page for what nobody has read for days; the next page goes on with it
WINDOW = 5_000  # events looked through for one page, so that a filter which fits nothing ends, too
LISTENED = timedelta(seconds=60)  # three renewals

_NUMBER = Statement.load(Path(__file__).parent / "sql", "number")


class EventsGone(TenantError):
    """The events after this number are no longer kept, or the number was never given. Read what you need anew, then go on from `last`."""

    code = "events_gone"
    status = 410

    def __init__(self, after: int, oldest: int, last: int) -> None:
        super().__init__(f"The log cannot go on after {after}: it holds {oldest} to {last}.")
        self.problem_members = {"oldest": oldest, "last": last}


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events somebody wants. Empty: all."""

    kinds: frozenset[str] = frozenset()
    activity: UUID | None = None
    pipeline_run: UUID | None = None

    def fits(self, event: Event) -> bool:
        return (
            (not self.kinds or event.kind in self.kinds)
            and self.activity in (None, event.activity_id)
            and self.pipeline_run in (None, event.pipeline_run_id)
        )


@dataclass(frozen=True, slots=True)
class Page:
    """Events in order. `cursor` is where to go on; `more` says that there is something to go on with."""

    events: Sequence[Event]
    cursor: int
    more: bool


def number(tenant_id: UUID, limit: int = BATCH) -> int:
    """Give what is fresh of the tenant its numbers; returns how many rows that was. Any number of processes may do it at once."""
    with tenant_scope(tenant_id):
        if not FreshEvent.objects.for_tenant(tenant_id).exists():
            return 0
        # Lock before reading: the statement that numbers must see all that was numbered before.
        last = lock(tenant_id).last_number
        given = {"tenant": tenant_id, "last": last, "limit": limit}
        return int(_NUMBER.run(given, using=APP)[0].taken)


def number_unread(tenant_id: UUID, within: float | None = None) -> bool:
    """Number all that has committed by now, for about so many seconds; returns whether that was all of it."""
    ends = None if within is None else time.monotonic() + within
    while number(tenant_id, BATCH) == BATCH:
        if ends is not None and time.monotonic() >= ends:
            return False
    return True


def page(tenant_id: UUID, after: int | None, limit: int, wanted: EventFilter = EventFilter()) -> Page:
    """The next events after a number; None begins with the oldest. What has committed by now is in the log. Raises `EventsGone`."""
    with tenant_scope(tenant_id):
        all_numbered = number_unread(tenant_id, PATIENCE_SECONDS)
        oldest, last = position_of_log(tenant_id)
        if after is None:
            after = oldest - 1
        if not oldest - 1 <= after <= last:
            raise EventsGone(after, oldest, last)
        until = min(after + WINDOW, last)
        found = list(between(tenant_id, after, until, wanted)[: limit + 1])
        if len(found) > limit:
            return Page(found[:limit], found[limit - 1].number, more=True)
        return Page(found, until, more=until < last or not all_numbered)


def between(tenant_id: UUID, after: int, until: int, wanted: EventFilter = EventFilter()) -> Any:
    """Events with numbers above `after`, up to `until`, in order. In the caller's `tenant_scope`."""
    rows = Event.objects.for_tenant(tenant_id).filter(number__gt=after, number__lte=until)
    if wanted.kinds:
        rows = rows.filter(kind__in=wanted.kinds)
    if wanted.activity:
        rows = rows.filter(activity_id=wanted.activity)
    if wanted.pipeline_run:
        rows = rows.filter(pipeline_run_id=wanted.pipeline_run)
    return rows.order_by("number")


def position_of_log(tenant_id: UUID) -> tuple[int, int]:
    """The oldest number that is kept, or the next one if none is, and the last that was given. In the caller's `tenant_scope`."""
    last = EventLog.objects.for_tenant(tenant_id).values_list("last_number", flat=True).first() or 0
    oldest = Event.objects.for_tenant(tenant_id).aggregate(first=Min("number"))["first"]
    return oldest or last + 1, last


def follow(tenant_id: UUID) -> None:
    """Let changes ring the bell for a minute. Whoever follows the log says so again before it is over."""
    with tenant_scope(tenant_id):
        lock(tenant_id)
        EventLog.objects.for_tenant(tenant_id).update(listened_until=Now() + LISTENED)


def lock(tenant_id: UUID) -> EventLog:
    """The row of the tenant's log, locked by the caller's transaction."""
    EventLog.objects.bulk_create([EventLog(tenant_id=tenant_id)], ignore_conflicts=True)
    found: EventLog = EventLog.objects.for_tenant(tenant_id).select_for_update().get()
    return found


# An event as programs get it: in a page, in a stream, and in a webhook's body.


def shown(event: Event) -> dict[str, Any]:
    """For pages and streams. `id` is where to go on."""
    return {
        "id": event.number,
        "kind": event.kind,
        "at": event.at,
        "activity": event.activity_id,
        "pipeline_run": event.pipeline_run_id,
        "data": event.data,
    }


def body_of(delivery: Any) -> dict[str, Any]:
    """A webhook's body, after the recommendation of Standard Webhooks. From a row of a claimed delivery with its event."""
    if delivery.event_number is None:
        about = {"webhook": delivery.endpoint_id}
        return {"type": delivery.kind, "timestamp": delivery.created_at, "data": about}
    about = {
        "id": delivery.event_number,
        "activity": delivery.activity_id,
        "pipeline_run": delivery.pipeline_run_id,
    }
    return {"type": delivery.event_kind, "timestamp": delivery.at, "data": {**delivery.data, **about}}
