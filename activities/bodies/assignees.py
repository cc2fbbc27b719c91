"""Who shall do something: exactly one of an agent's role and a person's."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from agents import configuration
from agents.api.strict import OPTIONAL, OneOf, StrictSerializer, Text

LONGEST_REASON = 2_000


class AssigneeSerializer(StrictSerializer):
    """Base of bodies that name who shall do something."""

    assignee_type = OneOf(choices=["agent", "human"], **OPTIONAL)
    agent_role = Text(max_length=63, **OPTIONAL)
    human_role = Text(max_length=63, **OPTIONAL)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        agent, human = attrs.get("agent_role"), attrs.get("human_role")
        faults: dict[str, Any] = {}
        if bool(agent) == bool(human):
            faults["agent_role"] = ["exactly one of agent_role and human_role must be given"]
        elif agent and agent not in configuration.known_roles():
            faults["agent_role"] = [f"{agent!r} is no role of the registry"]
        if attrs.get("assignee_type") not in (None, "agent" if agent else "human"):
            faults["assignee_type"] = ["says something else than the role that is given"]
        if faults:
            raise serializers.ValidationError(faults)
        return attrs


class ReassignmentSerializer(AssigneeSerializer):
    """The whole work goes to somebody else."""

    reason = Text(max_length=LONGEST_REASON)
