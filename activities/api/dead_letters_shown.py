"""What is shown of dead letters, and of what was done to many."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from rest_framework import serializers

from activities.api.serializers import link_of
from activities.models import DeadLetter
from activities.models.dead_letter import BurialReason
from agents.api.shown import Shown


class DeadLetterSerializer(Shown):
    """One failure for good. A replay that fails again makes a further one."""

    id = serializers.UUIDField()
    kind = serializers.CharField(help_text="What failed: activity or mailbox_item.")
    activity = serializers.UUIDField(source="activity_id", allow_null=True)
    mailbox = serializers.SerializerMethodField(help_text="The key of the mailbox, for its items.")
    mailbox_item = serializers.UUIDField(source="mailbox_item_id", allow_null=True)
    name = serializers.CharField()
    activity_status = serializers.SerializerMethodField(help_text="Of the activity, now.")
    agent_role = serializers.CharField()
    reason = serializers.CharField(help_text=f"One of {', '.join(BurialReason.values)}.")
    error = serializers.DictField(help_text="`code` and `message` of the last failure.")
    attempts = serializers.IntegerField()
    stalls = serializers.IntegerField()
    cost_usd = serializers.DecimalField(
        max_digits=14, decimal_places=6, help_text="Reported by all runs until then."
    )
    fingerprint = serializers.CharField(help_text="Equal for failures that look alike.")
    run = serializers.UUIDField(source="run_id", allow_null=True, help_text="The run that failed last.")
    pipeline_run = serializers.UUIDField(source="pipeline_run_id", allow_null=True)
    state = serializers.CharField(
        help_text="open; replayed; or closed: cancelled, handed on, or dealt with by a person."
    )
    escalation = serializers.UUIDField(
        source="escalation_id", allow_null=True, help_text="The activity that asks a person about it."
    )
    created_at = serializers.DateTimeField()
    handled_at = serializers.DateTimeField(allow_null=True, help_text="When people were told.")
    closed_at = serializers.DateTimeField(allow_null=True)
    closed_by = serializers.SerializerMethodField()
    link = serializers.SerializerMethodField(help_text="Of the activity or item.")

    def get_mailbox(self, letter: DeadLetter) -> str | None:
        return letter.mailbox_key or None

    def get_activity_status(self, letter: DeadLetter) -> str | None:
        return letter.activity.status if letter.activity else None

    def get_closed_by(self, letter: DeadLetter) -> str | None:
        return letter.closed_by or None

    def get_link(self, letter: DeadLetter) -> str:
        if letter.activity_id is None:
            return f"/api/v1/mailboxes/{quote(letter.mailbox_key, safe='')}/items/{letter.mailbox_item_id}/"
        return link_of(letter.activity_id)


class DismissedSerializer(serializers.Serializer[Any]):
    """What was done, or in a dry run would be."""

    count = serializers.IntegerField()
    skipped = serializers.IntegerField(
        help_text="Chosen, but dealt with before, or equal to work that is under way."
    )
    dry_run = serializers.BooleanField()


class ReplayedSerializer(DismissedSerializer):
    seconds = serializers.FloatField(help_text="Until the last of them starts.")
