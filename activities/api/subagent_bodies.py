"""What is asked of a subagent."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from activities.subagents import NewSubagent
from agents import configuration
from agents.api.strict import OPTIONAL, Flag, Identifier, StrictSerializer, Text, Whole

LONGEST_PROMPT = 200_000
MOST_TURNS = 200


class NewSubagentSerializer(StrictSerializer):
    """One prompt for an agent of a role, in a conversation of its own or an earlier one."""

    subagent_type = Text(max_length=63, help_text="The role of the registry that does it.")
    prompt = Text(trim_whitespace=False, max_length=LONGEST_PROMPT)
    description = Text(allow_blank=True, max_length=200, help_text="In a few words, for people.", **OPTIONAL)
    model = Text(max_length=200, help_text="Instead of the role's.", **OPTIONAL)
    tool_call_id = Text(
        max_length=200,
        help_text="Of the call that asks for it. With `parent_mailbox` one call starts one subagent.",
        **OPTIONAL,
    )
    existing_agent_id = Identifier(help_text="A subagent whose conversation is continued.", **OPTIONAL)
    existing_conversation_id = Text(
        max_length=200,
        help_text="A conversation that an agent of this role has named, to be continued.",
        **OPTIONAL,
    )
    max_turns = Whole(
        min_value=1, max_value=MOST_TURNS, help_text="Answers of its model; then it fails.", **OPTIONAL
    )
    priority = Whole(min_value=0, max_value=9, help_text="Lower first; 5 if not given.", **OPTIONAL)
    run_in_background = Flag(
        help_text="False: the caller waits for its end itself, and nobody is told. True if not given.",
        **OPTIONAL,
    )
    silent = Flag(help_text="True: nobody is told of its end.", **OPTIONAL)
    parent_mailbox = Text(
        max_length=200, help_text="The key of the mailbox that is told of its end.", **OPTIONAL
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        faults: dict[str, list[str]] = {}
        role = attrs["subagent_type"]
        if role not in configuration.known_roles():
            faults["subagent_type"] = [f"{role!r} is no role of the registry; GET /api/v1/agents/ lists them"]
        if "existing_agent_id" in attrs and "existing_conversation_id" in attrs:
            faults["existing_conversation_id"] = ["cannot be given together with existing_agent_id"]
        if "/" in attrs.get("parent_mailbox", ""):
            faults["parent_mailbox"] = ["must not hold a slash"]
        if not attrs["prompt"].strip():
            faults["prompt"] = ["must not be blank"]
        if faults:
            raise serializers.ValidationError(faults)
        return attrs


def new_subagent(attrs: dict[str, Any]) -> NewSubagent:
    return NewSubagent(**attrs)
