"""Composing: the digests that are due become alerts with one delivery each. Nothing is sent here.

A channel that was due several times while nothing ran gets one digest, of the last whole period.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Now
from django.template.loader import render_to_string

from activities.alerts.messages import site
from activities.alerts.raising import tell_channel
from activities.digests import figures, periods
from activities.models import Alert, NotificationChannel
from activities.models.alert import AlertKind, ChannelKind
from tenants import clock
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant

logger = logging.getLogger(__name__)

AT_ONCE = 50  # of one message from the queue; then others get their turn


def due(now: Any = None) -> QuerySet[NotificationChannel]:
    """Channels whose time has come, of all tenants in a `system_scope`."""
    wanted = NotificationChannel.objects.filter(kind=ChannelKind.EMAIL, enabled=True, tenant__is_active=True)
    return wanted.filter(digest_due_at__lte=Now() if now is None else now)


def send_due(*, now: datetime | None = None) -> int:
    """Compose what is due; returns how many digests there are to be sent now. Any number of processes may do it at once."""
    moment = now or clock.now()
    with system_scope():
        rows = due(moment).order_by("digest_due_at", "pk").values_list("tenant_id", "pk")
        found = list(rows[:AT_ONCE])
    return sum(_composed(tenant_id, channel_id, moment) for tenant_id, channel_id in found)


def _composed(tenant_id: UUID, channel_id: UUID, now: datetime) -> bool:
    try:
        with tenant_scope(tenant_id):
            return _compose(tenant_id, channel_id, now)
    except Exception:
        # One that cannot be composed must not keep the others from it. It is due again at the next look.
        logger.exception("Digest broke", extra={"action": "digest_broke", "channel": str(channel_id)})
        return False


def _compose(tenant_id: UUID, channel_id: UUID, now: datetime) -> bool:
    channel = NotificationChannel.objects.for_tenant(tenant_id).filter(pk=channel_id).first()
    tenant = Tenant.objects.get(pk=tenant_id)
    if channel is None or not _moved_on(channel, tenant, now):
        return False
    period = periods.period_before(channel.digest, periods.zone_of(tenant.timezone), now)
    key = f"digest:{channel.pk}:{channel.digest}:{period.first}"
    told = figures.figures(tenant_id, period, channel.digest_roles, now=now)
    if figures.says_nothing(told) or Alert.objects.for_tenant(tenant_id).filter(dedup_key=key).exists():
        return False
    told |= {"tenant": tenant.name or tenant.slug, "channel": channel.name, "digest": channel.digest}
    told |= {"inbox": f"{site()}/inbox/?tenant={tenant.slug}"}
    title = f"{told['tenant']}: {channel.digest} digest, {period.in_words}"
    body = render_to_string("mail/digest.txt", told)
    tell_channel(
        channel, AlertKind.DIGEST, title, body=body, facts=told, dedup_key=key, acknowledged_by="digest"
    )
    return True


def _moved_on(channel: NotificationChannel, tenant: Tenant, now: datetime) -> bool:
    """Set the next time, if it still is the one that was seen: of two who see it due, one composes."""
    seen = channel.digest_due_at
    if seen is None or seen > now:
        return False
    following = periods.next_due(channel.digest, periods.zone_of(tenant.timezone), after=now)
    rows = NotificationChannel.objects.for_tenant(tenant.pk).filter(
        pk=channel.pk, digest=channel.digest, digest_due_at=seen
    )
    return bool(rows.update(digest_due_at=following))
