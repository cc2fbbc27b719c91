"""The log: a tenant's events in the order of their numbers.

Readers assign the numbers after the commit, under the lock of the tenant's row: one numbering after the other, each of all
events that have committed by then. So a number never appears below one that a reader has seen, however long a transaction was open, and
there are no gaps. No process has to run for this, and events that nobody reads get no numbers: the leader only numbers for webhooks, and
shortens unread logs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connections, transaction
from django.db.models import Min
from django.db.models.functions import Now

from tenants import clock, outages
from tenants.context import APP, SYSTEM, system_scope, tenant_scope
from tenants.exceptions import TenantError
from tenants.models.events import Event, EventLog, FreshEvent, WebhookDelivery, WebhookDeliveryState
from tenants.sql import Statement

logger = logging.getLogger(__name__)

BATCH = 250  # fresh rows numbered under one lock, each with changes of at most 16 activities
PATIENCE_SECONDS = 2.0  # for one page to number a log that nobody has read for days; the next page continues
WINDOW = 5_000  # events searched for one page, so that a filter without matches ends, too
LISTENED = timedelta(seconds=60)  # three renewals

_NUMBER = Statement.load(Path(__file__).parent / "sql", "number")


class EventsGone(TenantError):
    """The events after this number are no longer stored, or it does not exist. Read the objects you need, and continue from `last`."""

    code = "events_gone"
    status = 410

    def __init__(self, after: int, oldest: int, last: int) -> None:
        super().__init__(f"The log cannot continue after {after}: it contains {oldest} to {last}.")
        self.problem_members = {"oldest": oldest, "last": last}


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects events. An empty filter selects all."""

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
    """Events in order. `cursor` is the position to continue from; `more` says whether there are further events."""

    events: Sequence[Event]
    cursor: int
    more: bool


def number(tenant_id: UUID, limit: int = BATCH) -> int:
    """Number the tenant's fresh events. Return how many rows there were. Safe to run concurrently."""
    with tenant_scope(tenant_id):
        if not FreshEvent.objects.for_tenant(tenant_id).exists():
            return 0
        # Lock before reading, because the statement must see all events that were numbered before.
        last = lock(tenant_id).last_number
        parameters = {"tenant": tenant_id, "last": last, "limit": limit}
        return int(_NUMBER.run(parameters, using=APP)[0].taken)


def number_unread(tenant_id: UUID, within: float | None = None) -> bool:
    """Number all committed events, for about `within` seconds. Return whether all were numbered."""
    ends = None if within is None else time.monotonic() + within
    while number(tenant_id, BATCH) == BATCH:
        if ends is not None and time.monotonic() >= ends:
            return False
    return True


def page(tenant_id: UUID, after: int | None, limit: int, event_filter: EventFilter = EventFilter()) -> Page:
    """Return the next events after a number, or with None from the oldest. They include all committed events. Raises `EventsGone`."""
    with tenant_scope(tenant_id):
        all_numbered = number_unread(tenant_id, PATIENCE_SECONDS)
        oldest, last = position_of_log(tenant_id)
        if after is None:
            after = oldest - 1
        if not oldest - 1 <= after <= last:
            raise EventsGone(after, oldest, last)
        until = min(after + WINDOW, last)
        events = list(between(tenant_id, after, until, event_filter)[: limit + 1])
        if len(events) > limit:
            return Page(events[:limit], events[limit - 1].number, more=True)
        return Page(events, until, more=until < last or not all_numbered)


def between(tenant_id: UUID, after: int, until: int, event_filter: EventFilter = EventFilter()) -> Any:
    """Return events with numbers above `after`, up to `until`, in order. Must run in a `tenant_scope`."""
    rows = Event.objects.for_tenant(tenant_id).filter(number__gt=after, number__lte=until)
    if event_filter.kinds:
        rows = rows.filter(kind__in=event_filter.kinds)
    if event_filter.activity:
        rows = rows.filter(activity_id=event_filter.activity)
    if event_filter.pipeline_run:
        rows = rows.filter(pipeline_run_id=event_filter.pipeline_run)
    return rows.order_by("number")


def position_of_log(tenant_id: UUID) -> tuple[int, int]:
    """Return the oldest stored number, or the next one if none is stored, and the last number. Must run in a `tenant_scope`."""
    last = EventLog.objects.for_tenant(tenant_id).values_list("last_number", flat=True).first() or 0
    oldest = Event.objects.for_tenant(tenant_id).aggregate(first=Min("number"))["first"]
    return oldest or last + 1, last


def follow(tenant_id: UUID) -> None:
    """Let changes send notifications for a minute. A reader that follows the log calls this again within the minute."""
    with tenant_scope(tenant_id):
        lock(tenant_id)
        EventLog.objects.for_tenant(tenant_id).update(listened_until=Now() + LISTENED)


def lock(tenant_id: UUID) -> EventLog:
    """Lock the row of the tenant's log in the caller's transaction, and return it. It is created if necessary."""
    EventLog.objects.bulk_create([EventLog(tenant_id=tenant_id)], ignore_conflicts=True)
    return EventLog.objects.for_tenant(tenant_id).select_for_update().get()


# The representations of an event for programs: in a page, in a stream, and in a webhook's body.


def render_event(event: Event) -> dict[str, Any]:
    """Return the event for pages and streams. `id` is the position to continue from."""
    return {
        "id": event.number,
        "kind": event.kind,
        "at": event.at,
        "activity": event.activity_id,
        "pipeline_run": event.pipeline_run_id,
        "data": event.data,
    }


def body_of(delivery: Any) -> dict[str, Any]:
    """Return a webhook's body, as Standard Webhooks recommends. `delivery` is a row of a claimed delivery with its event."""
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
NUMBERING_SECONDS = 0.5  # the approximate time of one pass; the next pass continues
PURGE_BATCH = 5_000
# Unnumbered rows that a tenant may have; a reader would wait for them for about three seconds.
UNREAD = 100_000

_DROP_UNREAD = Statement.load(Path(__file__).parent / "sql", "drop_unread")

#: Tenants with a webhook and fresh events. For others, the next reader numbers them.
_WITH_WEBHOOKS = """
    SELECT w.tenant_id FROM tenants_webhookendpoint w
    WHERE w.enabled AND EXISTS (SELECT FROM tenants_freshevent f WHERE f.tenant_id = w.tenant_id)
    GROUP BY w.tenant_id ORDER BY random() LIMIT %s
"""

#: Tenants with fresh events, found by jumping through the index from one tenant to the next.
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
    """Number the fresh events of all tenants with webhooks, for about half a second. Return how many rows. Safe to run concurrently."""
    ends, numbered = time.monotonic() + NUMBERING_SECONDS, 0
    for tenant_id in _select_values(_WITH_WEBHOOKS, TENANTS_AT_ONCE):
        with _one_of_many(tenant_id):
            rows = BATCH
            while rows == BATCH and time.monotonic() < ends:
                numbered += (rows := number(tenant_id))
        if time.monotonic() >= ends:
            break
    return numbered


def purge_logs() -> int:
    """Delete expired events and ended deliveries of all tenants, a batch at a time, and shorten unread logs. Return how many events and
    fresh rows."""
    before = clock.now() - timedelta(days=settings.ORCHESTRATOR_EVENT_DAYS)
    deleted = 0
    with system_scope():
        # Ids are assigned in the order of numbering, roughly that of time, so the oldest events are found without another index. Events
        # that were numbered late are stored for longer.
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
    """Drop expired events that nobody has read, and number the rest of a long log, so that no reader waits for it. Return how many
    fresh rows were dropped."""
    dropped = 0
    for tenant_id in _select_values(_WITH_UNREAD):
        with _one_of_many(tenant_id):
            # Check the oldest row first, which shows whether any have expired.
            while _drop_unread(tenant_id, before, 1):
                dropped += 1 + _drop_unread(tenant_id, before, PURGE_BATCH)
            while _select_values(_IS_LONG, tenant_id, UNREAD) == [True]:
                number(tenant_id, limit=PURGE_BATCH)
    return dropped


def _one_of_many(tenant_id: UUID) -> AbstractContextManager[None]:
    return outages.one_of_many(
        logger, "The log of a tenant failed", action="event_log_failed", tenant=str(tenant_id)
    )


def _drop_unread(tenant_id: UUID, before: datetime, limit: int) -> int:
    with system_scope(), transaction.atomic(using=SYSTEM):
        lock(tenant_id)
        parameters = {"tenant": tenant_id, "before": before, "limit": limit}
        return int(_DROP_UNREAD.run(parameters, using=SYSTEM)[0].dropped)


def _select_values(query: str, *parameters: UUID | int) -> list[Any]:
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(query, parameters)
        return [value for (value,) in cursor.fetchall()]
