"""The tools of agents: `/agent-runs/{run_id}/tools/{tool}/`. Each call has one effect; its repetition gets the first answer again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from drf_spectacular.utils import PolymorphicProxySerializer
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from activities import tools
from activities.api import backlog, reports
from activities.api.assignees import AssigneeSerializer, ReassignmentSerializer
from activities.api.rules import OptionsField, RulesSerializer, rules_of
from activities.api.run_callbacks import STOP, RunView
from activities.exceptions import RunSuperseded, ToolRefused
from activities.run_tokens import RunToken
from agents.api.documentation import IDEMPOTENCY_KEY, operation
from agents.api.strict import OPTIONAL, Flag, Identifier, Member, StrictSerializer, Text, read
from tenants.api.idempotency import HEADER, key_of
from tenants.context import tenant_scope
from tenants.models import Channel

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
    blocking = Flag()


class ReviewRequestSerializer(RulesSerializer):
    """A question to a person in the middle of the work."""

    question = Text(max_length=LONGEST_MESSAGE)
    content = Text(max_length=LONGEST_CONTENT, trim_whitespace=False, allow_blank=True, **OPTIONAL)


class ApprovalRequestSerializer(RulesSerializer):
    """A decision about several activities. Left out, `activity_ids` is the agent's own."""

    type = Text(max_length=63, help_text="content_direction, brand_direction, or another name.")
    title = Text(max_length=200)
    description = Text(max_length=LONGEST_TEXT, trim_whitespace=False, allow_blank=True, **OPTIONAL)
    options = OptionsField(**OPTIONAL)
    activity_ids = serializers.ListField(
        child=Identifier(), max_length=settings.ORCHESTRATOR_LINKS_PER_APPROVAL, **OPTIONAL
    )


class ToolAnswerSerializer(serializers.Serializer[Any]):
    """What came of it. When `stop` is true the run is over: the agent ends, and is started again when there is something new."""

    id = serializers.UUIDField(
        help_text="The activity that came into being: resolution, subtask, review, approval or heir."
    )
    status = serializers.CharField(help_text="Of the agent's own activity.")
    stop = serializers.BooleanField()
    duplicate = serializers.BooleanField(help_text="The same call had come before.")


KINDS: dict[str, type[StrictSerializer]] = {
    "report_blocker": BlockerSerializer,
    "create_subtask": SubtaskSerializer,
    "request_human_review": ReviewRequestSerializer,
    "create_approval": ApprovalRequestSerializer,
    "reassign_task": ReassignmentSerializer,
}
ARGUMENTS = PolymorphicProxySerializer(
    component_name="ToolArguments",
    serializers=list(KINDS.values()),
    resource_type_field_name=None,
    many=False,
)


class RunTool(RunView):
    @operation(
        "A tool of the orchestrator",
        request=ARGUMENTS,
        answers={201: ToolAnswerSerializer, 200: ToolAnswerSerializer},
        refusals=(400, 403, 404, 409, 429),
        parameters=(IDEMPOTENCY_KEY,),
        notes={
            409: STOP,
            403: "The agent may not do this with what it names.",
            429: "A quota is used up; `quota` names it.",
        },
    )
    def post(self, request: Request, run_id: UUID, tool: str) -> Response:
        """One of `report_blocker`, `create_subtask`, `request_human_review`, `create_approval` and `reassign_task`. Calls with equal
        bodies are one call, unless their `Idempotency-Key` differs."""
        if tool not in KINDS:
            raise NotFound(f"The tools are {', '.join(KINDS)}.", code="tool_not_available")
        run = self.caller.token
        reports.refuse_if_over(run)
        arguments = read(KINDS[tool], request.data)
        if issubclass(KINDS[tool], RulesSerializer):
            arguments["rules"] = rules_of(arguments)
        answer = _called(run, tool, arguments, _key_of(request))
        return Response({**answer.body, "duplicate": answer.repeated}, status=200 if answer.repeated else 201)


def _key_of(request: Request) -> str:
    text = request.headers.get(HEADER)
    return "" if text is None else key_of(text)


def _called(run: RunToken, tool: str, arguments: dict[str, Any], key: str) -> tools.Answer:
    with tenant_scope(run.tenant_id):
        answer = tools.answered_before(run, tool, arguments, key=key)
    if answer is not None:
        return answer
    _refuse_unknown(run, arguments)
    try:
        return tools.call(run, tool, arguments, key=key)
    except RunSuperseded as error:
        raise reports.run_over(run) from error


def _refuse_unknown(run: RunToken, arguments: dict[str, Any]) -> None:
    """Look at what the arguments name. Raises `ToolRefused` for what is not the tenant's, `BacklogFull`."""
    with tenant_scope(run.tenant_id):
        channel = arguments.get("channel_id")
        if channel and not Channel.objects.for_tenant(run.tenant_id).filter(pk=channel).exists():
            raise ToolRefused(f"There is no channel {channel}.")
        if role := arguments.get("agent_role"):
            backlog.make_room(run.tenant_id, [role])
