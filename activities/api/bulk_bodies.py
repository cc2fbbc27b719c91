"""What is sent to do one thing to many activities, and how the job is shown."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from activities.api.priorities import PriorityField, priority_of
from activities.bodies.assignees import LONGEST_REASON, AssigneeSerializer
from activities.models.activity import AssigneeType
from activities.models.bulk import BulkAction
from activities.states import Status
from agents.api.strict import OPTIONAL, Flag, Identifier, Moment, OneOf, StrictSerializer, Text, Whole
from tenants.api.filters import SEARCH_LENGTH


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string", "enum": list(Status)}, "minItems": 1},
        ]
    }
)
class StatusesField(serializers.Field[Any, Any, Any, Any]):
    """One status, several with commas as in the address of the list, or a list of them."""

    default_error_messages = {"invalid": f"must be one or more of {', '.join(Status)}"}

    def to_internal_value(self, data: Any) -> list[str]:
        named = data.split(",") if isinstance(data, str) else data
        if (
            not isinstance(named, list)
            or not named
            or not all(isinstance(one, str) and one in set(Status) for one in named)
        ):
            self.fail("invalid")
        return list(dict.fromkeys(named))

    def to_representation(self, value: Any) -> Any:
        return value


class ActivityChoiceSerializer(StrictSerializer):
    """What the list of activities can be narrowed by; at least one condition."""

    status = StatusesField(**OPTIONAL)
    agent_role = Text(max_length=63, **OPTIONAL)
    human_role = Text(max_length=63, **OPTIONAL)
    assignee_type = OneOf(choices=AssigneeType.values, **OPTIONAL)
    priority = Whole(min_value=1, max_value=20, **OPTIONAL)
    pipeline_run = Identifier(**OPTIONAL)
    step = Text(max_length=63, **OPTIONAL)
    branch = Whole(min_value=0, max_value=1_000_000, **OPTIONAL)
    parent = Identifier(**OPTIONAL)  # type: ignore[assignment]  # a field, not the attribute
    deliverable = Identifier(**OPTIONAL)
    schedule = Identifier(**OPTIONAL)
    dedup_key = Text(max_length=200, **OPTIONAL)
    created_after = Moment(**OPTIONAL)
    created_before = Moment(**OPTIONAL)
    search = Text(
        max_length=SEARCH_LENGTH, help_text="Words that must all occur in name or description.", **OPTIONAL
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise serializers.ValidationError("must have at least one condition")
        return attrs


class BulkSerializer(AssigneeSerializer):
    """One thing for all activities that a filter finds. First a dry run, then with the count that it told."""

    action = OneOf(choices=BulkAction.values)
    filter = ActivityChoiceSerializer()
    dry_run = Flag(help_text="Only count, and show some of them.", **OPTIONAL)
    expected_count = Whole(
        min_value=0,
        max_value=10_000_000,
        help_text="What the dry run counted; 409 when it is another number by now.",
        **OPTIONAL,
    )
    reason = Text(max_length=LONGEST_REASON, help_text="Needed to reassign.", **OPTIONAL)
    priority = PriorityField(
        help_text="Needed to set it: 1 (urgent) to 20, or the name of a band.", **OPTIONAL
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        action, faults = attrs["action"], {}
        if bool(attrs.get("dry_run")) == ("expected_count" in attrs):
            faults["expected_count"] = ["exactly one of dry_run and expected_count must be given"]
        if action == BulkAction.REASSIGN:
            if "reason" not in attrs:
                faults["reason"] = ["is needed to reassign"]
            attrs = super().validate(attrs)
        else:
            faults |= {name: [f"is only for {BulkAction.REASSIGN}"] for name in ASSIGNEE if name in attrs}
        if (action == BulkAction.PRIORITY) != ("priority" in attrs):
            faults["priority"] = ["is needed to set the priority, and only for that"]
        if faults:
            raise serializers.ValidationError(faults)
        if "priority" in attrs:
            attrs["priority"] = priority_of(attrs["priority"])
        return attrs


ASSIGNEE = ("assignee_type", "agent_role", "human_role")
ARGUMENTS = ("reason", "priority", *ASSIGNEE)


def as_query(chosen: dict[str, Any]) -> dict[str, str]:
    """The conditions as the address of the list has them."""
    return {name: _written(value) for name, value in chosen.items()}


def _written(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def as_stored(chosen: dict[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, UUID | datetime) else value for name, value in chosen.items()
    }
