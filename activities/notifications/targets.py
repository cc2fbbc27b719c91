"""Targets: where a channel leads and with what it is signed. Sealed at rest, opened only to send, never shown again."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from activities.models import NotificationChannel
from activities.models.alert import ChannelKind
from agents import credentials, outbound, webhook_signing
from agents.exceptions import ConfigurationError, OutboundRefused
from agents.outbound import urls

MOST_ADDRESSES = 20


@dataclass(frozen=True, slots=True)
class Target:
    """A URL, or addresses of mail separated by commas; for a webhook the secrets that sign, newest first."""

    address: str
    secrets: tuple[str, ...] = ()


class InvalidTarget(ValueError):
    """Nothing could be sent there. The text says why."""


def check(kind: str, address: str) -> None:
    """Raise `InvalidTarget` for what could not be sent to. May ask the name service: not inside a transaction."""
    if kind == ChannelKind.EMAIL:
        _check_mail(address)
        return
    try:
        outbound.check_url(address, purpose=outbound.NOTIFICATIONS)
    except OutboundRefused as error:
        raise InvalidTarget(str(error)) from error


def put(channel: NotificationChannel, address: str) -> None:
    """Give the channel this target, without saving it. A webhook keeps its secrets; one without any that can be read gets its first."""
    kept = _secrets_of(channel)
    if channel.kind == ChannelKind.WEBHOOK and not kept:
        kept = (webhook_signing.new_secret(),)
    _seal(channel, Target(address, kept))
    channel.target_shown = _shown(channel.kind, address)


def renew_secret(channel: NotificationChannel) -> str:
    """Give a webhook a new secret, without saving it, and return it. The one before signs as well, until the next renewal."""
    target, new = opened(channel), webhook_signing.new_secret()
    _seal(channel, Target(target.address, (new, *target.secrets[:1])))
    return new


def opened(channel: NotificationChannel) -> Target:
    """Raises `agents.exceptions.ConfigurationError` when the key that sealed it is gone."""
    return unsealed(channel.tenant_id, channel.pk, channel.target_sealed)


def unsealed(tenant_id: UUID, channel_id: UUID, sealed: str) -> Target:
    """The same from the columns of the row."""
    kept = credentials.unseal(sealed, context=context_of(tenant_id, channel_id))
    return Target(kept["address"], tuple(kept["secrets"].split()))


def of_platform(kind: str) -> Target | None:
    """The platform's own channel of this kind, if there is one."""
    address = {ChannelKind.SLACK: settings.SLACK_WEBHOOK_URL, ChannelKind.EMAIL: settings.ALERT_EMAIL}.get(
        ChannelKind(kind), ""
    )
    return Target(address) if address else None


def addresses_of(target: Target) -> list[str]:
    """The addresses of mail in a target."""
    return [address for part in target.address.split(",") if (address := part.strip())]


def _secrets_of(channel: NotificationChannel) -> tuple[str, ...]:
    try:
        return opened(channel).secrets if channel.target_sealed else ()
    except ConfigurationError:
        return ()  # The key is gone, and with it what the receiver verifies by.


def _check_mail(text: str) -> None:
    addresses = addresses_of(Target(text))
    if not 0 < len(addresses) <= MOST_ADDRESSES:
        raise InvalidTarget(f"must be 1 to {MOST_ADDRESSES} addresses of mail, separated by commas")
    for address in addresses:
        try:
            validate_email(address)
        except ValidationError as error:
            raise InvalidTarget(f"{address!r} is not an address of mail") from error


def _shown(kind: str, address: str) -> str:
    if kind == ChannelKind.EMAIL:
        masked = (
            f"{name[:1]}…@{host}"
            for name, _, host in (a.rpartition("@") for a in addresses_of(Target(address)))
        )
        return ", ".join(masked)[:300]
    return urls.read(address).place  # the rest of the URL is the secret of Slack's webhooks


def _seal(channel: NotificationChannel, target: Target) -> None:
    kept = {"address": target.address, "secrets": " ".join(target.secrets)}
    channel.target_sealed = credentials.seal(kept, context=context_of(channel.tenant_id, channel.pk))


def context_of(tenant_id: UUID, channel_id: UUID) -> str:
    return f"notification_channel:{tenant_id}:{channel_id}:target"
