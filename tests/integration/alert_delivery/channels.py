"""Notification channels of a tenant, alerts for them, and the state of their deliveries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from activities.alerts import raise_alert
from activities.models import AlertDelivery, NotificationChannel
from activities.notifications import backends
from tenants.context import tenant_scope
from tenants.models import Tenant


def channel_of(tenant: Tenant, kind: str, address: str, name: str = "") -> NotificationChannel:
    channel = NotificationChannel(tenant=tenant, kind=kind, name=name or kind)
    backends.put_target(channel, address)
    with tenant_scope(tenant.pk):
        channel.save(force_insert=True)
    return channel


def make_alert(tenant: Tenant, title: str = "It failed", **fields: Any) -> UUID:
    with tenant_scope(tenant.pk):
        alert_id = raise_alert(tenant.pk, "dead_letter", title, **fields)
    assert alert_id is not None
    return alert_id


def deliveries(tenant: Tenant) -> list[AlertDelivery]:
    with tenant_scope(tenant.pk):
        return list(AlertDelivery.objects.order_by("pk"))


def the_delivery(tenant: Tenant) -> AlertDelivery:
    (delivery,) = deliveries(tenant)
    return delivery


def states(tenant: Tenant) -> list[str]:
    return [delivery.state for delivery in deliveries(tenant)]


def make_due(tenant: Tenant) -> None:
    """Make every delivery due, also those of a deliverer that died."""
    with tenant_scope(tenant.pk):
        AlertDelivery.objects.update(next_attempt_at=Now(), claimed_at=Now() - timedelta(minutes=5))


def wait_of(delivery: AlertDelivery) -> float:
    with tenant_scope(delivery.tenant_id):
        now = AlertDelivery.objects.annotate(now=Now()).values_list("now", flat=True).get(pk=delivery.pk)
    return float((delivery.next_attempt_at - now).total_seconds())


def waits_between(delivery: AlertDelivery, least: float, most: float) -> bool:
    """Whether the next attempt is due at least so many seconds after the last one began, and at most so many from now."""
    assert delivery.next_attempt_at
    assert delivery.claimed_at
    since_claim = delivery.next_attempt_at - delivery.claimed_at
    return since_claim.total_seconds() > least and wait_of(delivery) <= most
