"""Deliveries on somebody's word: a test, and one that has ended sent again."""

from __future__ import annotations

from uuid import UUID

from django.db.models.functions import Now

from activities.exceptions import ActivityError
from tenants.events.models import Event, WebhookDelivery, WebhookDeliveryState, WebhookEndpoint

TEST = "webhook.test"


class WebhookOff(ActivityError):
    """The webhook is switched off, so nothing is sent there."""

    code = "webhook_off"


class DeliveryNotFound(ActivityError):
    """The webhook has no such delivery."""

    code = "not_found"
    status = 404


class DeliveryUnderWay(ActivityError):
    """The delivery has not ended yet."""

    code = "delivery_under_way"


class EventNotKept(ActivityError):
    """The event of this delivery is no longer kept, so there is nothing to send."""

    code = "events_gone"
    status = 410


def test(endpoint: WebhookEndpoint) -> WebhookDelivery:
    """Have a message sent that says nothing. In the caller's `tenant_scope`. Raises `WebhookOff`."""
    _refuse_off(endpoint)
    return WebhookDelivery.objects.create(tenant_id=endpoint.tenant_id, endpoint=endpoint, kind=TEST)


def send_again(endpoint: WebhookEndpoint, delivery_id: UUID) -> WebhookDelivery:
    """Begin a delivery that has ended anew, with all its attempts, under the same `webhook-id`. In the caller's `tenant_scope`.

    Raises `WebhookOff`, `DeliveryNotFound`, `DeliveryUnderWay` or `EventNotKept`.
    """
    _refuse_off(endpoint)
    own = WebhookDelivery.objects.for_tenant(endpoint.tenant_id).filter(pk=delivery_id, endpoint=endpoint)
    found: WebhookDelivery | None = own.select_for_update().first()
    if found is None:
        raise DeliveryNotFound(f"There is no delivery {delivery_id}.")
    if found.state in (WebhookDeliveryState.PENDING, WebhookDeliveryState.SENDING):
        raise DeliveryUnderWay("The delivery is still under way.")
    events = Event.objects.for_tenant(endpoint.tenant_id)
    if found.event_number is not None and not events.filter(number=found.event_number).exists():
        raise EventNotKept(f"Event {found.event_number} is no longer kept.")
    own.update(state=WebhookDeliveryState.PENDING, attempts=0, next_attempt_at=Now(), ended_at=None)
    found.refresh_from_db()
    return found


def _refuse_off(endpoint: WebhookEndpoint) -> None:
    if not endpoint.enabled:
        raise WebhookOff("The webhook is switched off.")
