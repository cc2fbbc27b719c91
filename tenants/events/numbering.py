"""What is done for the logs of all tenants: numbers for webhooks, and an end of what is old or too much."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connections, transaction

from tenants import clock
from tenants.context import SYSTEM, system_scope
from tenants.models.events import Event, WebhookDelivery, WebhookDeliveryState
from tenants.sql import Statement

from . import log

TENANTS_AT_ONCE = 500
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


def number_all(within: float = 0.5) -> int:
    """Number what webhooks wait for, of all tenants, for about so many seconds; returns how many fresh rows. Any number of processes may
    do it."""
    ends, numbered = time.monotonic() + within, 0
    for tenant_id in _asked(_CONCERNED, TENANTS_AT_ONCE):
        while (found := log.number(tenant_id)) and time.monotonic() < ends:
            numbered += found
            if found < log.BATCH:
                break
        if time.monotonic() >= ends:
            break
    return numbered


def purge() -> int:
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
    for tenant_id in _asked(_WITH_UNREAD):
        # The oldest alone says whether the others are worth a look.
        while _drop_unread(tenant_id, before, 1):
            dropped += 1 + _drop_unread(tenant_id, before, PURGE_BATCH)
        while _asked(_IS_LONG, tenant_id, UNREAD) == [True]:
            log.number(tenant_id, limit=PURGE_BATCH)
    return dropped


def _drop_unread(tenant_id: UUID, before: datetime, limit: int) -> int:
    with system_scope(), transaction.atomic(using=SYSTEM):
        log.lock(tenant_id)
        given = {"tenant": tenant_id, "before": before, "limit": limit}
        return int(_DROP_UNREAD.run(given, using=SYSTEM)[0].dropped)


def _asked(question: str, *parameters: UUID | int) -> list[Any]:
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(question, parameters)
        return [answer for (answer,) in cursor.fetchall()]
