"""What is sent and shown of webhooks."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from agents.api.shown import Shown
from agents.api.strict import OPTIONAL, Flag, OneOf, StrictSerializer, Text
from tenants.events.kinds import KINDS
from tenants.events.models import OffReason, WebhookDelivery, WebhookDeliveryState


class WebhookSerializer(Shown):
    """Where events are sent."""

    id = serializers.UUIDField()
    url = serializers.CharField()
    description = serializers.CharField()
    kinds = serializers.ListField(child=serializers.CharField(), help_text="Kinds of events. Empty: all.")
    enabled = serializers.BooleanField()
    off_reason = serializers.ChoiceField(
        choices=[*OffReason.choices, ("", "")],
        help_text="Why the system switched it off: gone (the receiver answered 410), failing (nothing was delivered for days).",
    )
    failing_since = serializers.DateTimeField(allow_null=True, help_text="The first failure since a success.")
    previous_secret_until = serializers.DateTimeField(
        source="previous_until",
        allow_null=True,
        help_text="So long the secret before the last rotation signs as well.",
    )
    version = serializers.IntegerField(help_text="Raised by every change; the ETag.")
    created_at = serializers.DateTimeField()


class WebhookWithSecretSerializer(WebhookSerializer):
    secret = serializers.CharField(
        allow_null=True,
        help_text="Verifies what is sent. Shown here and nowhere else; null in a repeated answer.",
    )


class WebhookBodySerializer(StrictSerializer):
    """A webhook as its owner wants it. What is left out is emptied; `enabled` is true unless given."""

    url = Text(max_length=2_000)
    description = Text(max_length=200, **OPTIONAL)
    kinds = serializers.ListField(
        child=OneOf(choices=list(KINDS)), help_text="Kinds of events. Empty or left out: all.", **OPTIONAL
    )
    enabled = Flag(**OPTIONAL)


class WebhookDeliverySerializer(Shown):
    """One event on its way to the webhook, and what came of its last attempt."""

    id = serializers.UUIDField(help_text="The `webhook-id` of every attempt.")
    event = serializers.IntegerField(source="event_number", allow_null=True, help_text="Null: a test.")
    kind = serializers.CharField()
    state = serializers.ChoiceField(
        choices=WebhookDeliveryState.choices, help_text="dropped: the webhook was switched off first."
    )
    attempts = serializers.IntegerField(help_text="Since it was made, or sent again.")
    response_status = serializers.IntegerField(allow_null=True, help_text="Null: there was no answer.")
    duration_ms = serializers.IntegerField(allow_null=True)
    error = serializers.CharField(help_text="With the beginning of what the receiver said.")
    next_attempt_at = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)

    def get_next_attempt_at(self, delivery: WebhookDelivery) -> Any:
        return delivery.next_attempt_at if delivery.state == WebhookDeliveryState.PENDING else None
