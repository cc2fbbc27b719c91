"""The log: a tenant's events in the order of their numbers.

Numbers are given after the commit, by the reader, under the lock of the tenant's row: one numbering after the other, each of
what has committed by then. So a number never appears below one that somebody has seen, however long a transaction was open, and there is
no gap. Nothing has to run for that, and what nobody reads gets no numbers: the leader numbers for webhooks alone, and shortens what lies
unread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connections, transaction
from django.db.models import Min
from django.db.models.functions import Now

from tenants import clock
from tenants.context import APP, SYSTEM, system_scope, tenant_scope
from tenants.exceptions import TenantError
from tenants.models.events import Event, EventLog, FreshEvent, WebhookDelivery, WebhookDeliveryState
from tenants.sql import Statement

BATCH = 250  # fresh rows numbered under one lock, each with a change of 16 activities at most
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
        parameters = {"tenant": tenant_id, "last": last, "limit": limit}
        return int(_NUMBER.run(parameters, using=APP)[0].taken)


def number_unread(tenant_id: UUID, within: float | None = None) -> bool:
    """Number all that has committed by now, for about so many seconds; returns whether that was all of it."""
    ends = None if within is None else time.monotonic() + within
    while number(tenant_id, BATCH) == BATCH:
        if ends is not None and time.monotonic() >= ends:
            return False
    return True


def page(tenant_id: UUID, after: int | None, limit: int, event_filter: EventFilter = EventFilter()) -> Page:
    """The next events after a number; None begins with the oldest. What has committed by now is in the log. Raises `EventsGone`."""
    with tenant_scope(tenant_id):
        all_numbered = number_unread(tenant_id, PATIENCE_SECONDS)
        oldest, last = position_of_log(tenant_id)
        if after is None:
            after = oldest - 1
        if not oldest - 1 <= after <= last:
            raise EventsGone(after, oldest, last)
        until = min(after + WINDOW, last)
        found = list(between(tenant_id, after, until, event_filter)[: limit + 1])
        if len(found) > limit:
            return Page(found[:limit], found[limit - 1].number, more=True)
        return Page(found, until, more=until < last or not all_numbered)


def between(tenant_id: UUID, after: int, until: int, event_filter: EventFilter = EventFilter()) -> Any:
    """Events with numbers above `after`, up to `until`, in order. In the caller's `tenant_scope`."""
    rows = Event.objects.for_tenant(tenant_id).filter(number__gt=after, number__lte=until)
    if event_filter.kinds:
        rows = rows.filter(kind__in=event_filter.kinds)
    if event_filter.activity:
        rows = rows.filter(activity_id=event_filter.activity)
    if event_filter.pipeline_run:
        rows = rows.filter(pipeline_run_id=event_filter.pipeline_run)
    return rows.order_by("number")


def position_of_log(tenant_id: UUID) -> tuple[int, int]:
    """The oldest number that is kept, or the next one if none is, and the last that was given. In the caller's `tenant_scope`."""
    last = EventLog.objects.for_tenant(tenant_id).values_list("last_number", flat=True).first() or 0
    oldest = Event.objects.for_tenant(tenant_id).aggregate(first=Min("number"))["first"]
    return oldest or last + 1, last


def follow(tenant_id: UUID) -> None:
    """Have changes send notifications for a minute. A reader that follows the log calls this again within the minute."""
    with tenant_scope(tenant_id):
        lock(tenant_id)
        EventLog.objects.for_tenant(tenant_id).update(listened_until=Now() + LISTENED)


def lock(tenant_id: UUID) -> EventLog:
    """The row of the tenant's log, locked by the caller's transaction."""
    EventLog.objects.bulk_create([EventLog(tenant_id=tenant_id)], ignore_conflicts=True)
    found: EventLog = EventLog.objects.for_tenant(tenant_id).select_for_update().get()
    return found


# An event as programs get it: in a page, in a stream, and in a webhook's body.


def render_event(event: Event) -> dict[str, Any]:
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


TENANTS_AT_ONCE = 500
NUMBERING_SECONDS = 0.5  # about; what is left over has its turn next
PURGE_BATCH = 5_000
UNREAD = 100_000  # fresh rows of a tenant that may wait for a reader, who then waits for about three seconds

_DROP_UNREAD = Statement.load(Path(__file__).parent / "sql", "drop_unread")

#: Tenants with a webhook and something fresh. Nobody else has to be told unless they ask.
_CONCERNED = """
    SELECT w.tenant_id FROM tenants_webhookendpoint w
    WHERE w.enabled AND EXISTS (SELECT FROM tenants_freshevent f WHERE f.tenant_id = w.tenant_id)
    GROUP BY w.tenant_id ORDER BY random() LIMIT %s
"""

#: Tenants with anything fresh, found by jumping through the index from one tenant to the next.
_WITH_UNREAD = """
    WITH RECURSIVE unread AS (
        (SELECT tenant_id FROM tenants_freshevent ORDER BY tenant_id LIMIT 1)
        UNION ALL
        SELECT (SELECT f.tenant_id FROM tenants_freshevent f WHERE f.tenant_id > u.tenant_id ORDER BY f.tenant_id LIMIT 1)
        FROM unread u WHERE u.tenant_id IS NOT NULL)
    SELECT tenant_id FROM unread WHERE tenant_id IS NOT NULL
"""

_IS_LONG = (
    "SELECT EXISTS (SELECT FROM tenants_freshevent WHERE tenant_id = %s ORDER BY tenant_id, id OFFSET %s)"
)


def number_all() -> int:
    """Number what webhooks wait for, of all tenants, for about half a second; returns how many fresh rows. Any number of processes may
    do it."""
    ends, numbered = time.monotonic() + NUMBERING_SECONDS, 0
    for tenant_id in _select_values(_CONCERNED, TENANTS_AT_ONCE):
        while (found := number(tenant_id)) and time.monotonic() < ends:
            numbered += found
            if found < BATCH:
                break
        if time.monotonic() >= ends:
            break
    return numbered


def purge_logs() -> int:
    """Delete events and ended deliveries that are too old, of all tenants, a batch at a time, and shorten what nobody has read; returns
    how many events and fresh rows."""
    before = clock.now() - timedelta(days=settings.ORCHESTRATOR_EVENT_DAYS)
    deleted = 0
    with system_scope():
        # Ids are given in the order of numbering, more or less that of time, so the oldest are found without an index of their own. What
        # was numbered late is kept for longer.
        while ids := list(Event.objects.order_by("pk").values_list("pk", "at")[:PURGE_BATCH]):
            batch = Event.objects.filter(pk__in=[pk for pk, at in ids if at < before]).delete()[0]
            deleted += batch
            if batch < PURGE_BATCH:
                break
        ended = (WebhookDeliveryState.DELIVERED, WebhookDeliveryState.FAILED, WebhookDeliveryState.DROPPED)
        old = WebhookDelivery.objects.filter(created_at__lt=before, state__in=ended).order_by("created_at")
        while WebhookDelivery.objects.filter(pk__in=old.values("pk")[:PURGE_BATCH]).delete()[0]:
            pass
    return deleted + _shorten_unread(before)


def _shorten_unread(before: datetime) -> int:
    """Drop what nobody has read in time, and number the rest of a log that is long, so that no reader waits for it; returns how many
    fresh rows were dropped."""
    dropped = 0
    for tenant_id in _select_values(_WITH_UNREAD):
        # The oldest alone says whether the others are worth a look.
        while _drop_unread(tenant_id, before, 1):
            dropped += 1 + _drop_unread(tenant_id, before, PURGE_BATCH)
        while _select_values(_IS_LONG, tenant_id, UNREAD) == [True]:
            number(tenant_id, limit=PURGE_BATCH)
    return dropped


def _drop_unread(tenant_id: UUID, before: datetime, limit: int) -> int:
    with system_scope(), transaction.atomic(using=SYSTEM):
        lock(tenant_id)
        parameters = {"tenant": tenant_id, "before": before, "limit": limit}
        return int(_DROP_UNREAD.run(parameters, using=SYSTEM)[0].dropped)


def _select_values(question: str, *parameters: UUID | int) -> list[Any]:
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(question, parameters)
        return [answer for (answer,) in cursor.fetchall()]
