"""Occasions of alerts that are told by signals of the apps below."""

from __future__ import annotations

from typing import Any

from activities.alerts.raising import raise_alert
from activities.models.alert import AlertKind
from tenants.models import Channel


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
