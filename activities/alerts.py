"""Alerts: what people must be told, inside the application at once and outside of it as soon as it can be sent.

`raise_alert` writes the notice and one delivery per channel in the transaction of what happened, so neither is ever without the
other. Deliverers carry them out later, from a queue, with no transaction open.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings
from django.db.models.functions import Now
from psycopg.types.json import Jsonb

from activities.exceptions import NotFound
from activities.models import Alert, AlertDelivery, NotificationChannel
from activities.models.alert import AlertKind, ChannelKind, Severity
from agents import registry
from agents.models import Agent, Health
from agents.redaction import excerpt
from tenants.context import tenant_scope
from tenants.identifiers import uuid7
from tenants.models import Channel
from tenants.sql import Statement

# Raising: an alert and its deliveries become rows in the transaction of what they tell of. Nothing is sent here.


LONGEST_TITLE = 200
LONGEST_BODY = 10_000
PLATFORM = "platform"  # the name under which the platform's own channels are shown

_RAISE = Statement.load(Path(__file__).parent / "sql", "raise_alert")

#: Kind, id and name. Without an id it is the platform's.
Recipient = tuple[str, UUID | None, str]


def raise_alert(
    tenant_id: UUID,
    kind: AlertKind | str,
    title: str,
    *,
    body: str = "",
    severity: Severity | str = Severity.WARNING,
    activity_id: UUID | None = None,
    facts: Mapping[str, Any] | None = None,
    dedup_key: str | None = None,
    platform: bool = True,
    without: Container[str] = (),
) -> UUID | None:
    """Tell people of something. Returns the alert's id, or None when there is one with this `dedup_key` already.

    Must run in the caller's `tenant_scope`, in the transaction of what happened. One statement, and one more when there is a
    channel; no row is locked but that of an equal key. `title` and `body` may hold text from outside, which is cut and never makes
    the caller's transaction fail. `facts` are for programs: ids, times and figures. Without `platform`, the platform's own channels are
    not told, for what concerns several tenants and is told to them once. Channels of the kinds `without` are not told.
    """
    alert_id = uuid7()
    found = _RAISE.run(
        {
            "id": alert_id,
            "tenant": tenant_id,
            "kind": AlertKind(kind).value,
            "severity": Severity(severity).value,
            "title": excerpt(title, limit=LONGEST_TITLE) or AlertKind(kind).label,
            "body": body.replace("\x00", "")[:LONGEST_BODY],
            "activity_id": activity_id,
            "facts": Jsonb(facts or {}, dumps=partial(orjson.dumps, default=str)),
            "dedup_key": dedup_key,
        }
    )
    if not found:
        return None
    targets = [(row.channel_kind, row.channel_id, row.channel_name) for row in found if row.channel_id]
    channels = (*targets, *(platform_channels() if platform else ()))
    _queue(tenant_id, alert_id, [channel for channel in channels if channel[0] not in without])
    return alert_id


def try_channel(channel: NotificationChannel, *, actor: str) -> Alert:
    """Have an alert that says nothing sent to this one channel. In the caller's `tenant_scope`."""
    title = f"A test of the channel {channel.name}"
    return tell_channel(channel, AlertKind.TEST, title, body=f"Asked for by {actor}. Nothing has happened.")


def tell_channel(
    channel: NotificationChannel, kind: AlertKind, title: str, *, body: str, **fields: Any
) -> Alert:
    """Tell this one channel of something that is not a problem. In the caller's `tenant_scope`."""
    if fields.get("acknowledged_by"):
        fields["acknowledged_at"] = Now()  # nobody has to see it inside the application
    alert = Alert.objects.create(
        tenant_id=channel.tenant_id,
        kind=kind,
        severity=Severity.INFO,
        title=excerpt(title, limit=LONGEST_TITLE),
        body=body.replace("\x00", "")[:LONGEST_BODY],
        **fields,
    )
    _queue(channel.tenant_id, alert.pk, [(channel.kind, channel.pk, channel.name)])
    return alert


def platform_channels() -> Iterator[Recipient]:
    """The channels of the platform's operators, which get the alerts of every tenant."""
    if settings.SLACK_WEBHOOK_URL:
        yield ChannelKind.SLACK.value, None, PLATFORM
    if settings.ALERT_EMAIL:
        yield ChannelKind.EMAIL.value, None, PLATFORM


def _queue(tenant_id: UUID, alert_id: UUID, channels: Iterable[Recipient]) -> None:
    AlertDelivery.objects.bulk_create(
        AlertDelivery(
            tenant_id=tenant_id,
            alert_id=alert_id,
            channel_kind=kind,
            channel_id=channel_id,
            channel_name=name,
        )
        for kind, channel_id, name in channels
    )


# Acknowledging: somebody has seen an alert. The first to say so is the one who is named.


def acknowledge(tenant_id: UUID, alert_id: UUID, *, actor: str) -> Alert:
    """Idempotent. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        own = Alert.objects.for_tenant(tenant_id).filter(pk=alert_id)
        own.filter(acknowledged_at=None).update(acknowledged_at=Now(), acknowledged_by=actor)
        found: Alert | None = own.first()
    if found is None:
        raise NotFound("alert", alert_id)
    return found


# Occasions of alerts that are told by signals of the apps below.


def tell_of_expired_channel(sender: Any, *, channel: Channel, **kwargs: Any) -> None:
    """Once for each time that the channel expires."""
    raise_alert(
        channel.tenant_id,
        AlertKind.CHANNEL_EXPIRED,
        f"The channel {channel.name} ({channel.kind}) has expired",
        body="Agents cannot use it until somebody signs in there again and reactivates it.",
        facts={"channel": channel.pk, "kind": channel.kind, "expires_at": channel.expires_at},
        dedup_key=f"channel_expired:{channel.pk}:{channel.version}",
    )


def tell_of_expiring_channel(sender: Any, *, channel: Channel, **kwargs: Any) -> bool:
    """Once for each time at which the channel would expire. True when this call told of it."""
    alert = raise_alert(
        channel.tenant_id,
        AlertKind.CHANNEL_EXPIRING,
        f"The channel {channel.name} ({channel.kind}) expires soon",
        body=f"Renew its access before {channel.expires_at:%Y-%m-%d %H:%M} UTC, and put the new time at the channel.",
        facts={"channel": channel.pk, "kind": channel.kind, "expires_at": channel.expires_at},
        dedup_key=f"channel_expiring:{channel.pk}:{channel.expires_at:%Y%m%dT%H%M%S}",
    )
    return alert is not None


def tell_of_agent_health(sender: Any, *, agent: Agent, **kwargs: Any) -> None:
    """Once for each change, in every tenant whose schedules, pipelines or open work need the agent; the platform's channels once."""
    away = agent.health == Health.UNHEALTHY
    title = (
        f"The agent {agent.role} cannot be reached"
        if away
        else f"The agent {agent.role} can be reached again"
    )
    found = registry.references_to(agent.role)
    for number, tenant_id in enumerate(dict.fromkeys(reference.tenant_id for reference in found)):
        needs_it = [reference for reference in found if reference.tenant_id == tenant_id]
        raise_alert(
            tenant_id,
            AlertKind.AGENT_HEALTH,
            title,
            # Not why: the reason names the endpoint, which is the platform's own affair.
            body=f"It is needed by: {registry.references_in_words(needs_it)}. The agent's page in the admin says more.",
            severity=Severity.WARNING if away else Severity.INFO,
            facts={"role": agent.role, "health": agent.health, "checked_at": agent.health_checked_at},
            dedup_key=f"agent_health:{agent.role}:{agent.health}:{agent.health_checked_at:%Y%m%dT%H%M%S.%f}",
            platform=number == 0,
        )
