"""Promotion: delays and retries live in PostgreSQL, and what is due is offered.

One statement takes at most so many due wakes and clears their delay; two promoters at once take different ones. A crash before the
offer loses nothing: the wake is pending and due, so recovery offers it.
"""

from __future__ import annotations

from django.conf import settings
from django.db import connections

from activities import relay
from activities.admission import Exchange
from activities.admission.exchange import Offer
from activities.models import Activity
from tenants.context import SYSTEM, system_scope

_PROMOTE = """
    UPDATE activities_wake SET due_at = NULL
    WHERE id IN (
        SELECT id FROM activities_wake WHERE state = 'pending' AND due_at <= now()
        ORDER BY due_at LIMIT %s FOR UPDATE SKIP LOCKED)
    RETURNING activity_id
"""


def promote(limit: int | None = None) -> int:
    """Offer what has become due; returns how many activities."""
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(_PROMOTE, [limit or settings.ORCHESTRATOR_PROMOTE_PER_TICK])
        ids = [row[0] for row in cursor.fetchall()]
    if not ids:
        return 0
    with system_scope():
        due = list(Activity.objects.filter(pk__in=ids, status="created"))
    relay.hand_over(Exchange(offers=[Offer.of(activity) for activity in due]))
    return len(due)
