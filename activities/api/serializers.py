"""Serializers of activities, their runs and their outputs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from activities import activity_tree, states
from activities.models import Activity
from activities.states import LinkKind, Status
from activities.wait_reasons import Waiting
from tenants.api.serializers import Computed, Json, ResponseSerializer

ACTIVITIES = "/api/v1/activities/"


def link_of(activity_id: UUID) -> str:
    return f"{ACTIVITIES}{activity_id}/"


#: By verb of the state table: the name of its action in the API, and the assignee type it is for (None: both).
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
    """Return the actions that are allowed now. Each name is the last part of the URL to post to."""
    kind, refused = activity.link_kind, set()
    if activity.assignee_type == "human":
        refused |= {"finish"} if activity_tree.is_decision(activity) else set()
        refused |= (
            set() if activity.is_approval_gate or kind == LinkKind.REVIEW else {"approve_gate", "reject_gate"}
        )
    if kind == LinkKind.GATE:
        refused.add("cancel")  # To remove a gate, cancel the activity that waits behind it.
    if kind in (LinkKind.GATE, LinkKind.REVIEW, LinkKind.APPROVAL, LinkKind.ESCALATION):
        refused.add("reassign")  # Only an answer ends these items.
    offered = [
        _ACTIONS[verb][0]
        for verb in states.verbs_from(activity.status)
        if verb in _ACTIONS and verb not in refused and _ACTIONS[verb][1] in (None, activity.assignee_type)
    ]
    return [_ANSWERS.get((kind, name), name) for name in offered]


#: By link kind and action, the more specific name under which the action is offered.
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
    allowed_actions = Computed(list[str], lambda activity: list_allowed_actions(activity))
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField(help_text="Raised by every change; the ETag.")
    link = Computed(str, lambda activity: link_of(activity.pk))

    @extend_schema_field(WaitingForSerializer(allow_null=True))
    def get_waiting_for(self, activity: Activity) -> dict[str, str | None] | None:
        reason: Waiting | None = self.context["waiting"].get(activity.pk)
        if reason is None or reason.code is None:
            return None
        return {"code": reason.code, "detail": reason.detail, "holder": reason.holder}


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
        parent = activity.parent
        if parent is None:
            return None
        fields = ("id", "name", "status", "agent_role", "round", "output_ref", "step")
        return {**{name: getattr(parent, name) for name in fields}, "link": link_of(parent.pk)}


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
