"""The status of channels, a tenant's external connections. Only this module writes it.

Every change is a compare-and-set, so two concurrent calls make one change. A channel expires because an agent was refused, because
a person says so, or because its expiry time is reached; each way sends `channel_expired` once, in the same transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Case, CharField, F, Q, QuerySet, Value, When
from django.db.models.functions import Now

from tenants import clock, outages, sweeps
from tenants.context import tenant_scope
from tenants.exceptions import NotFound, TenantError
from tenants.models import Channel, ChannelStatus
from tenants.signals import channel_expired, channel_expiring
from tenants.sweeps import Sweep

logger = logging.getLogger(__name__)

_DUE, _SOON = Sweep[Any](), Sweep[Any]()

#: The current status: a channel after its expiry time has expired, even if no sweep has marked it yet.
STANDING = Case(
    When(Q(status=ChannelStatus.ACTIVE, expires_at__lte=Now()), then=Value(ChannelStatus.EXPIRED.value)),
    default=F("status"),
    output_field=CharField(),
)


def expire(tenant_id: UUID, channel_id: UUID, *, seen_at: datetime | None = None) -> bool:
    """Mark the channel as expired. Return whether this call marked it.

    Return False when it has already expired, is disabled, or is not a channel of this tenant. With `seen_at`, also when somebody has
    reactivated it since then, because the agent's observation is older.
    """
    unchanged = Q() if seen_at is None else Q(status_since__lte=seen_at)
    with tenant_scope(tenant_id):
        return _expire(tenant_id, channel_id, unchanged)


def expire_due() -> int:
    """Mark the channels of all tenants whose expiry time is reached. Return how many. Safe to run concurrently."""
    due = Channel.objects.filter(status=ChannelStatus.ACTIVE, expires_at__lte=Now())
    return _each(_DUE, due, _expire_if_due)


def announce_expiring() -> int:
    """Notify people, a day ahead, of the channels of all tenants that will expire. Return for how many channels.

    People renew the access in the external system. A channel that gets a later `expires_at` is announced again. Safe to run concurrently.
    """
    until = Now() + timedelta(seconds=settings.ORCHESTRATOR_CHANNEL_NOTICE_SECONDS)
    soon = Channel.objects.filter(status=ChannelStatus.ACTIVE, expires_at__gt=Now(), expires_at__lte=until)
    return _each(_SOON, soon, _announce)


def _each(sweep: Sweep[Any], channels: QuerySet[Channel], action: Callable[[UUID, UUID], bool]) -> int:
    done = 0
    for _, channel_id, tenant_id in sweep.turn(sweeps.pages(channels, "expires_at", "pk", "tenant_id")):
        with outages.one_of_many(
            logger, "A channel of a sweep failed", action="channel_sweep_failed", channel=str(channel_id)
        ):
            done += action(tenant_id, channel_id)
    return done


def _announce(tenant_id: UUID, channel_id: UUID) -> bool:
    with tenant_scope(tenant_id):
        channel = (
            Channel.objects.for_tenant(tenant_id).filter(pk=channel_id, status=ChannelStatus.ACTIVE).first()
        )
        if channel is None:
            return False
        return any(changed_work for _, changed_work in channel_expiring.send(sender=Channel, channel=channel))


def reactivate(tenant_id: UUID, channel_id: UUID, *, expires_at: datetime | None = None) -> Channel:
    """Mark the channel as active again, until `expires_at` if that is known. Idempotent.

    A past expiry time is removed. Raises `NotFound`, or `TenantError` for a time in the past.
    """
    if expires_at is not None and expires_at <= clock.now():
        raise TenantError(
            f"{expires_at:%Y-%m-%dT%H:%M:%SZ} is in the past.", code="expiry_in_the_past", status=400
        )
    until: Any = expires_at or Case(When(expires_at__gt=Now(), then=F("expires_at")), default=None)
    with tenant_scope(tenant_id):
        rows = Channel.objects.for_tenant(tenant_id).filter(pk=channel_id)
        in_force = Q(status=ChannelStatus.ACTIVE) & (Q(expires_at=None) | Q(expires_at__gt=Now()))
        _set(rows.exclude(in_force), ChannelStatus.ACTIVE, expires_at=until)
        if expires_at is not None:
            rows.exclude(expires_at=expires_at).update(expires_at=expires_at, version=F("version") + 1)
        return _get(tenant_id, channel_id)


def disable(tenant_id: UUID, channel_id: UUID) -> Channel:
    """Switch the channel off. Idempotent. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        rows = Channel.objects.for_tenant(tenant_id).filter(pk=channel_id)
        _set(rows.exclude(status=ChannelStatus.DISABLED), ChannelStatus.DISABLED)
        return _get(tenant_id, channel_id)


def _expire(tenant_id: UUID, channel_id: UUID, condition: Q) -> bool:
    active = Channel.objects.for_tenant(tenant_id).filter(
        condition, pk=channel_id, status=ChannelStatus.ACTIVE
    )
    moved = bool(_set(active, ChannelStatus.EXPIRED))
    if moved:
        channel_expired.send(sender=Channel, channel=_get(tenant_id, channel_id))
    return moved


def _expire_if_due(tenant_id: UUID, channel_id: UUID) -> bool:
    with tenant_scope(tenant_id):
        return _expire(tenant_id, channel_id, Q(expires_at__lte=Now()))


def _set(rows: QuerySet[Any], status: ChannelStatus, **changes: Any) -> int:
    return rows.update(status=status, status_since=Now(), version=F("version") + 1, **changes)


def _get(tenant_id: UUID, channel_id: UUID) -> Channel:
    rows = Channel.objects.for_tenant(tenant_id).annotate(standing=STANDING)
    channel: Channel = rows.get_or_raise(NotFound, "channel", channel_id)
    return channel
