"""Serializers of activities, their runs and their outputs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from activities import states
from activities.models import Activity
from activities.states import Status
from activities.wait_reasons import Waiting
from tenants.api.serializers import Computed, Json, ResponseSerializer

ACTIVITIES = "/api/v1/activities/"


def link_of(activity_id: UUID) -> str:
    return f"{ACTIVITIES}{activity_id}/"


# JSON that escapes every character with \u needs up to three bytes for each byte of text.
ESCAPED = 3
ENVELOPE_BYTES = 64 * 1024


def largest_body_with_output() -> int:
    """Return the size of the largest body that may contain an output of the allowed size."""
    return ESCAPED * int(settings.ORCHESTRATOR_MAX_OUTPUT_BYTES) + ENVELOPE_BYTES


class WaitingForSerializer(serializers.Serializer[Any]):
    """The reason in short; `GET /activities/{id}/why/` returns all details."""

    code = serializers.CharField()
    detail = serializers.CharField()
    holder = serializers.CharField(allow_null=True, help_text="Who or what it waits for, if known.")


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
    wake_reason = serializers.CharField(allow_null=True, help_text="Why the agent was last started.")
    params = serializers.DictField()
    metadata = serializers.DictField()
    input_ref = serializers.UUIDField(allow_null=True)
    output_ref = serializers.UUIDField(allow_null=True)
    parent = serializers.UUIDField(source="parent_id", allow_null=True)  # type: ignore[assignment]  # a field, not the attribute
    link_kind = serializers.CharField(
        allow_null=True, help_text="Its relation to its parent, such as gate or subtask."
    )
    deliverable = serializers.UUIDField(source="deliverable_id", allow_null=True)
    period = serializers.UUIDField(
        source="period_id",
        allow_null=True,
        help_text="The period (month) of its deliverable that it belongs to.",
    )
    pipeline = serializers.UUIDField(
        source="pipeline_id", allow_null=True, help_text="The pipeline whose run it belongs to."
    )
    pipeline_run = serializers.UUIDField(source="pipeline_run_id", allow_null=True)
    template = serializers.CharField(allow_null=True, help_text="Key of the template of its step.")
    step = serializers.CharField(allow_null=True)
    branch = serializers.IntegerField(
        help_text="The number of its item in the step's `for_each`, from 1; 0 without `for_each`."
    )
    schedule = serializers.UUIDField(
        source="schedule_id", allow_null=True, help_text="The schedule that it comes from."
    )
    round = serializers.IntegerField()
    dedup_key = serializers.CharField(allow_null=True)
    group_key = serializers.CharField(allow_null=True)
    group_scope = serializers.CharField(
        help_text="role or tenant: whether `group_key` applies to activities of its role only, or of all roles."
    )
    files = serializers.ListField(
        child=serializers.CharField(),
        help_text="Paths that it works on. Activities of the tenant with overlapping paths never run at the same time.",
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
    blocked_at = serializers.DateTimeField(allow_null=True, help_text="Since when a blocker holds it.")
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
    version = serializers.IntegerField(help_text="Increases with every change; the ETag begins with it.")
    link = Computed(str, lambda activity: link_of(activity.pk))

    @extend_schema_field(WaitingForSerializer(allow_null=True))
    def get_waiting_for(self, activity: Activity) -> dict[str, str | None] | None:
        reason: Waiting | None = self.context["waiting"].get(activity.pk)
        if reason is None or reason.code is None:
            return None
        return {"code": reason.code, "detail": reason.detail, "holder": reason.holder}

    def get_allowed_actions(self, activity: Activity) -> list[str]:
        names: list[str] = self.context["allowed_actions"][activity.pk]
        return names


class InboxItemSerializer(ActivitySerializer):
    """An activity that waits for a person, with the activity that it is about."""

    kind = serializers.CharField(help_text="gate, approval, task, resolution, review or escalation")
    subject = serializers.SerializerMethodField(help_text="The activity that this one is about.")

    def get_subject(self, activity: Activity) -> dict[str, Any] | None:
        parent = activity.parent
        if parent is None:
            return None
        fields = ("id", "name", "status", "agent_role", "round", "output_ref", "step")
        return {**{name: getattr(parent, name) for name in fields}, "link": link_of(parent.pk)}


class RunSerializer(ResponseSerializer):
    """One attempt of an agent at an activity."""

    id = serializers.UUIDField()
    activity = serializers.UUIDField(source="activity_id")
    attempt = serializers.IntegerField()
    status = serializers.CharField(help_text=f"One of {', '.join(states.RunStatus)}.")
    wake_reason = serializers.CharField()
    agent_version = serializers.CharField()
    worker = serializers.UUIDField(
        source="worker_id",
        allow_null=True,
        help_text="The worker process that runs it; null after its agent has accepted it.",
    )
    started_at = serializers.DateTimeField()
    accepted_at = serializers.DateTimeField(
        allow_null=True, help_text="When the agent accepted the work, to report its result later."
    )
    ended_at = serializers.DateTimeField(allow_null=True)
    timeout_seconds = serializers.IntegerField()
    deadline = serializers.DateTimeField(help_text="When it times out.")
    beats = serializers.IntegerField(help_text="Number of heartbeats, if the agent has accepted the run.")
    last_heartbeat_at = serializers.DateTimeField(source="beat_at", allow_null=True)
    progress = Json(allow_null=True)
    usage = serializers.DictField(allow_null=True)
    session_id = serializers.CharField()
    error = serializers.DictField(allow_null=True)


class OutputSerializer(ResponseSerializer):
    """The output of an activity."""

    id = serializers.UUIDField()
    content = serializers.CharField(allow_null=True)
    data = Json(allow_null=True)  # type: ignore[assignment]  # a field, not the attribute
    content_type = serializers.CharField()
    created_at = serializers.DateTimeField()


class WorkedOnSerializer(serializers.Serializer[Any]):
    """The input of an activity. If it comes from a fanned-out step, `content` and `data` are lists."""

    ref = serializers.UUIDField(
        allow_null=True, help_text="The id of the output, if the input is the output of another activity."
    )
    content = serializers.CharField(allow_null=True)
    data = Json(allow_null=True)  # type: ignore[assignment]  # a field, not the attribute
    steps = serializers.DictField(
        required=False, help_text="The outputs of the steps before it: `{step: {ref, content, data}}`."
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
        allow_null=True, help_text="The position in the queue, among similar work of this tenant; 1 is next."
    )
    estimate_seconds = serializers.FloatField(allow_null=True)


class MomentSerializer(serializers.Serializer[Any]):
    """One entry of a timeline. It has further members that depend on its kind."""

    at = serializers.DateTimeField()
    kind = serializers.CharField(help_text="transition, wake, run, tool_call, vote or deadline")
