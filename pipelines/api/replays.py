"""Doing an ended run again from one of its steps."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from drf_spectacular.utils import OpenApiExample
from rest_framework.request import Request
from rest_framework.response import Response

from activities.api.submissions import GivenInputSerializer
from agents.api.digests import Digested
from agents.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from agents.api.strict import OPTIONAL, StrictSerializer, Text, read
from pipelines.api.runs import shown_run
from pipelines.api.serializers import RUNS, PipelineRunSerializer
from pipelines.models import PipelineRun
from pipelines.replaying import replay
from tenants.api.views import TenantView
from tenants.models import Role


class RunReplaySerializer(StrictSerializer):
    """From where, and on what."""

    from_step = Text(max_length=63)
    input = GivenInputSerializer(
        help_text="What the step works on, instead of what the steps before it have left.", **OPTIONAL
    )


class RunReplay(Digested, TenantView):
    queryset = PipelineRun.objects
    pagination_class = None
    scope = "pipelines"
    required_role: ClassVar[Role] = Role.OPERATOR

    @operation(
        "Do an ended run again from one of its steps",
        request=RunReplaySerializer,
        answer=PipelineRunSerializer,
        status=201,
        refusals=(400, 404, 409, 412),
        parameters=(IDEMPOTENCY_KEY, IF_MATCH),
        examples=[
            OpenApiExample(
                "On other input",
                {"from_step": "brief", "input": {"content": "Shorter."}},
                request_only=True,
            )
        ],
    )
    def post(self, request: Request, run_id: UUID) -> Response:
        """The answer is a new run of the same version. Steps before `from_step` keep their outputs by reference; it and all that comes
        after it is done anew, and so is what failed beside it. 409 while the run, or another replay of it, is under way."""
        given = read(RunReplaySerializer, request.data)
        self.refuse_changed(shown_run(self.tenant_id, run_id))
        run = replay(
            self.tenant_id, run_id, from_step=given["from_step"], given=given.get("input"),
            actor=self.principal.actor, requested_identity=self.principal.identity,
        )  # fmt: skip
        return Response(
            shown_run(self.tenant_id, run.pk), status=201, headers={"Location": f"{RUNS}{run.pk}/"}
        )
