"""Alerts: notify people, inside the application at once and over channels as soon as a delivery succeeds.

`raise_alert` writes the alert and one delivery per channel in the transaction of the event, so neither exists without the other.
Background workers send the deliveries later, with no transaction open.
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

LONGEST_TITLE = 200
LONGEST_BODY = 10_000
PLATFORM = "platform"  # the displayed name of the platform's own channels

_RAISE = Statement.load(Path(__file__).parent / "sql", "raise_alert")

#: Kind, id and name of a channel. The id of a platform channel is None.
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
    """Raise an alert. Returns its id, or None if an alert with this `dedup_key` exists already.

    Must run in the caller's `tenant_scope`, in the transaction of the event. Runs one statement, and a second one if there is a channel;
    it locks only a row with an equal key. `title` and `body` may hold text from outside: it is cut, and never makes the caller's
    transaction fail. `facts` are for programs: ids, times and figures. `platform=False` skips the platform's own channels, for
    events that concern several tenants and are sent there once. Channels of the kinds in `without` are skipped.
    """
    alert_id = uuid7()
    rows = _RAISE.run(
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
    if not rows:
        return None
    targets = [(row.channel_kind, row.channel_id, row.channel_name) for row in rows if row.channel_id]
    channels = (*targets, *(platform_channels() if platform else ()))
    _queue(tenant_id, alert_id, [channel for channel in channels if channel[0] not in without])
    return alert_id


def try_channel(channel: NotificationChannel, *, actor: str) -> Alert:
    """Send a test alert to this channel only. In the caller's `tenant_scope`."""
    title = f"A test of the channel {channel.name}"
    body = f"Requested by {actor}. No problem has occurred."
    return notify_channel(channel, AlertKind.TEST, title, body=body)


def notify_channel(
    channel: NotificationChannel, kind: AlertKind, title: str, *, body: str, **fields: Any
) -> Alert:
    """Send an alert that reports no problem to this channel only. In the caller's `tenant_scope`."""
    if fields.get("acknowledged_by"):
        fields["acknowledged_at"] = Now()  # nobody has to acknowledge it inside the application
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
    """Return the channels of the platform's operators, which receive the alerts of every tenant."""
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


def acknowledge(tenant_id: UUID, alert_id: UUID, *, actor: str) -> Alert:
    """Record who acknowledged an alert first. Idempotent. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        own = Alert.objects.for_tenant(tenant_id).filter(pk=alert_id)
        own.filter(acknowledged_at=None).update(acknowledged_at=Now(), acknowledged_by=actor)
        alert: Alert = own.first_or_raise(NotFound("alert", alert_id))
        return alert


# Receivers of signals from the apps below.


def alert_expired_channel(sender: Any, *, channel: Channel, **kwargs: Any) -> None:
    """Raise an alert once for each time that the channel expires."""
    raise_alert(
        channel.tenant_id,
        AlertKind.CHANNEL_EXPIRED,
        f"The channel {channel.name} ({channel.kind}) has expired",
        body="Agents cannot use it until somebody signs in there again and reactivates it.",
        facts={"channel": channel.pk, "kind": channel.kind, "expires_at": channel.expires_at},
        dedup_key=f"channel_expired:{channel.pk}:{channel.version}",
    )


def alert_expiring_channel(sender: Any, *, channel: Channel, **kwargs: Any) -> bool:
    """Raise an alert once for each `expires_at` of the channel. Returns whether this call raised it."""
    alert_id = raise_alert(
        channel.tenant_id,
        AlertKind.CHANNEL_EXPIRING,
        f"The channel {channel.name} ({channel.kind}) expires soon",
        body=f"Renew its access before {channel.expires_at:%Y-%m-%d %H:%M} UTC, and enter the new time in the channel.",
        facts={"channel": channel.pk, "kind": channel.kind, "expires_at": channel.expires_at},
        dedup_key=f"channel_expiring:{channel.pk}:{channel.expires_at:%Y%m%dT%H%M%S}",
    )
    return alert_id is not None


def alert_agent_health(sender: Any, *, agent: Agent, **kwargs: Any) -> None:
    """Raise an alert once per change, for every tenant whose schedules, pipelines or open work need the agent.

    The platform's channels receive it once.
    """
    unhealthy = agent.health == Health.UNHEALTHY
    title = (
        f"The agent {agent.role} cannot be reached"
        if unhealthy
        else f"The agent {agent.role} can be reached again"
    )
    references = registry.references_to(agent.role)
    for number, tenant_id in enumerate(dict.fromkeys(reference.tenant_id for reference in references)):
        own_references = [reference for reference in references if reference.tenant_id == tenant_id]
        raise_alert(
            tenant_id,
            AlertKind.AGENT_HEALTH,
            title,
            # Without the reason, because it names the endpoint, which tenants must not see.
            body=f"It is needed by: {registry.references_in_words(own_references)}. The agent's page in the admin says more.",
            severity=Severity.WARNING if unhealthy else Severity.INFO,
            facts={"role": agent.role, "health": agent.health, "checked_at": agent.health_checked_at},
            dedup_key=f"agent_health:{agent.role}:{agent.health}:{agent.health_checked_at:%Y%m%dT%H%M%S.%f}",
            platform=number == 0,
        )
