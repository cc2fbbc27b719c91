"""What is shown of dead letters, and of what was done to many."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from activities.api.serializers import link_of
from activities.models import DeadLetter
from activities.models.dead_letter import BurialReason
from agents.api.shown import Shown


class DeadLetterSerializer(Shown):
    """One failure for good. A replay that fails again makes a further one."""

    id = serializers.UUIDField()
    activity = serializers.UUIDField(source="activity_id")
    name = serializers.CharField(source="activity.name")
    activity_status = serializers.CharField(source="activity.status", help_text="Of the activity, now.")
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
    link = serializers.SerializerMethodField(help_text="Of the activity.")

    def get_closed_by(self, letter: DeadLetter) -> str | None:
        return letter.closed_by or None

    def get_link(self, letter: DeadLetter) -> str:
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
