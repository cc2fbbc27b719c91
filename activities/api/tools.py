"""The tools of agents: `/agent-runs/{run_id}/tools/{tool}/`. Each call has one effect; its repetition gets the first answer again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import PolymorphicProxySerializer
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from activities import reports, tool_door
from activities.api.run_callbacks import STOP, RunView
from activities.bodies.tools import KINDS
from agents.api.documentation import IDEMPOTENCY_KEY, operation
from tenants.api.idempotency import HEADER, key_of


class NotHeldSerializer(serializers.Serializer[Any]):
    """An activity that a question does not make wait. The reason is the same for what is not the run's work and for what does not exist."""

    id = serializers.UUIDField()
    reason = serializers.CharField()


class ToolAnswerSerializer(serializers.Serializer[Any]):
    """What came of it. When `stop` is true the run is over: the agent ends, and is started again when there is something new."""

    id = serializers.UUIDField(
        allow_null=True,
        help_text="The activity that came into being: resolution, subtask, review, approval or heir. Null: nobody was asked.",
    )
    status = serializers.CharField(help_text="Of the agent's own activity.")
    stop = serializers.BooleanField()
    duplicate = serializers.BooleanField(help_text="The same call had come before.")
    held = serializers.ListField(
        child=serializers.UUIDField(),
        required=False,
        help_text="Of `create_approval`: what waits for people now.",
    )
    not_held = NotHeldSerializer(many=True, required=False, help_text="Of `create_approval`: what does not.")


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
        answer = tool_door.call(run, tool, request.data, key=_key_of(request))
        return Response({**answer.body, "duplicate": answer.repeated}, status=200 if answer.repeated else 201)


def _key_of(request: Request) -> str:
    text = request.headers.get(HEADER)
    return "" if text is None else key_of(text)
