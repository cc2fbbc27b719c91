"""Request schemas that several endpoints share: priorities, decision rules of questions, assignees, and the arguments of agents' tools."""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import pairwise
from typing import Any
from uuid import UUID

from django.conf import settings
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from activities.decision_rules import DecisionRules, Later
from activities.states import BANDS
from agents import configuration
from agents.api.role_names import RoleName
from tenants.api.serializers import (
    OPTIONAL,
    Flag,
    Identifier,
    Member,
    Number,
    OneOf,
    StrictSerializer,
    Text,
    Whole,
    read,
)
from tenants.wire_json import whole_number

# Priorities as callers write them: on our scale, by the name of a band, or on a scale that they name.
#
# The stored scale is 1..20, lower first. Other scales must be named, because 5 means something else on each of them.

#: Points of each scale and the stored priority; values between two points are interpolated.
SCALES: dict[str, dict[int, int]] = {
    "payload": {0: 10, 1: 5, 2: 1},
    "ade": {0: 1, 5: 10, 9: 20},
    "ticket": {1: 1, 5: 10, 10: 20},
}
LOWEST, HIGHEST = 1, 20


def to_stored(value: int, scale: str) -> int | None:
    """Convert a value on a named scale to the stored priority. Returns None if the scale has no such value."""
    points = sorted(SCALES[scale].items())
    for (low, at_low), (high, at_high) in pairwise(points):
        if low <= value <= high:
            return int(at_low + (value - low) * (at_high - at_low) / (high - low) + 0.5)
    return None


@extend_schema_field({"type": ["integer", "string"]})
class PriorityField(serializers.Field[Any, Any, Any, Any]):
    """A whole number, or the name of a band. What the number means is decided by `priority_of`."""

    default_error_messages = {"invalid": f"must be a whole number or one of {', '.join(BANDS)}"}

    def to_internal_value(self, data: Any) -> int | str:
        if isinstance(data, str) and data in BANDS:
            return data
        number = whole_number(data)
        if number is None:
            self.fail("invalid")
        return number

    def to_representation(self, value: Any) -> Any:
        return value


def priority_of(value: int | str | None, scale: str | None = None) -> int:
    """Return the stored priority. Raises `ValidationError` with the path `priority`."""
    if value is None:
        return BANDS["normal"]
    if isinstance(value, str):
        return BANDS[value]
    stored = to_stored(value, scale) if scale else value
    if stored is None or not LOWEST <= stored <= HIGHEST:
        values = SCALES[scale].keys() if scale else (LOWEST, HIGHEST)
        raise serializers.ValidationError({"priority": [f"must be from {min(values)} to {max(values)}"]})
    return stored


def errors_of_priority(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the error of a valid `priority` that is outside of its scale, by its path."""
    try:
        priority_of(attrs.get("priority"), attrs.get("priority_scale"))
    except serializers.ValidationError as error:
        return dict(error.detail)  # type: ignore[arg-type]  # a mapping: it has a path
    return {}


LONGEST_WAIT = 366 * 86_400  # seconds
MOST_LATER = 20  # reminders, and steps of an escalation
MOST_OPTIONS = 50
MOST_VOTERS = 100


class LaterSerializer(StrictSerializer):
    """A number of seconds after the question was asked."""

    after_seconds = Number(min_value=0.001, max_value=LONGEST_WAIT)
    human_role = Text(max_length=63, **OPTIONAL)


@extend_schema_field(
    {
        "oneOf": [
            {"type": "number", "exclusiveMinimum": 0, "maximum": LONGEST_WAIT},
            {
                "type": "object",
                "properties": {
                    "after_seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": LONGEST_WAIT},
                    "human_role": {"type": "string", "maxLength": 63},
                },
                "required": ["after_seconds"],
                "additionalProperties": False,
            },
        ]
    }
)
class ReminderField(serializers.Field[Any, Any, Any, Any]):
    """A number of seconds, or an object that also names a role."""

    def to_internal_value(self, data: Any) -> Later:
        body = LaterSerializer(data={"after_seconds": data} if not isinstance(data, Mapping) else data)
        body.is_valid(raise_exception=True)
        return Later(body.validated_data["after_seconds"], body.validated_data.get("human_role", ""))

    def to_representation(self, value: Any) -> Any:
        return value


class RulesSerializer(StrictSerializer):
    """Base of bodies that ask people for a decision."""

    human_role = Text(max_length=63, **OPTIONAL)
    due_seconds = Number(min_value=0.001, max_value=LONGEST_WAIT, **OPTIONAL)
    reminders = serializers.ListField(child=ReminderField(), max_length=MOST_LATER, **OPTIONAL)
    escalation = serializers.ListField(
        child=ReminderField(),
        max_length=MOST_LATER,
        help_text="The roles that are asked next, each after a number of seconds.",
        **OPTIONAL,
    )
    on_timeout = OneOf(
        choices=["approve", "reject", "escalate"],
        help_text="What happens if nobody has decided by the due time.",
        **OPTIONAL,
    )
    quorum = Whole(min_value=1, max_value=MOST_VOTERS, help_text="How many people must agree.", **OPTIONAL)
    voters = Whole(min_value=1, max_value=MOST_VOTERS, help_text="How many people are asked.", **OPTIONAL)
    self_approval = Flag(
        help_text="Whether the requester may decide. Default: true if one decision is enough, false if several people must agree.",
        **OPTIONAL,
    )

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        errors: dict[str, Any] = {}
        due = attrs.get("due_seconds")
        if attrs.get("on_timeout") and due is None and "due_seconds" not in invalid:
            errors["on_timeout"] = ["needs due_seconds"]
        if attrs.get("on_timeout") == "approve" and attrs.get("options"):
            errors.setdefault("on_timeout", []).append(
                "must not be approve if there are options: a person must choose one"
            )
        if attrs.get("voters") is not None and attrs["voters"] < attrs.get("quorum", 1):
            errors["voters"] = ["must not be fewer than quorum"]
        for name in ("reminders", "escalation"):
            late = [later for later in attrs.get(name, ()) if due is not None and later.after_seconds >= due]
            if late:
                errors[name] = [f"must come before due_seconds, which is {due:g}"]
            times = [later.after_seconds for later in attrs.get(name, ())]
            if any(earlier >= later for earlier, later in pairwise(times)):
                errors[name] = ["must be in order, each later than the one before"]
            if any(not later.human_role for later in attrs.get(name, ())) and name == "escalation":
                errors[name] = ["needs a human_role in each step: the role that is asked then"]
        return errors


class OptionsField(serializers.ListField):
    """What may be chosen from, each once."""

    def __init__(self, **more: Any) -> None:
        super().__init__(child=Text(max_length=200), max_length=MOST_OPTIONS, **more)

    def to_internal_value(self, data: Any) -> list[str]:
        options: list[str] = super().to_internal_value(data)
        if len(set(options)) != len(options):
            raise serializers.ValidationError(["must not contain an option twice"])
        return options


class MailboxKey(Text):
    """The key of a mailbox, which is a part of its address."""

    def __init__(self, **more: Any) -> None:
        super().__init__(max_length=200, **more)

    def to_internal_value(self, data: Any) -> str:
        key = super().to_internal_value(data)
        if "/" in key:
            raise serializers.ValidationError("must not contain a slash")
        if key in (".", ".."):  # which clients remove from an address
            raise serializers.ValidationError("must not be . or ..")
        return key


#: The members of a body that are decision rules.
ABOUT_PEOPLE = (
    "due_seconds", "reminders", "escalation", "on_timeout", "quorum", "voters", "self_approval", "options"
)  # fmt: skip


def rules_of(attrs: Mapping[str, Any], *, asked_by: str = "") -> DecisionRules:
    return DecisionRules.asked(
        asked_by=asked_by,
        due_seconds=attrs.get("due_seconds"),
        reminders=tuple(attrs.get("reminders", ())),
        escalation=tuple(attrs.get("escalation", ())),
        on_timeout=attrs.get("on_timeout"),
        quorum=attrs.get("quorum"),
        voters=attrs.get("voters"),
        options=tuple(attrs.get("options", ())),
        self_approval=attrs.get("self_approval"),
    )


# Assignees: exactly one of an agent's role and a person's role.

LONGEST_REASON = 2_000


class AssigneeSerializer(StrictSerializer):
    """Base of bodies that name who shall do something."""

    assignee_type = OneOf(choices=["agent", "human"], **OPTIONAL)
    agent_role = RoleName(max_length=63, **OPTIONAL)
    human_role = Text(max_length=63, **OPTIONAL)

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        if "agent_role" in invalid or "human_role" in invalid:
            return {}
        agent, human = attrs.get("agent_role"), attrs.get("human_role")
        errors: dict[str, Any] = {}
        if bool(agent) == bool(human):
            errors["agent_role"] = ["exactly one of agent_role and human_role must be given"]
        elif (
            agent
            and (tenant_id := self.context["tenant_id"])
            and (refused := configuration.errors_of_role(agent, tenant_id))
        ):
            errors["agent_role"] = refused
        if attrs.get("assignee_type") not in (None, "agent" if agent else "human"):
            errors["assignee_type"] = ["contradicts the role"]
        return errors


class ReassignmentSerializer(AssigneeSerializer):
    """Reassigns the whole work to another role."""

    reason = Text(max_length=LONGEST_REASON)


# Arguments of agents' tools: one strict object for each tool.
#
# A question of an agent has no decision rules, because an agent must not set the due time, the quorum or the default outcome.

LONGEST_MESSAGE = 2_000
MOST_SCOPES = 50  # entries in each list of a scope
LONGEST_TEXT = 20_000
LONGEST_CONTENT = 200_000


class BlockerSerializer(StrictSerializer):
    """A problem that stops the agent, and that it cannot solve itself."""

    type = Text(
        max_length=63, help_text="channel_auth_expired, missing_integration, api_outage, or another name."
    )
    message = Text(max_length=LONGEST_MESSAGE)
    channel_id = Identifier(help_text="The affected channel.", **OPTIONAL)


class SubtaskSerializer(AssigneeSerializer):
    """A part of the work for another role. If it is blocking, the requesting agent's work waits until it has ended."""

    name = Text(max_length=200)
    description = Text(max_length=LONGEST_TEXT, trim_whitespace=False, allow_blank=True, **OPTIONAL)
    params = Member(**OPTIONAL)
    model = Text(max_length=200, help_text="The model to use instead of the role's.", **OPTIONAL)
    max_turns = Whole(
        min_value=1,
        max_value=200,
        help_text="How many answers its model may give; with more, the work fails.",
        **OPTIONAL,
    )
    blocking = Flag()


class ReviewRequestSerializer(StrictSerializer):
    """A question to a person during the work."""

    question = Text(max_length=LONGEST_MESSAGE)
    content = Text(max_length=LONGEST_CONTENT, trim_whitespace=False, allow_blank=True, **OPTIONAL)
    human_role = Text(max_length=63, **OPTIONAL)


class WorkScopeSerializer(StrictSerializer):
    """A selection of the tenant's unfinished work: everything that matches at least one of the lists."""

    pipelines = serializers.ListField(child=Identifier(), max_length=MOST_SCOPES, **OPTIONAL)
    deliverables = serializers.ListField(child=Identifier(), max_length=MOST_SCOPES, **OPTIONAL)
    roles = serializers.ListField(child=RoleName(max_length=63), max_length=MOST_SCOPES, **OPTIONAL)
    groups = serializers.ListField(child=Text(max_length=200), max_length=MOST_SCOPES, **OPTIONAL)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not any(attrs.values()):
            raise serializers.ValidationError("must name pipelines, deliverables, roles or groups")
        return attrs


class ApprovalRequestSerializer(StrictSerializer):
    """A request for a decision about several activities. If an agent names neither `activity_ids` nor a scope, it is about its own
    activity."""

    type = Text(max_length=63, help_text="content_direction, brand_direction, or another name.")
    title = Text(max_length=200)
    description = Text(max_length=LONGEST_TEXT, trim_whitespace=False, allow_blank=True, **OPTIONAL)
    options = OptionsField(**OPTIONAL)
    human_role = Text(max_length=63, **OPTIONAL)
    activity_ids = serializers.ListField(
        child=Identifier(), max_length=settings.ORCHESTRATOR_LINKS_PER_APPROVAL, **OPTIONAL
    )


class ApprovalByAgentSerializer(ApprovalRequestSerializer):
    """An agent's request for a decision. It may also name a scope, within the work that people allow its role to hold."""

    scope = WorkScopeSerializer(
        help_text="Waiting work to hold, within what people allow the agent's role (`may_hold` of its settings).",
        **OPTIONAL,
    )


KINDS: dict[str, type[StrictSerializer]] = {
    "report_blocker": BlockerSerializer,
    "create_subtask": SubtaskSerializer,
    "request_human_review": ReviewRequestSerializer,
    "create_approval": ApprovalByAgentSerializer,
    "reassign_task": ReassignmentSerializer,
}


def arguments_of(tool: str, body: Any, tenant_id: UUID | None = None) -> Mapping[str, Any]:
    """Validate the arguments of a tool call; only with a tenant, whether its roles can be named now.

    Raises REST framework's `ValidationError`, and `KeyError` for an unknown tool.
    """
    return read(KINDS[tool], body, tenant_id=tenant_id)
