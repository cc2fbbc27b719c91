"""Activities as the API shows them, and new ones as they are asked for: one object with everything that is wrong with it, by path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from activities import activity_tree, file_scopes, states
from activities.models import Activity
from activities.models.activity import GroupScope
from activities.schemas import (
    ABOUT_PEOPLE,
    SCALES,
    OptionsField,
    PriorityField,
    RulesSerializer,
    priority_of,
    rules_of,
)
from activities.states import LinkKind, Status
from activities.submission import NewActivity
from activities.wait_reasons import Waiting
from agents import configuration, input_schemas
from agents.routing import role_named
from tenants import clock
from tenants.api.serializers import (
    OPTIONAL,
    Flag,
    Identifier,
    Json,
    Member,
    Moment,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    Whole,
)

ACTIVITIES = "/api/v1/activities/"


def link_of(activity_id: UUID) -> str:
    return f"{ACTIVITIES}{activity_id}/"


#: Which verbs of the state table the API offers, under which name, and for whose activities.
_ACTIONS = {
    "take_up": ("start", "human"),
    "finish": ("complete", "human"),
    "approve": ("approve", "agent"),
    "reject": ("reject", "agent"),
    "approve_gate": ("approve", "human"),
    "reject_gate": ("reject", "human"),
    "retry": ("retry", None),
    "reassign": ("reassign", None),
    "cancel": ("cancel", None),
}


def list_allowed_actions(activity: Activity) -> list[str]:
    """What may be asked for right now, as the last part of the address to post to."""
    kind, refused = activity.link_kind, set()
    if activity.assignee_type == "human":
        refused |= {"finish"} if activity_tree.is_decision(activity) else set()
        refused |= (
            set() if activity.is_approval_gate or kind == LinkKind.REVIEW else {"approve_gate", "reject_gate"}
        )
    if kind == LinkKind.GATE:
        refused.add("cancel")  # Anyone who wants it gone cancels what waits behind it.
    if kind in (LinkKind.GATE, LinkKind.REVIEW, LinkKind.APPROVAL, LinkKind.ESCALATION):
        refused.add("reassign")  # Anyone who is asked answers it.
    offered = [
        _ACTIONS[verb][0]
        for verb in states.verbs_from(activity.status)
        if verb in _ACTIONS and verb not in refused and _ACTIONS[verb][1] in (None, activity.assignee_type)
    ]
    return [_ANSWERS.get((kind, name), name) for name in offered]


#: What an answer is called where it is more than completing something.
_ANSWERS: dict[tuple[str | None, str], str] = {(LinkKind.RESOLUTION, "complete"): "resolve"}


class WaitingForSerializer(serializers.Serializer[Any]):
    """A reason in short; `GET /activities/{id}/why/` gives the whole of it."""

    code = serializers.CharField()
    detail = serializers.CharField()
    holder = serializers.CharField(allow_null=True, help_text="Who or what it waits for, if that is known.")


class ActivitySerializer(ResponseSerializer):
    """One piece of work for an agent or a person."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    description = serializers.CharField()
    status = serializers.CharField(help_text=f"One of {', '.join(Status)}.")
    assignee_type = serializers.CharField(help_text="agent or human")
    agent_role = serializers.CharField(allow_null=True)
    human_role = serializers.CharField(allow_null=True)
    is_approval_gate = serializers.BooleanField()
    requires_approval = serializers.BooleanField()
    priority = serializers.IntegerField(help_text="1 (urgent) to 20 (background)")
    wake_reason = serializers.CharField(allow_null=True, help_text="Why the agent was started last.")
    params = serializers.DictField()
    metadata = serializers.DictField()
    input_ref = serializers.UUIDField(allow_null=True)
    output_ref = serializers.UUIDField(allow_null=True)
    parent = serializers.UUIDField(source="parent_id", allow_null=True)  # type: ignore[assignment]  # a field, not the attribute
    link_kind = serializers.CharField(allow_null=True, help_text="What it is to its parent.")
    deliverable = serializers.UUIDField(source="deliverable_id", allow_null=True)
    period = serializers.UUIDField(
        source="period_id", allow_null=True, help_text="The month of its deliverable that it belongs to."
    )
    pipeline = serializers.UUIDField(
        source="pipeline_id", allow_null=True, help_text="Whose run it is a step of."
    )
    pipeline_run = serializers.UUIDField(source="pipeline_run_id", allow_null=True)
    template = serializers.CharField(
        allow_null=True, help_text="Key of the template that its step was made from."
    )
    step = serializers.CharField(allow_null=True)
    branch = serializers.IntegerField(help_text="Which item of its step's for_each it does, from 1; else 0.")
    schedule = serializers.UUIDField(
        source="schedule_id", allow_null=True, help_text="The schedule that it comes from."
    )
    round = serializers.IntegerField()
    dedup_key = serializers.CharField(allow_null=True)
    group_key = serializers.CharField(allow_null=True)
    group_scope = serializers.CharField(
        help_text="role or tenant: among whose activities `group_key` counts."
    )
    files = serializers.ListField(
        child=serializers.CharField(),
        help_text="What it works on: no other activity of the tenant with an overlapping path runs at once.",
    )
    attempts = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    stalls = serializers.IntegerField()
    timeout_seconds = serializers.IntegerField(allow_null=True)
    not_before = serializers.DateTimeField(allow_null=True)
    expires_at = serializers.DateTimeField(allow_null=True)
    due_at = serializers.DateTimeField(allow_null=True)
    reviewer_notes = serializers.CharField(allow_null=True)
    chosen_option = serializers.CharField(allow_null=True)
    decided_by = serializers.CharField(allow_null=True)
    decided_at = serializers.DateTimeField(allow_null=True)
    blocker_type = serializers.CharField(allow_null=True)
    blocker_message = serializers.CharField(allow_null=True)
    blocked_at = serializers.DateTimeField(allow_null=True, help_text="When it was blocked last.")
    cancel_reason = serializers.CharField(allow_null=True)
    reassign_reason = serializers.CharField(allow_null=True)
    decision_rules = serializers.DictField(
        allow_null=True, help_text="Options, quorum, reminders, and what happens when nobody decides."
    )
    error = serializers.DictField(
        allow_null=True, help_text="`{code, message, retryable}` of the last failure."
    )
    waiting_for = serializers.SerializerMethodField()
    allowed_actions = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField(help_text="Raised by every change; the ETag.")
    link = serializers.SerializerMethodField()

    @extend_schema_field(WaitingForSerializer(allow_null=True))
    def get_waiting_for(self, activity: Activity) -> dict[str, str | None] | None:
        found: Waiting | None = self.context["waiting"].get(activity.pk)
        if found is None or found.code is None:
            return None
        return {"code": found.code, "detail": found.detail, "holder": found.holder}

    def get_allowed_actions(self, activity: Activity) -> list[str]:
        return list_allowed_actions(activity)

    def get_link(self, activity: Activity) -> str:
        return link_of(activity.pk)


class InboxItemSerializer(ActivitySerializer):
    """An activity that a person is asked for, with what it is about."""

    kind = serializers.SerializerMethodField(
        help_text="gate, approval, task, resolution, review or escalation"
    )
    subject = serializers.SerializerMethodField(help_text="The activity that this one is about.")

    def get_kind(self, activity: Activity) -> str:
        named = (LinkKind.APPROVAL, LinkKind.RESOLUTION, LinkKind.REVIEW, LinkKind.ESCALATION)
        if activity.link_kind in named:
            return str(activity.link_kind)
        return "gate" if activity.is_approval_gate else "task"

    def get_subject(self, activity: Activity) -> dict[str, Any] | None:
        about = activity.parent
        if about is None:
            return None
        shown = ("id", "name", "status", "agent_role", "round", "output_ref", "step")
        return {**{name: getattr(about, name) for name in shown}, "link": link_of(about.pk)}


class RunSerializer(ResponseSerializer):
    """One attempt of an agent."""

    id = serializers.UUIDField()
    activity = serializers.UUIDField(source="activity_id")
    attempt = serializers.IntegerField()
    status = serializers.CharField(help_text=f"One of {', '.join(states.RunStatus)}.")
    wake_reason = serializers.CharField()
    agent_version = serializers.CharField()
    worker = serializers.UUIDField(
        source="worker_id",
        allow_null=True,
        help_text="The process that carries it; null once its agent has accepted it.",
    )
    started_at = serializers.DateTimeField()
    accepted_at = serializers.DateTimeField(
        allow_null=True, help_text="When the agent took the work, to report later."
    )
    ended_at = serializers.DateTimeField(allow_null=True)
    timeout_seconds = serializers.IntegerField()
    deadline = serializers.DateTimeField(help_text="When its time is over.")
    beats = serializers.IntegerField(help_text="Heartbeats of an accepted run.")
    last_heartbeat_at = serializers.DateTimeField(source="beat_at", allow_null=True)
    progress = Json(allow_null=True)
    usage = serializers.DictField(allow_null=True)
    session_id = serializers.CharField()
    error = serializers.DictField(allow_null=True)


class OutputSerializer(ResponseSerializer):
    """What an activity produced."""

    id = serializers.UUIDField()
    content = serializers.CharField(allow_null=True)
    data = Json(allow_null=True)  # type: ignore[assignment]  # a field, not the attribute
    content_type = serializers.CharField()
    created_at = serializers.DateTimeField()


class WorkedOnSerializer(serializers.Serializer[Any]):
    """What an activity works on. Where a step was fanned out, `content` and `data` are lists."""

    ref = serializers.UUIDField(allow_null=True, help_text="The output that it is, if it is one.")
    content = serializers.CharField(allow_null=True)
    data = Json(allow_null=True)  # type: ignore[assignment]  # a field, not the attribute
    steps = serializers.DictField(
        required=False, help_text="Of the steps before it: `{step: {ref, content, data}}`."
    )


class WhySerializer(ResponseSerializer):
    """Why an activity does not run right now; `code` is null when it runs or has ended."""

    code = serializers.CharField(
        allow_null=True,
        help_text="no_worker, tenant_cap, role_cap, group_cap, global_cap, provider_limit, breaker_open, budget, batch, paused, "
        "not_before, retry_delay, dependency, human or queued",
    )
    detail = serializers.CharField()
    holder = serializers.CharField(allow_null=True, help_text="Who or what it waits for.")
    since = serializers.DateTimeField(allow_null=True)
    position = serializers.IntegerField(
        allow_null=True, help_text="Among equal work of this tenant; 1 is next."
    )
    estimate_seconds = serializers.FloatField(allow_null=True)


class MomentSerializer(serializers.Serializer[Any]):
    """One entry of a timeline. Beside these members it has those of its kind."""

    at = serializers.DateTimeField()
    kind = serializers.CharField(help_text="transition, wake, run, tool_call, vote or deadline")


LONGEST_NAME = 200
LONGEST_KEY = 200
LONGEST_TIMEOUT = 86_400  # seconds; a provider's batch may take a day
MOST_ATTEMPTS = 50


class FilesField(serializers.ListField):
    """Paths and globs, each of whose errors is named by its place."""

    child = serializers.CharField()
    default_error_messages = {"not_a_list": "must be a list of paths"}

    def to_internal_value(self, data: Any) -> list[str]:
        if not isinstance(data, list):
            self.fail("not_a_list", input_type=type(data).__name__)
        if len(data) > file_scopes.MOST_FILES:
            raise serializers.ValidationError([f"must have at most {file_scopes.MOST_FILES} paths"])
        errors: dict[Any, Any] = {}
        found = set()
        for index, path in enumerate(data):
            try:
                if not isinstance(path, str):
                    raise ValueError("must be text")
                found.add(file_scopes.normalise_path(path))
            except ValueError as error:
                errors[index] = [str(error)]
        if errors:
            raise serializers.ValidationError(errors)
        return sorted(found)


class GivenInputSerializer(StrictSerializer):
    """What the work begins with."""

    content = Text(trim_whitespace=False, allow_blank=True, **OPTIONAL)
    data = Json(**OPTIONAL)  # type: ignore[assignment]  # a field, not the attribute


class NewActivitySerializer(RulesSerializer):
    """A piece of work for an agent (`agent_role`) or a person (`human_role`)."""

    name = Text(max_length=LONGEST_NAME)
    description = Text(trim_whitespace=False, allow_blank=True, max_length=100_000, **OPTIONAL)
    agent_role = Text(max_length=63, **OPTIONAL)
    human_role = Text(max_length=63, **OPTIONAL)
    is_approval_gate = Flag(help_text="A person answers yes or no, instead of completing a task.", **OPTIONAL)
    options = OptionsField(help_text="What may be chosen from with the decision.", **OPTIONAL)
    params = Member(**OPTIONAL)
    metadata = Member(**OPTIONAL)
    priority = PriorityField(**OPTIONAL)
    priority_scale = OneOf(
        choices=list(SCALES), help_text="The scale that `priority` is on, if not 1 to 20.", **OPTIONAL
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
    mailbox = Text(
        max_length=LONGEST_KEY,
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

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        if "agent_role" in attrs:
            attrs["agent_role"] = role_named(attrs["agent_role"])
        errors: dict[str, Any] = (
            _errors_of_assignee(attrs) | _errors_of_times(attrs) | _errors_of_asking(attrs)
        )
        if "input" in attrs and "input_ref" in attrs:
            errors["input_ref"] = ["cannot be given together with input"]
        try:
            attrs["priority"] = priority_of(attrs.get("priority"), attrs.pop("priority_scale", None))
        except serializers.ValidationError as error:
            errors |= dict(error.detail)  # type: ignore[arg-type]  # a mapping: it has a path
        if not errors and "agent_role" in attrs:
            errors |= _errors_of_params(
                self.context["tenant_id"], attrs["agent_role"], attrs.get("params", {})
            )
        if errors:
            raise serializers.ValidationError(errors)
        return attrs


def new_activity(
    attrs: Mapping[str, Any], *, asked_by: str = "", mailbox_id: UUID | None = None
) -> NewActivity:
    """From what was validated to what is submitted, by the caller with the identity `asked_by`."""
    names = ("deliverable", "mailbox", "input", *ABOUT_PEOPLE)
    plain = {name: value for name, value in attrs.items() if name not in names}
    asks = any(name in attrs for name in ABOUT_PEOPLE)
    return NewActivity(
        **plain,
        deliverable_id=attrs.get("deliverable"),
        mailbox_id=mailbox_id,
        input=attrs.get("input") or None,
        decision_rules=rules_of(attrs, asked_by=asked_by).as_json() if asks else None,
    )


def _errors_of_assignee(attrs: Mapping[str, Any]) -> dict[str, list[str]]:
    agent, human = attrs.get("agent_role"), attrs.get("human_role")
    if agent and human:
        return {"human_role": ["cannot be given together with agent_role: one of them does the work"]}
    if not agent and not human:
        return {"agent_role": ["is required, unless human_role is given"]}
    if agent and agent not in configuration.list_roles():
        return {"agent_role": [f"{agent!r} is no role of the registry; GET /api/v1/agents/ lists them"]}
    if human and attrs.get("requires_approval"):
        return {"requires_approval": ["is for an agent's work"]}
    if human and attrs.get("files"):
        return {"files": ["is for an agent's work"]}
    if "group_scope" in attrs and "group_key" not in attrs:
        return {"group_scope": ["needs group_key"]}
    return {}


def _errors_of_asking(attrs: Mapping[str, Any]) -> dict[str, list[str]]:
    """What is said about people who decide, where nobody decides."""
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
    """What the agent's own JSON Schema says about the parameters, nested as the parameters are."""
    errors: dict[str, Any] = {}
    for path, message in input_schemas.violations(tenant_id, role, params):
        place: dict[Any, Any] = errors
        for part in path:
            place = place.setdefault(part, {})
        place.setdefault("", []).append(message)
    return errors
