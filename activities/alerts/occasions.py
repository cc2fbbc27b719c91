"""Occasions of alerts that are told by signals of the apps below."""

from __future__ import annotations

from typing import Any

from activities.alerts.raising import raise_alert
from activities.models.alert import AlertKind, Severity
from agents import references
from agents.models import Agent, Health
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


def tell_of_agent_health(sender: Any, *, agent: Agent, **kwargs: Any) -> None:
    """Once for each change, in every tenant whose schedules, pipelines or open work need the agent; the platform's channels once."""
    away = agent.health == Health.UNHEALTHY
    title = (
        f"The agent {agent.role} cannot be reached"
        if away
        else f"The agent {agent.role} can be reached again"
    )
    found = references.to(agent.role)
    for number, tenant_id in enumerate(dict.fromkeys(reference.tenant_id for reference in found)):
        needs_it = [reference for reference in found if reference.tenant_id == tenant_id]
        raise_alert(
            tenant_id,
            AlertKind.AGENT_HEALTH,
            title,
            # Not why: the reason names the endpoint, which is the platform's own affair.
            body=f"It is needed by: {references.in_words(needs_it)}. The agent's page in the admin says more.",
            severity=Severity.WARNING if away else Severity.INFO,
            facts={"role": agent.role, "health": agent.health, "checked_at": agent.health_checked_at},
            dedup_key=f"agent_health:{agent.role}:{agent.health}:{agent.health_checked_at:%Y%m%dT%H%M%S.%f}",
            platform=number == 0,
        )
