"""Delivery: what is due leaves the house, each webhook in a lane of its own.

A delivery is claimed under the lock of its webhook, sent with no transaction open, and then marked. One whose deliverer died is
claimed again when its lease is over, so it may arrive twice, under the same `webhook-id`; whoever was taken for dead says nothing any more.

Webhooks whose last attempt failed are looked after apart from the others, by a few deliverers, and are left alone for a growing pause.
So dead receivers, however many events wait for them, keep nobody waiting but themselves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import close_old_connections, connections, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from activities.webhooks import outcomes, posting, signing
from activities.webhooks.posting import Outcome
from agents.exceptions import ConfigurationError
from tenants.context import SYSTEM, system_scope
from tenants.events.models import WebhookDelivery, WebhookDeliveryState, WebhookEndpoint
from tenants.events.shapes import body_of
from tenants.sql import Statement

logger = logging.getLogger(__name__)

SECONDS_AT_ONCE = 20.0  # of one message from the queue; then others get their turn, or the worker may stop
LEASE_SECONDS = 60.0  # beyond what an attempt may take
HANGING_SECONDS = 2.0  # a receiver with an attempt that is under way for longer gets no second one meanwhile
TROUBLED_AT_ONCE = 4  # deliverers of all workers together for webhooks whose last attempt failed
TROUBLED_LOCK = 0x77686B00  # "whk"; advisory locks from here on

#: A row of `sql/claim_webhook.sql`: the delivery with all that is needed to send it.
Claim = Any

_FOLDER = Path(__file__).parent.parent / "sql"
_IN_TURN, _LOCK_LANE, _CLAIM = (
    Statement.load(_FOLDER, name) for name in ("webhooks_in_turn", "lock_webhook", "claim_webhook")
)
UNFINISHED = (WebhookDeliveryState.PENDING, WebhookDeliveryState.SENDING)


def waiting(*, troubled: bool) -> QuerySet[WebhookEndpoint]:
    """The webhooks that have something due, of all tenants; `troubled` are those whose last attempt failed."""
    due = WebhookDelivery.objects.filter(
        endpoint_id=OuterRef("pk"), state__in=UNFINISHED, next_attempt_at__lte=Now()
    )
    ready = Q(paused_until=None) | Q(paused_until__lte=Now())
    rows = WebhookEndpoint.objects.filter(ready, Exists(due), enabled=True)
    return rows.filter(failures__gt=0) if troubled else rows.filter(failures=0)


def deliver_waiting(*, troubled: bool, limit: int = 500) -> int:
    """Send what is due, one webhook after the other in turn; returns how many were tried.

    Any number of processes may do this at once. Never raises for what a receiver does. Not inside a transaction.
    """
    close_old_connections()
    with _allowed(troubled) as allowed:
        return _deliver_in_turn(troubled, limit) if allowed else 0


def _deliver_in_turn(troubled: bool, limit: int) -> int:
    ends, tried, progress = time.monotonic() + SECONDS_AT_ONCE, 0, True
    while progress:
        progress = False
        for row in _IN_TURN.run({"troubled": troubled}, using=SYSTEM):
            if tried >= limit or time.monotonic() >= ends:
                return tried
            # None when others use the lane: they go on with it.
            if (claim := claimed(row.id)) is not None:
                deliver(claim)
                tried, progress = tried + 1, True
    return tried


def claimed(endpoint_id: UUID) -> Claim | None:
    """The delivery of this webhook that has waited longest, now this process's to send."""
    given = {
        "endpoint": endpoint_id,
        "lane": settings.ORCHESTRATOR_WEBHOOK_LANE,
        "lease": settings.ORCHESTRATOR_WEBHOOK_TIMEOUT_SECONDS + LEASE_SECONDS,
        "hanging": HANGING_SECONDS,
    }
    with transaction.atomic(using=SYSTEM):
        # Lock before reading: two claims at once would each count the lane without the other.
        if not _LOCK_LANE.run(given, using=SYSTEM):
            return None
        rows = _CLAIM.run(given, using=SYSTEM)
    return rows[0] if rows else None


def deliver(claim: Claim) -> None:
    """Send what was claimed, and say what came of it."""
    outcomes.note(claim, _attempted(claim))


def _attempted(claim: Claim) -> Outcome:
    if claim.event_number is not None and claim.event_kind is None:
        return Outcome(False, None, 0, outcomes.NOT_KEPT)
    try:
        secrets = signing.in_force(
            claim.tenant_id, claim.endpoint_id, claim.secret_sealed, claim.previous_until
        )
        return posting.post(claim.url, body_of(claim), message_id=str(claim.id), secrets=secrets)
    except ConfigurationError as error:
        return Outcome(False, None, 0, str(error))
    except Exception as error:
        logger.exception("Webhook broke", extra={"action": "webhook_broke", "delivery": str(claim.id)})
        return Outcome(False, None, 0, f"Our own mistake: {type(error).__name__}")


@contextmanager
def _allowed(troubled: bool) -> Iterator[bool]:
    """Whether one more deliverer may look after webhooks in trouble. The lock ends with its connection, so a dead one holds none."""
    if not troubled:
        yield True
        return
    with connections[SYSTEM].cursor() as cursor:
        held = None
        for place in range(TROUBLED_LOCK, TROUBLED_LOCK + TROUBLED_AT_ONCE):
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [place])
            if cursor.fetchone()[0]:
                held = place
                break
    try:
        yield held is not None
    finally:
        if held is not None:
            with system_scope(), connections[SYSTEM].cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [held])
