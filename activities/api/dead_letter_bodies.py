"""What is sent to replay or to dismiss dead letters."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from activities.models.dead_letter import BurialReason, DeadLetterState, LetterKind
from agents.api.strict import OPTIONAL, Flag, Identifier, Moment, Number, OneOf, StrictSerializer, Text

MOST_AT_ONCE = 10_000
FASTEST = 1_000  # a second; more would be the same as no limit


class ChoiceSerializer(StrictSerializer):
    """What the list can be narrowed by. An empty object chooses everything."""

    kind = OneOf(choices=LetterKind.values, **OPTIONAL)
    agent_role = Text(max_length=63, **OPTIONAL)
    mailbox = Text(max_length=200, **OPTIONAL)
    reason = OneOf(choices=BurialReason.values, **OPTIONAL)
    fingerprint = Text(max_length=64, **OPTIONAL)
    state = OneOf(choices=DeadLetterState.values, **OPTIONAL)
    activity = Identifier(**OPTIONAL)
    pipeline_run = Identifier(**OPTIONAL)
    created_after = Moment(**OPTIONAL)
    created_before = Moment(**OPTIONAL)


class ChosenSerializer(StrictSerializer):
    """Base of what is done to many: exactly one of `ids` and `filter`."""

    ids = serializers.ListField(child=Identifier(), allow_empty=False, max_length=MOST_AT_ONCE, **OPTIONAL)
    filter = ChoiceSerializer(**OPTIONAL)
    dry_run = Flag(help_text="Only count what would be done.", **OPTIONAL)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("ids" in attrs) == ("filter" in attrs):
            raise serializers.ValidationError({"ids": ["exactly one of ids and filter must be given"]})
        return attrs


class ReplaySerializer(ChosenSerializer):
    """Failures to be tried again."""

    per_second = Number(
        min_value=0.001,
        max_value=FASTEST,
        help_text="So many start in a second. Left out: all at once.",
        **OPTIONAL,
    )


class DismissalSerializer(ChosenSerializer):
    """Failures that nobody wants to try again."""

    reason = Text(max_length=2_000)
