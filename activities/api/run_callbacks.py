"""Where agents call back: `/agent-runs/{run_id}/`. Every report may be repeated; a run that is over answers 409 and `stop`."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from django.conf import settings
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from activities import reports
from activities.api import jobs, signed_reports
from activities.api.run_authentication import RunCaller, RunPermission, RunTokenAuthentication
from activities.reports import Receipt
from agents.answers import InvalidAnswer, completed_from, session_id_from, usage_from
from agents.api.documentation import operation
from agents.api.strict import OPTIONAL, Flag, Json, Number, StrictSerializer, Text, read
from agents.exceptions import AgentError, AgentRateLimited, PermanentAgentError, RetryableAgentError
from tenants import provenance, tracing
from tenants.api.faults import InvalidRequest
from tenants.api.views import Handler, TenantView, tried_again

LONGEST_CONTENT_TYPE = 100
LONGEST_MESSAGE = 2_000
LONGEST_WAIT = 86_400  # seconds
# A text of \u escapes has three bytes for each byte that it means.
ESCAPED = 3
ENVELOPE_BYTES = 64 * 1024
HEARTBEAT_BYTES = 32 * 1024  # they come often, and progress is for people to read
STOP = "The run is over; `stop` is true."


class UsageSerializer(serializers.Serializer[Any]):
    input_tokens = serializers.IntegerField(min_value=0, required=False)
    output_tokens = serializers.IntegerField(min_value=0, required=False)
    cost_usd = serializers.FloatField(min_value=0, required=False, help_text="Or a decimal as text.")
    model = serializers.CharField(required=False)


class ReportedOutputSerializer(serializers.Serializer[Any]):
    content = serializers.CharField(required=False, allow_null=True)
    data = Json(required=False, allow_null=True)  # type: ignore[assignment]  # a field, not the attribute
    content_type = serializers.CharField(required=False, help_text="text/markdown if left out")


class HeartbeatSerializer(serializers.Serializer[Any]):
    progress = Json(required=False, help_text="A text or an object, for people to see.")
    usage = UsageSerializer(required=False)
    session_id = serializers.CharField(
        required=False, help_text="The agent's own id of its conversation, kept at once."
    )


class CompleteSerializer(serializers.Serializer[Any]):
    """As in the immediate answer to a job. Members that we do not know are ignored, so agents may be newer than we are."""

    output = ReportedOutputSerializer()
    usage = UsageSerializer(required=False)
    session_id = serializers.CharField(required=False)


class ErrorSerializer(StrictSerializer):
    message = Text(max_length=LONGEST_MESSAGE)
    code = Text(max_length=100, help_text="`rate_limited` uses up no attempt.", **OPTIONAL)
    retryable = Flag(**OPTIONAL)
    retry_after = Number(
        min_value=0, max_value=LONGEST_WAIT, help_text="Seconds until the next attempt, at least.", **OPTIONAL
    )


class FailSerializer(StrictSerializer):
    error = ErrorSerializer()


class StopSerializer(serializers.Serializer[Any]):
    stop = serializers.BooleanField(help_text="Stop working: the result is not wanted any more.")
    reason = serializers.CharField(allow_null=True)


class ReceiptSerializer(serializers.Serializer[Any]):
    accepted = serializers.BooleanField(
        help_text="False after a tool has put the work aside: nothing changes."
    )
    stop = serializers.BooleanField(required=False, help_text="True when a tool has ended the run before.")
    duplicate = serializers.BooleanField(help_text="The same report had come before.")


class JobSerializer(serializers.Serializer[Any]):
    """As it was posted to the agent."""

    job_id = serializers.UUIDField()
    execution_id = serializers.UUIDField()
    attempt = serializers.IntegerField()
    agent = serializers.CharField()
    wake_reason = serializers.CharField()
    wakes = serializers.ListField(child=serializers.DictField(), help_text="Oldest first.")
    instructions = serializers.CharField()
    prompt = serializers.CharField()
    params = serializers.DictField()
    input = serializers.DictField(allow_null=True)
    session_id = serializers.CharField(allow_null=True)
    skills = serializers.DictField(
        help_text="`{context: [{name, content}], manifest: [{key, name, ..., url}]}`"
    )
    deadline = serializers.DateTimeField()
    callback = serializers.DictField()


class RunView(TenantView):
    """Base of the callbacks. The tenant is the token's; nobody else's credentials count here."""

    authentication_classes = (RunTokenAuthentication,)
    permission_classes = (RunPermission,)
    serializer_class = StopSerializer
    # The functions behind open the scope themselves: the caller is no principal. Each report may be repeated.
    in_one_transaction = False

    #: Whether this very message, signed, has come before. What the database does not recognise by itself asks for it.
    repeated = False
    raw_body = b""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.repeated = signed_reports.verified(request, self.caller.token, self.raw_body)

    def _handled(self, handler: Handler) -> Any:
        token = self.caller.token
        ids = {"tenant": str(token.tenant_id), "activity": str(token.activity_id), "run": str(token.run_id)}
        tracing.link(token.provenance)
        with provenance.of_callback(token.provenance, **ids):
            return tried_again(lambda: self._answer(handler))

    @property
    def caller(self) -> RunCaller:
        return cast(RunCaller, self.request.user)


class RunJob(RunView):
    @operation("The job of this run again", answer=JobSerializer, refusals=(404, 409, 503), notes={409: STOP})
    def get(self, request: Request, run_id: UUID) -> Response:
        """Equal to the body of the call that started the run, as long as the run is live."""
        return Response(jobs.job_again(self.caller.token, reports.live_run(self.caller.token)))


class RunHeartbeat(RunView):
    max_body_bytes = HEARTBEAT_BYTES
    not_audited = "signs of life of every run, every few seconds; what they carry is kept with the run"

    @operation(
        "A sign of life",
        request=HeartbeatSerializer,
        answer=StopSerializer,
        refusals=(400, 404, 409, 413),
        notes={409: STOP},
    )
    def post(self, request: Request, run_id: UUID) -> Response:
        """`stop` is true once the work was cancelled."""
        faults: list[tuple[str, str]] = []
        body: Any = request.data
        usage = usage_from(body.get("usage"), faults)
        session_id = session_id_from(body.get("session_id"), faults)
        if faults:
            raise InvalidRequest(faults)
        if self.repeated:
            # Somebody else may have sent it: it is no sign of life, and its figures are older than what is known.
            reason = reports.unwanted(self.caller.token)
            return Response({"stop": reason is not None, "reason": reason})
        reason = reports.beat(
            self.caller.token, progress=body.get("progress"), usage=usage, session_id=session_id
        )
        return Response({"stop": reason is not None, "reason": reason})


class RunComplete(RunView):
    @property
    def max_body_bytes(self) -> int:
        return ESCAPED * int(settings.ORCHESTRATOR_MAX_OUTPUT_BYTES) + ENVELOPE_BYTES

    @operation(
        "The result of this run",
        request=CompleteSerializer,
        answer=ReceiptSerializer,
        refusals=(400, 404, 409, 413),
        notes={409: STOP},
    )
    def post(self, request: Request, run_id: UUID) -> Response:
        """A repetition of the accepted result is answered with `duplicate: true`; any other result then is refused."""
        try:
            result = completed_from(request.data)
        except InvalidAnswer as error:
            raise InvalidRequest(error.faults) from error
        if len(result.output.content_type) > LONGEST_CONTENT_TYPE:
            raise InvalidRequest(
                [("output.content_type", f"must have at most {LONGEST_CONTENT_TYPE} characters")]
            )
        return _receipt(reports.complete(self.caller.token, result, actor=self.caller.actor))


class RunFail(RunView):
    @operation(
        "This run has failed",
        request=FailSerializer,
        answer=ReceiptSerializer,
        refusals=(400, 404, 409),
        notes={409: STOP},
    )
    def post(self, request: Request, run_id: UUID) -> Response:
        """A `retryable` failure is tried again while attempts are left."""
        fault = _fault_of(read(FailSerializer, request.data)["error"])
        return _receipt(reports.fail(self.caller.token, fault, actor=self.caller.actor))


def _receipt(receipt: Receipt) -> Response:
    if receipt == Receipt.PUT_ASIDE:
        return Response({"accepted": False, "duplicate": False, "stop": True})
    return Response({"accepted": True, "duplicate": receipt == Receipt.REPEATED})


def _fault_of(error: dict[str, Any]) -> AgentError:
    more = {"code": error.get("code"), "retry_after": error.get("retry_after")}
    if error.get("code") == AgentRateLimited.code:
        return AgentRateLimited(error["message"], **more)
    kind = RetryableAgentError if error.get("retryable") else PermanentAgentError
    return kind(error["message"], **more)
