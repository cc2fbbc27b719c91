"""Webhooks: send events of a tenant to external programs, signed by the Standard Webhooks scheme, until they are accepted.

The statement that numbers an event (`tenants/events/sql/number.sql`) also writes a delivery for each subscribed webhook, in the same
transaction. Workers send deliveries from a queue, with no transaction open. A delivery may arrive twice, always with the same `webhook-id`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import close_old_connections
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce, Now

from activities.alerts import raise_alert
from activities.exceptions import ActivityError, NotFound
from activities.models.alert import AlertKind
from activities.notifications.delivery import claim_in_turn, deliver_many
from agents import credentials, outbound, webhook_signing
from agents.exceptions import AgentError, ConfigurationError
from agents.outbound.client import retry_after_seconds
from agents.redaction import excerpt
from agents.webhook_signing import sign
from tenants import clock
from tenants.context import SYSTEM, tenant_scope
from tenants.events.log import body_of
from tenants.models.events import Event, OffReason, WebhookDelivery, WebhookDeliveryState, WebhookEndpoint
from tenants.sql import Statement
from tenants.wire_json import dumps
from tenants.wording import describe_count

logger = logging.getLogger(__name__)

# The outcome of an attempt: the delivery has arrived, has failed, or waits for its next attempt. Failures of the webhook are counted.
#
# Retries follow the schedule that Standard Webhooks recommends. After each failure the webhook is paused for twice as long. It is switched
# off, with an alert, if nothing was delivered for days, or if its receiver answers that it is gone.


#: Seconds after each failed attempt except the last: 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h.
SCHEDULE = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
LONGEST_PAUSE = 300  # seconds; so a receiver that works again gets its events at the latest after this
NOT_KEPT = "The event is no longer stored."


def record_outcome(claim: Any, outcome: Outcome) -> None:
    """Record the outcome of the claim, unless the delivery has been claimed again since."""
    with tenant_scope(claim.tenant_id):
        own = WebhookDelivery.objects.for_tenant(claim.tenant_id).filter(
            pk=claim.id, fence=claim.fence, state=WebhookDeliveryState.SENDING
        )
        facts = {
            "response_status": outcome.status,
            "duration_ms": outcome.milliseconds,
            "error": outcome.error[:500],
        }
        endpoint = WebhookEndpoint.objects.for_tenant(claim.tenant_id).filter(pk=claim.endpoint_id)
        # The outcome at an address that was replaced during the attempt says nothing about the new one.
        called = endpoint.filter(url=claim.url)
        is_gone = outcome.is_gone and called.exists()
        if not own.update(**facts, **_next_state(claim, outcome, is_gone=is_gone)):
            return
        if outcome.error == NOT_KEPT:
            return  # not a failure of the receiver
        if outcome.was_accepted:
            called.exclude(failures=0).update(failures=0, failing_since=None, paused_until=None)
            return
        _record_failure(claim, outcome, called)
        if endpoint.filter(enabled=False).exclude(off_reason="").exists():
            # It was switched off during the attempt, and its pending deliveries were dropped, but not this one.
            _drop_pending(claim.tenant_id, pk=claim.id)


def _next_state(claim: Any, outcome: Outcome, *, is_gone: bool) -> dict[str, Any]:
    if outcome.was_accepted:
        return {"state": WebhookDeliveryState.DELIVERED, "ended_at": Now()}
    if claim.attempts > len(SCHEDULE) or is_gone or outcome.error == NOT_KEPT:
        return {"state": WebhookDeliveryState.FAILED, "ended_at": Now()}
    wait = max(SCHEDULE[claim.attempts - 1], outcome.retry_after or 0)
    return {"state": WebhookDeliveryState.PENDING, "next_attempt_at": Now() + timedelta(seconds=wait)}


def _record_failure(claim: Any, outcome: Outcome, endpoint: Any) -> None:
    pause = max(min(2 ** min(claim.failures, 20), LONGEST_PAUSE), outcome.retry_after or 0)
    endpoint.update(
        failures=F("failures") + 1,
        failing_since=Coalesce("failing_since", Now()),
        paused_until=Now() + timedelta(seconds=pause),
    )
    facts = {"webhook": str(claim.endpoint_id), "status": outcome.status, "attempt": claim.attempts}
    logger.warning("Webhook not delivered", extra={"action": "webhook_not_delivered", **facts})
    if outcome.is_gone:
        _switch_off(claim, endpoint, OffReason.GONE, "The receiver answered that it is gone (status 410).")
        return
    days = settings.ORCHESTRATOR_WEBHOOK_OFF_AFTER_DAYS
    too_long = endpoint.filter(failing_since__lte=clock.now() - timedelta(days=days))
    _switch_off(
        claim,
        too_long,
        OffReason.FAILING,
        f"Nothing was delivered for {describe_count(days, 'day')}. {outcome.error}",
    )


def _switch_off(claim: Any, endpoint: Any, reason: OffReason, why: str) -> None:
    """Switch the webhook off, drop its pending deliveries and raise an alert. Only one of several concurrent callers does it."""
    if not endpoint.filter(enabled=True).update(enabled=False, off_reason=reason, version=F("version") + 1):
        return
    dropped = _drop_pending(claim.tenant_id, endpoint_id=claim.endpoint_id)
    lost = describe_count(dropped, "delivery", "deliveries")
    raise_alert(
        claim.tenant_id,
        AlertKind.WEBHOOK_OFF,
        "A webhook was switched off",
        body=f"{why} Dropped: {lost}, which can be sent again. Change the webhook to switch it on.",
        facts={"webhook": claim.endpoint_id, "reason": reason.value, "dropped": dropped},
    )


def _drop_pending(tenant_id: UUID, **chosen: UUID) -> int:
    pending = WebhookDelivery.objects.for_tenant(tenant_id).filter(
        state=WebhookDeliveryState.PENDING, **chosen
    )
    return pending.update(state=WebhookDeliveryState.DROPPED, ended_at=Now())


# Delivery: sends what is due, with separate limits for each webhook.
#
# A delivery is claimed under the lock of its webhook, sent with no transaction open, and then marked. If the process died, the delivery is
# claimed again after its lease, so it may arrive twice, with the same `webhook-id`. A process that was wrongly taken for dead can no longer
# record an outcome.
#
# Webhooks whose last attempt failed are delivered separately, with few calls at once and growing pauses. So dead receivers delay only
# themselves, however many events wait for them. The claims limit the number of calls. They end with their lease, so a process that dies or
# freezes does not hold one forever.


# In addition to the time limit of an attempt, to record its outcome. While a claim lasts, its webhook gets nothing else, even if the
# process has died.
LEASE_SECONDS = 15.0
HANGING_SECONDS = 2.0  # while an attempt takes longer than this, its receiver gets no second call
# Calls of all workers to webhooks whose last attempt failed; races may add one per process.
TROUBLED_AT_ONCE = 16

#: A row of `sql/claim_webhook.sql`: the delivery with everything needed to send it.
Claim = Any

_FOLDER = Path(__file__).parent.parent / "sql"
_IN_TURN, _LOCK_LANE, _CLAIM = (
    Statement.load(_FOLDER, name) for name in ("webhooks_in_turn", "lock_webhook", "claim_webhook")
)
UNFINISHED = (WebhookDeliveryState.PENDING, WebhookDeliveryState.SENDING)


def deliveries_waiting(*, troubled: bool) -> QuerySet[WebhookEndpoint]:
    """Return the webhooks with due deliveries, of all tenants. `troubled` selects those whose last attempt failed."""
    due = WebhookDelivery.objects.filter(
        endpoint_id=OuterRef("pk"), state__in=UNFINISHED, next_attempt_at__lte=Now()
    )
    ready = Q(paused_until=None) | Q(paused_until__lte=Now())
    rows = WebhookEndpoint.objects.filter(ready, Exists(due), enabled=True)
    return rows.filter(failures__gt=0) if troubled else rows.filter(failures=0)


def deliver_waiting(*, troubled: bool, limit: int = 500) -> int:
    """Send what is due, many at once. Tenants and their webhooks take turns. Returns the number of attempts.

    A tenant has no more than `ORCHESTRATOR_DELIVERY_TENANT_LANE` calls in progress, over all processes, and the tenant with the fewest is
    next, so slow receivers delay only their own tenant. Safe in any number of processes at once. Never raises because of a receiver. Must
    not run inside a transaction.
    """
    close_old_connections()
    return deliver_many(
        f"webhooks {troubled}",
        due=lambda: [row.id for row in _IN_TURN.run(_bounds() | {"troubled": troubled}, using=SYSTEM)],
        claim=claim_delivery,
        attempt=_attempt_delivery,
        record=record_outcome,
        one_per_key=True,
        limit=limit,
    )


def _bounds() -> dict[str, int]:
    return {
        "lane": settings.ORCHESTRATOR_WEBHOOK_LANE,
        "tenant_lane": settings.ORCHESTRATOR_DELIVERY_TENANT_LANE,
        "troubled_lane": TROUBLED_AT_ONCE,
    }


def claim_delivery(endpoint_id: UUID) -> Claim | None:
    """Claim the delivery of this webhook that has waited longest, for this process to send."""
    parameters = {
        **_bounds(),
        "endpoint": endpoint_id,
        "lease": settings.ORCHESTRATOR_WEBHOOK_TIMEOUT_SECONDS + LEASE_SECONDS,
        "hanging": HANGING_SECONDS,
    }
    return claim_in_turn(_LOCK_LANE, _CLAIM, parameters)


def deliver(claim: Claim) -> None:
    """Send a claimed delivery, and record the outcome."""
    record_outcome(claim, _attempt_delivery(claim))


def _attempt_delivery(claim: Claim) -> Outcome:
    if claim.event_number is not None and claim.event_kind is None:
        return Outcome(False, None, 0, NOT_KEPT)
    try:
        secrets = secrets_in_force(
            claim.tenant_id, claim.endpoint_id, claim.secret_sealed, claim.previous_until
        )
        return post(claim.url, body_of(claim), message_id=str(claim.id), secrets=secrets)
    except ConfigurationError as error:
        return Outcome(False, None, 0, str(error))
    except Exception as error:
        logger.exception("Webhook failed", extra={"action": "webhook_broke", "delivery": str(claim.id)})
        return Outcome(False, None, 0, f"Internal error: {type(error).__name__}")


# One attempt: posts the event and interprets the answer.


MOST_BYTES = 64 * 1024  # of an answer, whose content does not matter
GONE = 410


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one attempt. `status` is None if there was no answer; `retry_after` is in seconds, from the answer."""

    was_accepted: bool
    status: int | None
    milliseconds: int
    error: str = ""
    retry_after: float | None = None

    @property
    def is_gone(self) -> bool:
        return self.status == GONE


def post(url: str, content: Mapping[str, Any], *, message_id: str, secrets: Sequence[str]) -> Outcome:
    """Post the content once, without following redirects. Never raises because of the receiver or the network. Must not run inside a
    transaction."""
    body = dumps(content)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "orchestrator-webhooks/1",
        # The receiver may close a reused connection at any moment, which would cost an attempt.
        "Connection": "close",
        **sign(message_id=message_id, body=body, secrets=secrets),
    }
    began = time.monotonic()
    try:
        answer = outbound.send(
            "POST",
            url,
            headers=headers,
            body=body,
            deadline_seconds=settings.ORCHESTRATOR_WEBHOOK_TIMEOUT_SECONDS,
            max_bytes=MOST_BYTES,
            purpose=outbound.WEBHOOKS,
            only_status=True,
        )
    except AgentError as error:
        return Outcome(False, None, _ms_since(began), excerpt(str(error), secrets=secrets))
    if 200 <= answer.status < 300:
        return Outcome(True, answer.status, _ms_since(began))
    text = excerpt(answer.body, secrets=(url, *secrets))
    return Outcome(
        False,
        answer.status,
        _ms_since(began),
        f"The receiver answered with status {answer.status}" + (f": {text}" if text else "."),
        retry_after_seconds(answer.headers.get("retry-after")),
    )


def _ms_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


# Deliveries at a person's request: a test, or an ended delivery again.


TEST = "webhook.test"


def send_test(endpoint: WebhookEndpoint) -> WebhookDelivery:
    """Queue a test message. Raises `ActivityError` if it is switched off. Must run in a `tenant_scope`."""
    _refuse_off(endpoint)
    return WebhookDelivery.objects.create(tenant_id=endpoint.tenant_id, endpoint=endpoint, kind=TEST)


def send_again(endpoint: WebhookEndpoint, delivery_id: UUID) -> WebhookDelivery:
    """Start an ended delivery again with all its attempts and the same `webhook-id`. Must run in a `tenant_scope`.

    Raises `NotFound`, and `ActivityError` if the webhook is off, the delivery has not ended or its event is gone.
    """
    _refuse_off(endpoint)
    own = WebhookDelivery.objects.for_tenant(endpoint.tenant_id).filter(pk=delivery_id, endpoint=endpoint)
    delivery: WebhookDelivery = own.first_or_raise(NotFound("delivery", delivery_id))
    events = Event.objects.for_tenant(endpoint.tenant_id)
    if delivery.event_number is not None and not events.filter(number=delivery.event_number).exists():
        raise ActivityError(
            f"Event {delivery.event_number} is no longer kept.", code="events_gone", status=410
        )
    ended = own.exclude(state__in=(WebhookDeliveryState.PENDING, WebhookDeliveryState.SENDING))
    if not ended.update(state=WebhookDeliveryState.PENDING, attempts=0, next_attempt_at=Now(), ended_at=None):
        raise ActivityError("The delivery is still in progress.", code="delivery_under_way")
    delivery.refresh_from_db()
    return delivery


def _refuse_off(endpoint: WebhookEndpoint) -> None:
    if not endpoint.enabled:
        raise ActivityError("The webhook is switched off.", code="webhook_off")


# Signing secrets of webhooks: stored encrypted, decrypted only to sign, returned only once.


OVERLAP = timedelta(hours=24)  # in which the receiver may switch to the new secret


def renew_secret(endpoint: WebhookEndpoint) -> str:
    """Set and return a new secret, without saving the webhook. The previous one, if it can be read, also signs for a day."""
    new, previous = webhook_signing.new_secret(), tuple[str, ...]()
    if endpoint.secret_sealed:
        with suppress(ConfigurationError):  # its encryption key is gone
            previous = _open_secrets(endpoint.tenant_id, endpoint.pk, endpoint.secret_sealed)[:1]
    fields = {"secrets": " ".join((new, *previous))}
    endpoint.secret_sealed = credentials.seal(fields, context=context_of(endpoint.tenant_id, endpoint.pk))
    endpoint.previous_until = clock.now() + OVERLAP if previous else None
    return new


def secrets_in_force(
    tenant_id: UUID, endpoint_id: UUID, sealed: str, previous_until: datetime | None
) -> tuple[str, ...]:
    """Return the secrets that sign now, newest first. Raises `agents.exceptions.ConfigurationError` if their encryption key is gone."""
    secrets = _open_secrets(tenant_id, endpoint_id, sealed)
    return secrets if previous_until is not None and previous_until > clock.now() else secrets[:1]


def context_of(tenant_id: UUID, endpoint_id: UUID) -> str:
    return f"webhook:{tenant_id}:{endpoint_id}:secrets"


def _open_secrets(tenant_id: UUID, endpoint_id: UUID, sealed: str) -> tuple[str, ...]:
    return tuple(credentials.unseal(sealed, context=context_of(tenant_id, endpoint_id))["secrets"].split())
