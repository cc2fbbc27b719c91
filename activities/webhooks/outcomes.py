"""What comes of an attempt: the delivery is marked or waits for its next try, and the webhook is trusted more or less.

Retries follow the schedule that Standard Webhooks recommends. A webhook whose attempts fail is left alone for a pause that doubles, and is
switched off when nothing was delivered for days, or when its receiver says that it is gone; people are told by an alert.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import F
from django.db.models.functions import Coalesce, Now

from activities.alerts.raising import raise_alert
from activities.models.alert import AlertKind
from activities.webhooks.posting import Outcome
from tenants import clock
from tenants.context import tenant_scope
from tenants.events.models import OffReason, WebhookDelivery, WebhookDeliveryState, WebhookEndpoint

logger = logging.getLogger(__name__)

#: Seconds after each failed attempt but the last: 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h.
SCHEDULE = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
LONGEST_PAUSE = 300  # seconds; how long a receiver that is back waits for its events at most
NOT_KEPT = "The event is no longer kept."


def note(claim: Any, outcome: Outcome) -> None:
    """Say what came of the claim, unless it was claimed anew since."""
    with tenant_scope(claim.tenant_id):
        own = WebhookDelivery.objects.for_tenant(claim.tenant_id).filter(
            pk=claim.id, fence=claim.fence, state=WebhookDeliveryState.SENDING
        )
        facts = {
            "response_status": outcome.status,
            "duration_ms": outcome.milliseconds,
            "error": outcome.error[:500],
        }
        if not own.update(**facts, **_next(claim, outcome)):
            return
        if outcome.error == NOT_KEPT:
            return  # which says nothing about the receiver
        endpoint = WebhookEndpoint.objects.for_tenant(claim.tenant_id).filter(pk=claim.endpoint_id)
        if outcome.taken:
            endpoint.exclude(failures=0).update(failures=0, failing_since=None, paused_until=None)
            return
        _distrust(claim, outcome, endpoint)


def _next(claim: Any, outcome: Outcome) -> dict[str, Any]:
    if outcome.taken:
        return {"state": WebhookDeliveryState.DELIVERED, "ended_at": Now()}
    if claim.attempts > len(SCHEDULE) or outcome.is_gone or outcome.error == NOT_KEPT:
        return {"state": WebhookDeliveryState.FAILED, "ended_at": Now()}
    wait = max(SCHEDULE[claim.attempts - 1], outcome.retry_after or 0)
    return {"state": WebhookDeliveryState.PENDING, "next_attempt_at": Now() + timedelta(seconds=wait)}


def _distrust(claim: Any, outcome: Outcome, endpoint: Any) -> None:
    pause = max(min(2 ** min(claim.failures, 20), LONGEST_PAUSE), outcome.retry_after or 0)
    endpoint.update(
        failures=F("failures") + 1,
        failing_since=Coalesce("failing_since", Now()),
        paused_until=Now() + timedelta(seconds=pause),
    )
    facts = {"webhook": str(claim.endpoint_id), "status": outcome.status, "attempt": claim.attempts}
    logger.warning("Webhook not delivered", extra={"action": "webhook_not_delivered", **facts})
    if outcome.is_gone:
        _switch_off(claim, endpoint, OffReason.GONE, "The receiver says that it is gone (status 410).")
        return
    days = settings.ORCHESTRATOR_WEBHOOK_OFF_AFTER_DAYS
    too_long = endpoint.filter(failing_since__lte=clock.now() - timedelta(days=days))
    _switch_off(
        claim, too_long, OffReason.FAILING, f"Nothing was delivered for {days:g} days. {outcome.error}"
    )


def _switch_off(claim: Any, endpoint: Any, reason: OffReason, why: str) -> None:
    """Once, whoever comes to it at the same time; what waits is dropped."""
    if not endpoint.filter(enabled=True).update(enabled=False, off_reason=reason, version=F("version") + 1):
        return
    waiting = WebhookDelivery.objects.for_tenant(claim.tenant_id).filter(
        endpoint_id=claim.endpoint_id, state=WebhookDeliveryState.PENDING
    )
    dropped = waiting.update(state=WebhookDeliveryState.DROPPED, ended_at=Now())
    raise_alert(
        claim.tenant_id,
        AlertKind.WEBHOOK_OFF,
        "A webhook was switched off",
        body=f"{why} {dropped} deliveries were dropped; they can be sent again. Change the webhook to switch it on.",
        facts={"webhook": claim.endpoint_id, "reason": reason.value, "dropped": dropped},
    )
