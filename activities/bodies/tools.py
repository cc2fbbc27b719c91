"""What agents give to the tools: an object each, read by the letter.

A question of an agent has no rules: by when, by how many and with what default it is decided is never the agent's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from rest_framework import serializers

from activities.bodies.assignees import AssigneeSerializer, ReassignmentSerializer
from activities.bodies.rules import OptionsField
from agents.api.strict import OPTIONAL, Flag, Identifier, Member, StrictSerializer, Text, Whole, read

LONGEST_MESSAGE = 2_000
LONGEST_TEXT = 20_000
LONGEST_CONTENT = 200_000


class BlockerSerializer(StrictSerializer):
    """What holds the agent up, and cannot be removed by it."""

    type = Text(
        max_length=63, help_text="channel_auth_expired, missing_integration, api_outage, or another name."
    )
    message = Text(max_length=LONGEST_MESSAGE)
    channel_id = Identifier(help_text="The channel that is concerned.", **OPTIONAL)


class SubtaskSerializer(AssigneeSerializer):
    """A part of the work for somebody else. A blocking one puts the asking agent's work aside until it has ended."""

    name = Text(max_length=200)
    description = Text(max_length=LONGEST_TEXT, trim_whitespace=False, allow_blank=True, **OPTIONAL)
    params = Member(**OPTIONAL)
    model = Text(max_length=200, help_text="Instead of the role's.", **OPTIONAL)
    max_turns = Whole(
        min_value=1, max_value=200, help_text="Answers of its model; then it fails.", **OPTIONAL
    )
    blocking = Flag()


class ReviewRequestSerializer(StrictSerializer):
    """A question to a person in the middle of the work."""

    question = Text(max_length=LONGEST_MESSAGE)
    content = Text(max_length=LONGEST_CONTENT, trim_whitespace=False, allow_blank=True, **OPTIONAL)
    human_role = Text(max_length=63, **OPTIONAL)


class ApprovalRequestSerializer(StrictSerializer):
    """A decision about several activities. Left out, `activity_ids` is the agent's own."""

    type = Text(max_length=63, help_text="content_direction, brand_direction, or another name.")
    title = Text(max_length=200)
    description = Text(max_length=LONGEST_TEXT, trim_whitespace=False, allow_blank=True, **OPTIONAL)
    options = OptionsField(**OPTIONAL)
    human_role = Text(max_length=63, **OPTIONAL)
    activity_ids = serializers.ListField(
        child=Identifier(), max_length=settings.ORCHESTRATOR_LINKS_PER_APPROVAL, **OPTIONAL
    )


KINDS: dict[str, type[StrictSerializer]] = {
    "report_blocker": BlockerSerializer,
    "create_subtask": SubtaskSerializer,
    "request_human_review": ReviewRequestSerializer,
    "create_approval": ApprovalRequestSerializer,
    "reassign_task": ReassignmentSerializer,
}


def arguments_of(tool: str, body: Any) -> Mapping[str, Any]:
    """The arguments as the tool takes them. Raises REST framework's `ValidationError` naming every fault, `KeyError` for no tool."""
    return read(KINDS[tool], body)
