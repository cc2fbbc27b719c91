"""Mailboxes, items and batches as the API shows them."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from activities.models import MailboxItem
from agents.api.shown import Shown


class MailboxSerializer(serializers.Serializer[Any]):
    """What waits in one conversation."""

    id = serializers.UUIDField()
    key = serializers.CharField()
    agent_role = serializers.CharField(
        allow_null=True, help_text="Who consumes it; null: whoever takes from it."
    )
    pending = serializers.IntegerField()
    claimed = serializers.IntegerField(help_text="Under way: with a consumer, or in an agent's run.")
    failed = serializers.IntegerField(help_text="For good, all attempts used up.")
    oldest_wait_seconds = serializers.FloatField(allow_null=True)
    created_at = serializers.DateTimeField()


class ItemSerializer(Shown):
    """Something that is said."""

    id = serializers.UUIDField()
    kind = serializers.CharField(help_text="message, task_notification, approval_result or overlay_action")
    content = serializers.JSONField()
    text = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]  # a field, not the attribute
    priority = serializers.IntegerField()
    is_coalescable = serializers.BooleanField()
    client_message_id = serializers.CharField(allow_null=True)
    agent_role = serializers.CharField(allow_null=True)
    status = serializers.CharField(source="stands", help_text="pending, claimed, done, failed or cancelled")
    attempts = serializers.SerializerMethodField(help_text="How often a consumer has taken it.")
    max_attempts = serializers.IntegerField()
    run_after = serializers.DateTimeField(allow_null=True)
    due_at = serializers.DateTimeField(allow_null=True, help_text="Not taken before.")
    activity = serializers.UUIDField(
        source="activity_id", allow_null=True, help_text="In which an agent hears of it."
    )
    run = serializers.UUIDField(
        source="run_id", allow_null=True, help_text="That hears, or has heard, of it."
    )
    batch = serializers.UUIDField(source="batch_id", allow_null=True)
    error = serializers.JSONField()
    created_at = serializers.DateTimeField()
    claimed_at = serializers.DateTimeField(allow_null=True)
    done_at = serializers.DateTimeField(allow_null=True)

    def get_attempts(self, item: MailboxItem) -> int:
        return item.attempts


class TakenItemSerializer(Shown):
    """As a consumer gets it."""

    id = serializers.UUIDField()
    kind = serializers.CharField()
    content = serializers.JSONField()
    text = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]  # a field, not the attribute
    priority = serializers.IntegerField()
    client_message_id = serializers.CharField(allow_null=True)
    attempts = serializers.IntegerField(help_text="With this one.")
    max_attempts = serializers.IntegerField()
    created_at = serializers.DateTimeField()


class TakenSerializer(serializers.Serializer[Any]):
    """A batch: the consumer's until `leased_until`."""

    batch_id = serializers.UUIDField()
    items = TakenItemSerializer(many=True)
    merged_count = serializers.IntegerField(help_text="How many items it has.")
    queue_length_after = serializers.IntegerField(help_text="How many more are due.")
    fence = serializers.IntegerField(help_text="Higher for every batch of the mailbox.")
    leased_until = serializers.DateTimeField()


class MailboxBatchSerializer(Shown):
    """What became of a batch."""

    batch_id = serializers.UUIDField(source="id")
    consumer = serializers.CharField()
    state = serializers.CharField(help_text="open, completed, failed or expired")
    size = serializers.IntegerField()
    fence = serializers.IntegerField()
    leased_until = serializers.DateTimeField()
    result = serializers.JSONField()
    error = serializers.JSONField()
    ended_at = serializers.DateTimeField(allow_null=True)
