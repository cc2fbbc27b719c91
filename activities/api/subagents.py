"""Subagents: starts, lists and cancels them, and returns their transcripts."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.db.models import QuerySet
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from activities import outputs, subagents
from activities.api.activities import transcript_response
from activities.api.operations import ReasonSerializer
from activities.execution import prompt
from activities.models import ActivityRun, Subagent
from activities.schemas import MailboxKey
from activities.subagents import NewSubagent, output_file_of
from agents import configuration
from agents.api.role_names import RoleFilter, RoleName
from agents.command_line import transcripts
from tenants.api.documentation import command, operation, posting
from tenants.api.etags import DigestEtag
from tenants.api.filters import StrictFilterSet
from tenants.api.serializers import (
    OPTIONAL,
    Computed,
    Flag,
    Identifier,
    ResponseSerializer,
    StrictSerializer,
    Text,
    Whole,
    read,
)
from tenants.api.views import Resource, TenantView, describe_resource
from tenants.context import tenant_scope
from tenants.models import Role

LONGEST_PROMPT = 200_000
MOST_TURNS = 200


class NewSubagentSerializer(StrictSerializer):
    """A prompt for an agent of a role, in a new conversation or an earlier one."""

    subagent_type = RoleName(
        max_length=63, help_text="The role that does the work; it must be in the registry."
    )
    prompt = Text(trim_whitespace=False, max_length=LONGEST_PROMPT)
    description = Text(allow_blank=True, max_length=200, help_text="A few words for people.", **OPTIONAL)
    model = Text(max_length=200, help_text="The model to use instead of the role's.", **OPTIONAL)
    tool_call_id = Text(
        max_length=200,
        help_text="The id of the tool call that starts it. One call of the same `parent_mailbox` starts only one subagent.",
        **OPTIONAL,
    )
    existing_agent_id = Identifier(help_text="A subagent whose conversation is continued.", **OPTIONAL)
    existing_conversation_id = Text(
        max_length=200,
        help_text="The agent's own id of an earlier conversation of this role, which is continued.",
        **OPTIONAL,
    )
    max_turns = Whole(
        min_value=1,
        max_value=MOST_TURNS,
        help_text="How many answers its model may give; with more, the work fails.",
        **OPTIONAL,
    )
    priority = Whole(min_value=0, max_value=9, help_text="Lower values come first. Default: 5.", **OPTIONAL)
    run_in_background = Flag(
        help_text="If false, the caller waits for its end itself, and no mailbox is notified. Default: true.",
        **OPTIONAL,
    )
    silent = Flag(help_text="If true, no mailbox is notified of its end.", **OPTIONAL)
    parent_mailbox = MailboxKey(help_text="The key of the mailbox that is notified of its end.", **OPTIONAL)

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        errors: dict[str, list[str]] = {}
        role = attrs.get("subagent_type")
        if role and (refused := configuration.errors_of_role(role, self.context["tenant_id"])):
            errors["subagent_type"] = refused
        if "existing_agent_id" in attrs and "existing_conversation_id" in attrs:
            errors["existing_conversation_id"] = ["cannot be given together with existing_agent_id"]
        if "prompt" in attrs and not attrs["prompt"].strip():
            errors["prompt"] = ["must not be blank"]
        return errors


class SubagentSerializer(ResponseSerializer):
    """A subagent and its state."""

    task_id = serializers.UUIDField(source="subagent.activity_id", help_text="Its activity.")
    subagent_id = serializers.UUIDField(source="subagent.id")
    output_file = Computed(
        str,
        lambda state: output_file_of(state.subagent.pk),
        help_text="The address of its transcript or its output.",
    )
    status = serializers.CharField(help_text="pending, running, completed, failed or cancelled")
    subagent_type = serializers.CharField(source="subagent.subagent_type")
    description = serializers.CharField(source="subagent.description")
    model = serializers.CharField(source="subagent.model", help_text="Empty if it uses the role's model.")
    max_turns = serializers.IntegerField(source="subagent.max_turns", allow_null=True)
    tool_call_id = serializers.CharField(source="subagent.tool_call_id")
    mailbox = serializers.CharField(
        source="subagent.conversation.key",
        help_text="The mailbox of its conversation, where messages to it are posted.",
    )
    parent_mailbox = serializers.CharField(source="subagent.parent_mailbox")
    continues = serializers.UUIDField(
        source="subagent.continues_id",
        allow_null=True,
        help_text="The earlier subagent whose conversation it continues.",
    )
    run_in_background = serializers.BooleanField(source="subagent.run_in_background")
    silent = serializers.BooleanField(source="subagent.silent")
    activity = serializers.UUIDField(
        source="activity.id",
        help_text="The current activity: the latest revision or successor, if there is one.",
    )
    error = serializers.DictField(source="activity.error", allow_null=True)
    total_tokens = serializers.IntegerField()
    duration_seconds = serializers.FloatField(
        allow_null=True, help_text="Seconds from the beginning of its first run until its end, or until now."
    )
    created_at = serializers.DateTimeField(source="subagent.created_at")
    finished_at = serializers.DateTimeField(source="activity.finished_at", allow_null=True)


class SubagentFilter(StrictFilterSet):
    subagent_type = RoleFilter()
    parent_mailbox = django_filters.CharFilter()


@describe_resource(many="Subagents, newest first")
class SubagentViewSet(DigestEtag, Resource):
    queryset = Subagent.objects
    serializer_class = SubagentSerializer
    filterset_class = SubagentFilter
    ordering = ("-created_at", "-id")
    scope = "subagents"
    volatile = ("duration_seconds",)
    required_role: ClassVar[dict[str, Role]] = {"create": Role.OPERATOR, "cancel": Role.OPERATOR}

    def get_queryset(self) -> QuerySet[Any]:
        return super().get_queryset().select_related("activity", "conversation")

    def show(self, rows: Any, *, many: bool = False) -> Any:
        return super().show(subagents.states_of(self.tenant_id, rows) if many else rows, many=many)

    @operation("One subagent", answer=SubagentSerializer, refusals=(404,))
    def retrieve(self, request: Request, pk: UUID) -> Response:
        return self._render(pk)

    @posting(
        "Start a subagent", NewSubagentSerializer, answers={201: SubagentSerializer, 200: SubagentSerializer}
    )
    def create(self, request: Request) -> Response:
        """A repetition with the same `tool_call_id` and `parent_mailbox` gets 200 with the existing subagent."""
        new = NewSubagent(**read(NewSubagentSerializer, request.data, tenant_id=self.tenant_id))
        started = subagents.start(self.tenant_id, new, actor=self.principal.actor)
        return self._render(started.subagent.pk, status=201 if started.created else 200)

    @command("Cancel a subagent", ReasonSerializer, SubagentSerializer)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: UUID) -> Response:
        """Waiting work never starts; a running agent is told to stop. A subagent that has ended stays as it is."""
        reason = read(ReasonSerializer, request.data).get("reason", "")
        self.refuse_changed(SubagentSerializer(subagents.state_of(self.tenant_id, pk)).data)
        subagents.cancel(self.tenant_id, pk, actor=self.principal.actor, reason=reason)
        return self._render(pk)

    def _render(self, pk: UUID, status: int = 200) -> Response:
        state = subagents.state_of(self.tenant_id, pk)
        headers = {"Location": f"/api/v1/subagents/{pk}/"} if status == 201 else {}
        return Response(SubagentSerializer(state).data, status=status, headers=headers)


class SubagentTranscript(ViewSetMixin, TenantView):
    # The transcript is streamed from a file or read from MongoDB, which must not keep a transaction open.
    in_one_transaction = False
    queryset = Subagent.objects
    scope = "subagents"

    @operation("The transcript of a subagent", answer=OpenApiTypes.STR, refusals=(404, 503))
    def retrieve(self, request: Request, pk: UUID) -> HttpResponseBase:
        """Plain text: the transcript of its last run, if it is stored on this machine; otherwise its output, or the error message.

        404 with the code `no_transcript` if there is neither."""
        with tenant_scope(self.tenant_id):
            state = subagents.state_of(self.tenant_id, pk)
            runs = ActivityRun.objects.for_tenant(self.tenant_id).filter(activity_id__in=state.ids)
            last = runs.order_by("-started_at").values_list("pk", flat=True).first()
        pieces = transcripts.read(self.tenant_id, last) if last else None
        if pieces is None:
            reference = state.activity.output_ref
            output = outputs.read(self.tenant_id, reference) if reference else None
            if output is not None:
                text = output.content if output.content is not None else prompt.as_json(output.data)
            elif state.activity.error:
                text = str(state.activity.error.get("message", ""))
            else:
                raise NotFound(code="no_transcript")
            pieces = iter([text.encode()])
        return transcript_response(pk, pieces)
