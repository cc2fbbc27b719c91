"""What is done for the logs of all tenants: what nobody reads is numbered, and what is old is deleted."""

from __future__ import annotations

import time
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import connections

from tenants import clock
from tenants.context import SYSTEM, system_scope
from tenants.models.events import Event, WebhookDelivery, WebhookDeliveryState

from . import log

TENANTS_AT_ONCE = 500
PURGE_BATCH = 5_000

#: Tenants with fresh events, found by jumping through the index from one tenant to the next.
_CONCERNED = """
    WITH RECURSIVE concerned AS (
        (SELECT tenant_id FROM tenants_freshevent ORDER BY tenant_id LIMIT 1)
        UNION ALL
        SELECT (SELECT f.tenant_id FROM tenants_freshevent f WHERE f.tenant_id > c.tenant_id ORDER BY f.tenant_id LIMIT 1)
        FROM concerned c WHERE c.tenant_id IS NOT NULL)
    SELECT tenant_id FROM concerned WHERE tenant_id IS NOT NULL ORDER BY random() LIMIT %s
"""


def number_all(within: float = 0.5) -> int:
    """Number what is fresh, of all tenants, for about so many seconds; returns how many events. Any number of processes may do it."""
    ends, numbered = time.monotonic() + within, 0
    for tenant_id in _concerned():
        while (found := log.number(tenant_id)) and time.monotonic() < ends:
            numbered += found
            if found < log.BATCH:
                break
        if time.monotonic() >= ends:
            break
    return numbered


def purge() -> int:
    """Delete events and ended deliveries that are too old, of all tenants, a batch at a time; returns how many events."""
    before = clock.now() - timedelta(days=settings.ORCHESTRATOR_EVENT_DAYS)
    deleted = 0
    with system_scope():
        # Their ids are given in the order of time, more or less, so the oldest are found without an index of their own.
        while ids := list(Event.objects.order_by("pk").values_list("pk", "at")[:PURGE_BATCH]):
            batch = Event.objects.filter(pk__in=[pk for pk, at in ids if at < before]).delete()[0]
            deleted += batch
            if batch < PURGE_BATCH:
                break
        ended = (WebhookDeliveryState.DELIVERED, WebhookDeliveryState.FAILED, WebhookDeliveryState.DROPPED)
        old = WebhookDelivery.objects.filter(created_at__lt=before, state__in=ended).order_by("created_at")
        while WebhookDelivery.objects.filter(pk__in=old.values("pk")[:PURGE_BATCH]).delete()[0]:
            pass
    return deleted


def _concerned() -> list[UUID]:
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(_CONCERNED, [TENANTS_AT_ONCE])
        return [tenant_id for (tenant_id,) in cursor.fetchall()]
