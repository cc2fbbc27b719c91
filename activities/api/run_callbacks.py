"""Callbacks of agents: `/agent-runs/{run_id}/`. Every report may be repeated; after the run has ended the answer is 409 with `stop`."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, cast
from uuid import UUID

import redis
from django.conf import settings
from django.db import DatabaseError
from django.db.models import Q, QuerySet
from django.http import Http404
from drf_spectacular.utils import PolymorphicProxySerializer
from rest_framework import serializers
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed, NotFound
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from activities import run_logs, run_tokens
from activities.api.serializers import largest_body_with_output
from activities.execution import agent_tools, reports
from activities.execution import request as execution_request
from activities.execution.reports import Receipt
from activities.execution.request import Attempt
from activities.models import Activity, ActivityRun, Wake
from activities.models.run import own_wake_of
from activities.run_tokens import RunToken
from activities.schemas import KINDS
from activities.states import WakeState
from agents import configuration, skills, webhook_signing
from agents.contracts import LINE_KINDS, LogLine
from agents.exceptions import (
    AgentError,
    AgentRateLimited,
    PermanentAgentError,
    RetryableAgentError,
    RoleNotFound,
)
from agents.payload import job_of
from agents.response_parser import InvalidAnswer, read_completed, session_id_from, usage_from
from tenants import request_context, tracing, turns
from tenants.api.documentation import operation, posting
from tenants.api.idempotency import HEADER, key_of
from tenants.api.problems import InvalidRequest
from tenants.api.serializers import (
    OPTIONAL,
    Flag,
    Json,
    Moment,
    Number,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    read,
)
from tenants.api.views import Handler, TenantView, retry_conflicts
from tenants.authentication import refuse_secret, refuse_secret_in_address
from tenants.context import tenant_scope

logger = logging.getLogger(__name__)

# Signed reports: an agent may sign its reports by the Standard Webhooks scheme, in addition to sending the run's token.
#
# A signature is always checked: one that is wrong, too old or made by another agent is answered 401 even if the token is valid. Agents of a
# role with the option `signed_callbacks` must sign, so that a stolen token alone is useless. Repeated messages are recognised by their
# `webhook-id`: an identical message gets the first answer, a different one is refused. Redis stores the ids longer than signatures are
# valid. While Redis is down, the database still recognises a repetition of every report that changes something.


_HEADERS = (
    webhook_signing.ID_HEADER,
    webhook_signing.TIMESTAMP_HEADER,
    webhook_signing.SIGNATURE_HEADER,
)


def signer_of(request: Request, token: RunToken, body: bytes) -> str:
    """Verify the signature of a report, and return the role that has signed it, or "" if it is not signed.

    Raises `AuthenticationFailed` if the signature is invalid, or if it is required and missing.
    """
    if not token.signed_as and not any(name in request.headers for name in _HEADERS):
        return ""
    role = token.signed_as or _role_of(token)
    secrets = _secrets(token, role)
    if not webhook_signing.verify(headers=dict(request.headers), body=body, secrets=secrets):
        logger.warning(
            "Report refused", extra={"action": "report_signature_refused", "run": str(token.run_id)}
        )
        raise AuthenticationFailed(
            "The signature does not match this report, or is too old.", "invalid_signature"
        )
    return role


def _role_of(token: RunToken) -> str:
    with tenant_scope(token.tenant_id):
        rows = Activity.objects.for_tenant(token.tenant_id).filter(pk=token.activity_id)
        return rows.values_list("agent_role", flat=True).first() or ""


def _secrets(token: RunToken, role: str) -> Any:
    try:
        return configuration.settings_for(token.tenant_id, role).adapter.signing_secrets
    except RoleNotFound:
        return ()


def was_received_before(request: Request, token: RunToken, role: str, body: bytes) -> bool:
    """Whether the same signed report was received before. Raises `AuthenticationFailed` if another one had its id."""
    signed_text = "\x00".join((request.method or "", request.path, request.headers.get(HEADER, "")))
    digest = hashlib.sha256(signed_text.encode() + b"\x00" + body).hexdigest()
    message_id = request.headers[webhook_signing.ID_HEADER]
    try:
        first = reports.first_report_with(token.tenant_id, role, message_id, digest)
    except redis.RedisError:
        logger.warning("Cannot detect repeated reports without Redis", extra={"action": "report_memory_away"})
        return False
    if first is None:
        return False
    if first != digest:
        logger.warning("Report refused", extra={"action": "report_replayed", "run": str(token.run_id)})
        raise AuthenticationFailed(
            "This webhook-id was used for another report. Use a new one.", "webhook_id_reused"
        )
    return True


# Authentication: an agent proves which run it reports about with the token that came with the job. No other credential is accepted.
#
# The token names tenant, activity, run and fencing number. The operation itself checks whether the run is still live.


@dataclass(frozen=True, slots=True)
class RunCaller:
    """The caller: anyone who holds the token of this run."""

    token: RunToken

    is_authenticated: ClassVar[bool] = True

    @property
    def actor(self) -> str:
        return f"run:{self.token.run_id}"


class RunTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer <callback.token>`. API tokens and sessions are not accepted."""

    def authenticate(self, request: Request) -> tuple[RunCaller, Any] | None:
        refuse_secret_in_address(request)
        scheme, _, text = get_authorization_header(request).decode("latin-1").strip().partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = run_tokens.read(text.strip())
        if token is None:
            logger.warning("Run token refused", extra={"action": "run_token_refused"})
            # All run tokens have the same prefix, so failures are counted per whole token.
            raise refuse_secret(
                request,
                text.strip(),
                "This is not the token of a run.",
                "invalid_token",
                account=text.strip(),
            )
        return RunCaller(token), None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class RunPermission(BasePermission):
    """A token gives access to its own run only; other runs are answered 404."""

    def has_permission(self, request: Request, view: Any) -> bool:
        caller: Any = request.user
        if not isinstance(caller, RunCaller):
            return False
        if caller.token.run_id != view.kwargs["run_id"]:
            logger.warning(
                "Run token used for another run",
                extra={"action": "run_token_misused", "run": str(caller.token.run_id)},
            )
            raise Http404
        return True


LONGEST_CONTENT_TYPE = 100
LONGEST_MESSAGE = 2_000
LONGEST_WAIT = 86_400  # seconds
HEARTBEAT_BYTES = 32 * 1024  # small, because heartbeats are frequent and people read the progress
STOP = "The run has ended; `stop` is true."


class UsageSerializer(serializers.Serializer[Any]):
    input_tokens = serializers.IntegerField(min_value=0, required=False)
    output_tokens = serializers.IntegerField(min_value=0, required=False)
    cost_usd = serializers.FloatField(
        min_value=0, required=False, help_text="A number, or a decimal as text."
    )
    model = serializers.CharField(required=False)


class ReportedOutputSerializer(serializers.Serializer[Any]):
    content = serializers.CharField(required=False, allow_null=True)
    data = Json(required=False, allow_null=True)  # type: ignore[assignment]  # a field, not the attribute
    content_type = serializers.CharField(required=False, help_text="Default: text/markdown.")


class HeartbeatSerializer(serializers.Serializer[Any]):
    progress = Json(required=False, help_text="A text or an object that people can see.")
    usage = UsageSerializer(required=False)
    session_id = serializers.CharField(
        required=False, help_text="The agent's own id of its conversation; stored at once."
    )


class CompleteSerializer(serializers.Serializer[Any]):
    """The same body as an immediate answer to a job. Unknown members are ignored, so that agents may be newer than this server."""

    output = ReportedOutputSerializer()
    usage = UsageSerializer(required=False)
    session_id = serializers.CharField(required=False)


class ErrorSerializer(StrictSerializer):
    """An error that an agent reports."""

    message = Text(max_length=LONGEST_MESSAGE)
    code = Text(
        max_length=100,
        help_text="A failure with the code `rate_limited` does not count as an attempt.",
        **OPTIONAL,
    )
    retryable = Flag(**OPTIONAL)
    retry_after = Number(
        min_value=0,
        max_value=LONGEST_WAIT,
        help_text="The minimum number of seconds until the next attempt.",
        **OPTIONAL,
    )


class FailSerializer(StrictSerializer):
    """The failure of a run."""

    error = ErrorSerializer()


class LogLineSerializer(StrictSerializer):
    """A line for the log of a run."""

    at = Moment(help_text="The time of the line. Default: the time of its arrival.", **OPTIONAL)
    kind = OneOf(choices=[(kind, kind) for kind in LINE_KINDS])
    text = Text(trim_whitespace=False, allow_blank=True)

    def validate_text(self, text: str) -> str:
        most = settings.ORCHESTRATOR_RUN_LOG_LINE_BYTES
        if len(text.encode()) > most:
            raise serializers.ValidationError(f"must have at most {most} bytes")
        return text


class LogSerializer(StrictSerializer):
    """Lines for the log of a run, in order."""

    lines = LogLineSerializer(many=True, allow_empty=False)

    def validate_lines(self, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        most = settings.ORCHESTRATOR_RUN_LOG_CALL_LINES
        if len(lines) > most:
            raise serializers.ValidationError(f"must have at most {most} lines")
        return lines


class LoggedSerializer(serializers.Serializer[Any]):
    accepted = serializers.IntegerField(help_text="Number of lines that were stored.")
    dropped = serializers.IntegerField(
        help_text="Number of lines that were dropped because the log is full or its store does not answer. Do not send them again."
    )
    last = serializers.IntegerField(allow_null=True, help_text="The number of the last line of the log.")
    duplicate = serializers.BooleanField(
        help_text="Whether the same lines were received before; they are stored once."
    )
    stop = serializers.BooleanField()


class StopSerializer(serializers.Serializer[Any]):
    stop = serializers.BooleanField(
        help_text="Whether the agent should stop working, because its result is no longer needed."
    )
    reason = serializers.CharField(allow_null=True)


class ReceiptSerializer(serializers.Serializer[Any]):
    accepted = serializers.BooleanField(
        help_text="False if a tool call has already suspended the work; then nothing changes."
    )
    stop = serializers.BooleanField(
        required=False, help_text="True if a tool call has already ended the run."
    )
    duplicate = serializers.BooleanField(help_text="Whether the same report was received before.")


class JobSerializer(serializers.Serializer[Any]):
    """A job as it was sent to the agent."""

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
    """Base of the callbacks. The tenant is the one of the run's token."""

    authentication_classes = (RunTokenAuthentication,)
    permission_classes = (RunPermission,)
    serializer_class = StopSerializer
    # The called functions open the tenant scope themselves, because the caller is not a principal.
    in_one_transaction = False

    #: Whether this signed message was received before. Needed where the database cannot recognise a repetition.
    repeated = False
    raw_body = b""
    #: The role that has signed the report, or "".
    signer = ""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        token = self.caller.token
        turns.belongs_to(token.tenant_id)
        self.signer = signer_of(request, token, self.raw_body)
        if self.signer and request.method not in SAFE_METHODS:
            self.repeated = was_received_before(request, token, self.signer, self.raw_body)

    def _handle(self, handler: Handler) -> Any:
        token = self.caller.token
        ids = {"tenant": str(token.tenant_id), "activity": str(token.activity_id), "run": str(token.run_id)}
        tracing.link(token.provenance)
        with request_context.of_callback(token.provenance, **ids):
            try:
                return retry_conflicts(lambda: self._answer(handler))
            except DatabaseError:
                if self.signer and not self.repeated:  # The agent will repeat it, and then it must count.
                    reports.forget_report(
                        token.tenant_id, self.signer, self.request.headers[webhook_signing.ID_HEADER]
                    )
                raise

    @property
    def caller(self) -> RunCaller:
        return cast(RunCaller, self.request.user)


class RunJob(RunView):
    @operation(
        "Get the job of a run again", answer=JobSerializer, refusals=(404, 409, 503), notes={409: STOP}
    )
    def get(self, request: Request, run_id: UUID) -> Response:
        """The same body as in the call that started the run. Available while the run is live."""
        return Response(job_again(self.caller.token, reports.live_run(self.caller.token)))


class RunHeartbeat(RunView):
    max_body_bytes = HEARTBEAT_BYTES
    not_audited = "signs of life of every run, every few seconds; what they carry is kept with the run"

    @operation(
        "Send a heartbeat",
        request=HeartbeatSerializer,
        answer=StopSerializer,
        refusals=(400, 404, 409, 413),
        notes={409: STOP},
    )
    def post(self, request: Request, run_id: UUID) -> Response:
        """Shows that the agent still works on the run. `stop` is true if the work was cancelled."""
        errors: list[tuple[str, str]] = []
        body: Any = request.data
        usage = usage_from(body.get("usage"), errors)
        session_id = session_id_from(body.get("session_id"), errors)
        if errors:
            raise InvalidRequest(errors)
        if self.repeated:
            # A repetition proves nothing about the agent, and its usage is older than the stored one.
            reason = reports.stop_reason(self.caller.token)
            return Response({"stop": reason is not None, "reason": reason})
        reason = reports.beat(
            self.caller.token, progress=body.get("progress"), usage=usage, session_id=session_id
        )
        return Response({"stop": reason is not None, "reason": reason})


class RunLog(RunView):
    not_audited = "what agents say while they work, every few seconds; it is kept with the run"

    @property
    def max_body_bytes(self) -> int:
        return int(settings.ORCHESTRATOR_RUN_LOG_CALL_BYTES)

    @posting(
        "Append lines to the log of a run",
        LogSerializer,
        LoggedSerializer,
        refusals=(404,),
        notes={409: STOP},
    )
    def post(self, request: Request, run_id: UUID) -> Response:
        """Equal lines are stored once, unless their `at` or their `Idempotency-Key` differs. A full log is not an error: lines that do not
        fit are dropped and counted. Log lines do not count as a heartbeat."""
        sent_lines = read(LogSerializer, request.data)["lines"]
        run = reports.live_or_suspended_run(self.caller.token)
        lines = [LogLine(line["kind"], line["text"], line.get("at")) for line in sent_lines]
        key = request.headers.get(HEADER)
        appended = run_logs.record(self.caller.token, lines, key="" if key is None else key_of(key))
        return Response(
            {
                "accepted": appended.kept,
                "dropped": appended.dropped,
                "last": appended.last,
                "duplicate": appended.duplicate,
                "stop": bool(run.ended_by_tool),
            }
        )


class RunComplete(RunView):
    @property
    def max_body_bytes(self) -> int:
        return largest_body_with_output()

    @operation(
        "Report the result of a run",
        request=CompleteSerializer,
        answer=ReceiptSerializer,
        refusals=(400, 404, 409, 413),
        notes={409: STOP},
    )
    def post(self, request: Request, run_id: UUID) -> Response:
        """A repetition of the accepted result gets `duplicate: true`; a different result is then refused."""
        try:
            result = read_completed(request.data)
        except InvalidAnswer as error:
            raise InvalidRequest(error.errors) from error
        if len(result.output.content_type) > LONGEST_CONTENT_TYPE:
            raise InvalidRequest(
                [("output.content_type", f"must have at most {LONGEST_CONTENT_TYPE} characters")]
            )
        return _receipt(reports.complete(self.caller.token, result, actor=self.caller.actor))


class RunFail(RunView):
    @operation(
        "Report that a run has failed",
        request=FailSerializer,
        answer=ReceiptSerializer,
        refusals=(400, 404, 409),
        notes={409: STOP},
    )
    def post(self, request: Request, run_id: UUID) -> Response:
        """A `retryable` failure leads to a new attempt while attempts are left."""
        error = _error_of(read(FailSerializer, request.data)["error"])
        return _receipt(reports.fail(self.caller.token, error, actor=self.caller.actor))


def _receipt(receipt: Receipt) -> Response:
    if receipt == Receipt.SUSPENDED:
        return Response({"accepted": False, "duplicate": False, "stop": True})
    return Response({"accepted": True, "duplicate": receipt == Receipt.REPEATED})


def _error_of(error: dict[str, Any]) -> AgentError:
    more = {"code": error.get("code"), "retry_after": error.get("retry_after")}
    if error.get("code") == AgentRateLimited.code:
        return AgentRateLimited(error["message"], **more)
    kind = RetryableAgentError if error.get("retryable") else PermanentAgentError
    return kind(error["message"], **more)


# The job of a live run, for an agent that has lost it.
#
# It is rebuilt from the same data. Only the random marker of the prompt's blocks differs.


def job_again(token: RunToken, run: ActivityRun) -> dict[str, Any]:
    """Return the body of the call that started this run. Must not run inside a transaction, because it may read the input from MongoDB.

    Raises `OutputUnavailable` if the output store does not answer, and `AgentError` if the wakes of the run are no longer stored.
    """
    with tenant_scope(token.tenant_id):
        activity = Activity.objects.for_tenant(token.tenant_id).get(pk=token.activity_id)
        agent_role = activity.agent_role or ""
        role = configuration.settings_for(token.tenant_id, agent_role).with_options(activity.agent_options)
        attempt = Attempt(
            token=token,
            number=run.attempt,
            wakes=_read_wakes(run),
            role=role,
            knowledge=role.read_knowledge(token.tenant_id, agent_role),
            timeout_seconds=run.timeout_seconds,
            deadline=(run.accepted_at or run.started_at) + timedelta(seconds=run.timeout_seconds),
        )
    if not attempt.wakes:
        raise PermanentAgentError("The wakes of this run are no longer stored.", code="wakes_forgotten")
    request = execution_request.build(activity, attempt, execution_request.fetch(activity, attempt.wakes))
    return job_of(request) | {"version": run.agent_version or None}


def _read_wakes(run: ActivityRun) -> list[dict[str, Any]]:
    if own := own_wake_of(run):
        return [_serialize_wake(own)]
    taken = _wakes(run).filter(run_id=run.pk).order_by("pk")
    return [_serialize_wake(wake) for wake in taken or _returned_wakes(run)]


def _returned_wakes(run: ActivityRun) -> QuerySet[Any]:
    """Return the wakes of a run that ended without a result: they are pending again, or belong to a later run."""
    later = ActivityRun.objects.for_tenant(run.tenant_id).filter(
        activity_id=run.activity_id, fence__gt=run.fence
    )
    is_pending = Q(run_id=None, state=WakeState.PENDING)
    earlier = _wakes(run).filter(created_at__lte=run.started_at)
    return earlier.filter(is_pending | Q(run_id__in=later.values("pk"))).order_by("pk")


def _wakes(run: ActivityRun) -> QuerySet[Any]:
    return Wake.objects.for_tenant(run.tenant_id).filter(activity_id=run.activity_id)


def _serialize_wake(wake: Wake) -> dict[str, Any]:
    return {"id": wake.pk, "reason": wake.reason, "payload": wake.payload}


# Skills, as the agent of a run reads them: `/agent-runs/{run_id}/skills/{key}/`.


class RunSkillSerializer(ResponseSerializer):
    """A skill as an agent reads it."""

    key = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    version = serializers.IntegerField()
    content = serializers.CharField(help_text="Markdown.")


class RunSkill(RunView):
    serializer_class: Any = RunSkillSerializer

    @operation("Read a skill", answer=RunSkillSerializer, refusals=(404, 409), notes={409: STOP})
    def get(self, request: Request, run_id: UUID, key: str) -> Response:
        """The current version, for agents of the skill's roles. Available while the run is live."""
        token = self.caller.token
        reports.live_run(token)
        with tenant_scope(token.tenant_id):
            activity = Activity.objects.for_tenant(token.tenant_id).filter(pk=token.activity_id)
            role = activity.values_list("agent_role", flat=True).get()
            skill = skills.find(token.tenant_id, role or "", key)
        if skill is None:
            raise NotFound
        return Response(RunSkillSerializer(skill).data, headers={"ETag": f'"{skill.version}"'})


# The tools of agents: `/agent-runs/{run_id}/tools/{tool}/`. Each call takes effect once; a repetition gets the first answer.


class NotHeldSerializer(serializers.Serializer[Any]):
    """An activity that does not wait for the question. The reason is the same if the activity does not exist and if it is not the run's own
    work."""

    id = serializers.UUIDField()
    reason = serializers.CharField()


class ToolAnswerSerializer(serializers.Serializer[Any]):
    """The result of a tool call. If `stop` is true, the run has ended: the agent should stop, and is started again when there is news."""

    id = serializers.UUIDField(
        allow_null=True,
        help_text="The activity that was created: a resolution, subtask, review, approval or successor. Null if nobody was asked.",
    )
    status = serializers.CharField(help_text="The status of the agent's own activity.")
    stop = serializers.BooleanField()
    duplicate = serializers.BooleanField(help_text="Whether the same call was received before.")
    held = serializers.ListField(
        child=serializers.UUIDField(),
        required=False,
        help_text="For `create_approval`: the activities that now wait for the decision.",
    )
    not_held = NotHeldSerializer(
        many=True, required=False, help_text="For `create_approval`: the activities that do not wait."
    )


ARGUMENTS = PolymorphicProxySerializer(
    component_name="ToolArguments",
    serializers=list(KINDS.values()),
    resource_type_field_name=None,
    many=False,
)


class RunTool(RunView):
    @posting(
        "Call a tool",
        ARGUMENTS,
        refusals=(403, 404, 429),
        answers={201: ToolAnswerSerializer, 200: ToolAnswerSerializer},
        notes={
            409: STOP,
            403: "The agent is not allowed to do this to the named objects.",
            429: "A quota is exhausted; `quota` names it.",
        },
    )
    def post(self, request: Request, run_id: UUID, tool: str) -> Response:
        """The tool is one of `report_blocker`, `create_subtask`, `request_human_review`, `create_approval` and `reassign_task`. Calls with
        equal bodies count as one call, unless their `Idempotency-Key` differs."""
        if tool not in KINDS:
            raise NotFound(f"The tools are {', '.join(KINDS)}.", code="tool_not_available")
        run = self.caller.token
        reports.live_or_suspended_run(run)
        text = request.headers.get(HEADER)
        answer = agent_tools.receive_call(run, tool, request.data, key="" if text is None else key_of(text))
        return Response({**answer.body, "duplicate": answer.repeated}, status=200 if answer.repeated else 201)
