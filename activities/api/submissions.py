"""Validates new activities that clients submit. An invalid one is refused with all its errors at once, by path."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any
from uuid import UUID

from rest_framework import serializers

from activities import file_scopes
from activities.models.activity import GroupScope
from activities.schemas import (
    ABOUT_PEOPLE,
    SCALES,
    MailboxKey,
    OptionsField,
    PriorityField,
    RulesSerializer,
    errors_of_priority,
    priority_of,
    rules_of,
)
from activities.submission import NewActivity
from agents import configuration, input_schemas
from agents.api.role_names import RoleName
from tenants import clock
from tenants.api.serializers import (
    OPTIONAL,
    Flag,
    Identifier,
    Json,
    Member,
    Moment,
    OneOf,
    StrictSerializer,
    Text,
    Whole,
)

LONGEST_NAME = 200
LONGEST_KEY = 200
LONGEST_TIMEOUT = 86_400  # seconds; a provider's batch may take a day
MOST_ATTEMPTS = 50


class FilesField(serializers.ListField):
    """A list of paths and globs. Errors name the position of the path."""

    child = serializers.CharField()
    default_error_messages = {"not_a_list": "must be a list of paths"}

    def to_internal_value(self, data: Any) -> list[str]:
        if not isinstance(data, list):
            self.fail("not_a_list", input_type=type(data).__name__)
        if len(data) > file_scopes.MOST_FILES:
            raise serializers.ValidationError([f"must have at most {file_scopes.MOST_FILES} paths"])
        errors: dict[Any, Any] = {}
        paths = set()
        for index, path in enumerate(data):
            try:
                if not isinstance(path, str):
                    raise ValueError("must be text")
                paths.add(file_scopes.normalise_path(path))
            except ValueError as error:
                errors[index] = [str(error)]
        if errors:
            raise serializers.ValidationError(errors)
        return sorted(paths)


class GivenInputSerializer(StrictSerializer):
    """What the work begins with."""

    content = Text(trim_whitespace=False, allow_blank=True, **OPTIONAL)
    data = Json(**OPTIONAL)  # type: ignore[assignment]  # a field, not the attribute


class NewActivitySerializer(RulesSerializer):
    """A piece of work for an agent (`agent_role`) or a person (`human_role`)."""

    name = Text(max_length=LONGEST_NAME)
    description = Text(trim_whitespace=False, allow_blank=True, max_length=100_000, **OPTIONAL)
    agent_role = RoleName(max_length=63, **OPTIONAL)
    human_role = Text(max_length=63, **OPTIONAL)
    is_approval_gate = Flag(help_text="A person answers yes or no, instead of completing a task.", **OPTIONAL)
    options = OptionsField(help_text="What may be chosen from with the decision.", **OPTIONAL)
    params = Member(**OPTIONAL)
    metadata = Member(**OPTIONAL)
    priority = PriorityField(**OPTIONAL)
    priority_scale = OneOf(
        choices=list(SCALES), help_text="The scale of `priority`, if it is not 1 to 20.", **OPTIONAL
    )
    not_before = Moment(**OPTIONAL)
    expires_at = Moment(**OPTIONAL)
    dedup_key = Text(max_length=LONGEST_KEY, **OPTIONAL)
    group_key = Text(max_length=LONGEST_KEY, **OPTIONAL)
    group_scope = OneOf(
        choices=GroupScope.values,
        help_text="Whether the group is one of its role, which is the default, or of all roles of the tenant.",
        **OPTIONAL,
    )
    files = FilesField(
        help_text="Paths and globs (`src/**`) that nobody else of the tenant may work on at once.", **OPTIONAL
    )
    deliverable = Identifier(**OPTIONAL)
    mailbox = MailboxKey(
        help_text="Key of the mailbox whose conversation it belongs to; made when there is none.",
        **OPTIONAL,
    )
    input = GivenInputSerializer(**OPTIONAL)
    input_ref = Identifier(
        help_text="An output to work on: the `output_ref` of another activity.", **OPTIONAL
    )
    max_attempts = Whole(min_value=1, max_value=MOST_ATTEMPTS, **OPTIONAL)
    timeout_seconds = Whole(min_value=1, max_value=LONGEST_TIMEOUT, **OPTIONAL)
    requires_approval = Flag(help_text="The agent's result waits for a person's approval.", **OPTIONAL)

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        errors = super().errors_of_combination(attrs, invalid)
        errors |= _errors_of_assignee(attrs, invalid, self.context["tenant_id"]) | _errors_of_times(attrs)
        errors |= _errors_of_decision_fields(attrs, invalid)
        if "group_scope" in attrs and "group_key" not in attrs and "group_key" not in invalid:
            errors["group_scope"] = ["needs group_key"]
        if "priority_scale" in attrs and "priority" not in attrs and "priority" not in invalid:
            errors["priority_scale"] = ["needs priority"]
        if "input" in attrs and "input_ref" in attrs:
            errors["input_ref"] = ["cannot be given together with input"]
        if "priority_scale" not in invalid:
            errors |= errors_of_priority(attrs)
        if "agent_role" in attrs and "agent_role" not in errors and "params" not in invalid:
            params = attrs.get("params", {})
            errors |= _errors_of_params(self.context["tenant_id"], attrs["agent_role"], params)
        return errors

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs["priority"] = priority_of(attrs.get("priority"), attrs.pop("priority_scale", None))
        return attrs


def new_activity(
    attrs: Mapping[str, Any], *, requested_by: str = "", mailbox_id: UUID | None = None
) -> NewActivity:
    """Return the activity to submit for validated data. `requested_by` is the identity of the caller."""
    names = ("deliverable", "mailbox", "input", *ABOUT_PEOPLE)
    plain = {name: value for name, value in attrs.items() if name not in names}
    has_rules = any(name in attrs for name in ABOUT_PEOPLE)
    return NewActivity(
        **plain,
        deliverable_id=attrs.get("deliverable"),
        mailbox_id=mailbox_id,
        input=attrs.get("input") or None,
        decision_rules=rules_of(attrs, asked_by=requested_by).as_json() if has_rules else None,
    )


def _errors_of_assignee(
    attrs: Mapping[str, Any], invalid: Container[str], tenant_id: UUID
) -> dict[str, list[str]]:
    agent, human = attrs.get("agent_role"), attrs.get("human_role")
    errors: dict[str, list[str]] = {}
    if agent and human:
        errors["human_role"] = ["cannot be given together with agent_role: one of them does the work"]
    if not agent and not human and "agent_role" not in invalid and "human_role" not in invalid:
        errors["agent_role"] = ["is required, unless human_role is given"]
    if agent and (refused := configuration.errors_of_role(agent, tenant_id)):
        errors["agent_role"] = refused
    if human and not agent:
        for name, message in _ONLY_FOR_AGENTS.items():
            if attrs.get(name):
                errors[name] = [message]
    return errors


_ONLY_FOR_AGENTS = {
    "requires_approval": "is for an agent's work",
    "files": "is for an agent's work",
    "not_before": "is for an agent's work: a person claims it at any time",
}


def _errors_of_decision_fields(attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, list[str]]:
    """Return errors for fields about a decision, if the activity needs no decision."""
    if any(name in invalid for name in ("human_role", "is_approval_gate", "requires_approval")):
        return {}
    names = [name for name in ABOUT_PEOPLE if name in attrs]
    if attrs.get("is_approval_gate") and attrs.get("agent_role"):
        return {"is_approval_gate": ["is for a person; an agent's work has requires_approval"]}
    if attrs.get("is_approval_gate") or attrs.get("requires_approval"):
        return {}
    if not attrs.get("human_role"):
        return {name: ["is for a person's work, or an agent's with requires_approval"] for name in names}
    decided = [name for name in names if name in ("quorum", "voters", "self_approval", "options")]
    errors = {name: ["needs is_approval_gate: a task is completed, not decided"] for name in decided}
    if attrs.get("on_timeout") in ("approve", "reject"):
        errors["on_timeout"] = ["needs is_approval_gate, unless it is escalate: nobody decides a task"]
    return errors


def _errors_of_times(attrs: Mapping[str, Any]) -> dict[str, list[str]]:
    expires_at, not_before = attrs.get("expires_at"), attrs.get("not_before")
    if expires_at and expires_at <= clock.now():
        return {"expires_at": ["has passed"]}
    if expires_at and not_before and expires_at <= not_before:
        return {"expires_at": ["must be after not_before"]}
    return {}


def _errors_of_params(tenant_id: UUID, role: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the violations of the agent's JSON Schema, nested like the parameters."""
    errors: dict[str, Any] = {}
    for path, message in input_schemas.violations(tenant_id, role, params):
        place: dict[Any, Any] = errors
        for part in path:
            place = place.setdefault(part, {})
        place.setdefault("", []).append(message)
    return errors
