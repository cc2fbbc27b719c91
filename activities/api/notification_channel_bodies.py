"""What is sent and shown of notification channels."""

from __future__ import annotations

from rest_framework import serializers

from activities.models.alert import AlertKind, ChannelKind, Digest
from agents.api.shown import Shown
from agents.api.strict import OPTIONAL, Flag, OneOf, StrictSerializer, Text

ABOUT_TARGETS = "A URL for slack and webhook, addresses separated by commas for email. Never shown again."


class NotificationChannelSerializer(Shown):
    """A channel. `target` shows enough to recognise it: the host of a URL, the first letters of addresses."""

    id = serializers.UUIDField()
    kind = serializers.CharField()
    name = serializers.CharField()
    target = serializers.CharField(source="target_shown")
    kinds = serializers.ListField(child=serializers.CharField(), help_text="Kinds of alerts. Empty: all.")
    enabled = serializers.BooleanField()
    digest = serializers.CharField(help_text="off, daily or weekly.")
    digest_roles = serializers.ListField(child=serializers.CharField())
    version = serializers.IntegerField(help_text="Raised by every change; the ETag.")
    created_at = serializers.DateTimeField()


class NotificationChannelWithSecretSerializer(NotificationChannelSerializer):
    secret = serializers.CharField(
        allow_null=True,
        help_text="Verifies what is sent to a webhook. Shown here and nowhere else; null for other kinds.",
    )


class ChangedChannelSerializer(StrictSerializer):
    """All of a channel but its kind. A target that is left out stays as it is."""

    name = Text(max_length=100)
    target = Text(max_length=2_000, help_text=ABOUT_TARGETS, **OPTIONAL)
    kinds = serializers.ListField(
        child=OneOf(choices=AlertKind.values),
        help_text="Kinds of alerts. Empty or left out: all.",
        **OPTIONAL,
    )
    enabled = Flag(**OPTIONAL)
    digest = OneOf(
        choices=Digest.values,
        help_text="For email: a summary at seven in the tenant's time zone, each day or each Monday. Off if left out.",
        **OPTIONAL,
    )
    digest_roles = serializers.ListField(
        child=Text(max_length=63),
        max_length=50,
        help_text="Human roles whose waiting items the digest tells of. Empty or left out: all.",
        **OPTIONAL,
    )


class NewChannelSerializer(ChangedChannelSerializer):
    """A new channel."""

    kind = OneOf(choices=ChannelKind.values)
    target = Text(max_length=2_000, help_text=ABOUT_TARGETS)
