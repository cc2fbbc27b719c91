"""The HTTP adapter: POSTs the job to the agent's endpoint and reads its answer.

One call is one attempt. The outbound client bounds its time and size; the engine decides about another attempt
by the class of the error. An agent that answers 202 reports later through the callback, and no worker waits
for it.
"""

from __future__ import annotations

import base64
from typing import Any

from django.conf import settings

from agents import outbound, payload, redaction, webhook_signing
from agents.contracts import Accepted, AgentRequest, AgentResult, RunLink
from agents.exceptions import (
    AgentError,
    AgentRateLimited,
    ConfigurationError,
    PermanentAgentError,
    RetryableAgentError,
    SessionInvalid,
)
from agents.outbound import client
from agents.response_parser import InvalidAnswer, read_completed, session_of_acceptance
from tenants import strict_json, tracing

_RETRYABLE_STATUSES = frozenset({408, 425})  # and all from 500

#: Headers that carry the protocol. A tenant's credentials must not replace them.
OWN_HEADERS = frozenset(
    (
        "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "cookie", "expect", "host",
        "idempotency-key", "keep-alive", "proxy-authorization", "te", "traceparent", "tracestate", "trailer", "transfer-encoding",
        "upgrade", "webhook-id", "webhook-signature", "webhook-timestamp", "x-execution-id", "x-job-id",
    )
)  # fmt: skip


class HttpAdapter:
    """Calls agents of any language over HTTP."""

    def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
        """Call the endpoint once. Raises the matching `AgentError` if the call or the agent fails."""
        if not request.settings.endpoint:
            raise ConfigurationError(f"The role {request.agent_role} has no endpoint.")
        body = payload.encode_job(request)
        response = outbound.send(
            "POST",
            request.settings.endpoint,
            headers=_headers(request, body),
            body=body,
            deadline_seconds=request.timeout_seconds,
            max_bytes=settings.ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES,
            cancelled=lambda: link.stop_reason() is not None,
            limits=request.settings.http,
        )
        if response.status == 202:
            return _read_acceptance(response)
        if response.status == 200:
            return _read_result(response)
        raise _error_of(response, request)


def _headers(request: AgentRequest, body: bytes) -> dict[str, str]:
    headers = authentication_of(request)
    headers.update(
        {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "X-Job-Id": str(request.activity_id),
            "X-Execution-Id": str(request.run_id),
            "Idempotency-Key": request.idempotency_key,
            **tracing.outgoing(),
        }
    )
    if request.settings.signing_secrets:
        headers |= webhook_signing.sign(
            message_id=str(request.run_id), body=body, secrets=request.settings.signing_secrets
        )
    return headers


def authentication_of(request: AgentRequest) -> dict[str, str]:
    """Return the authentication headers for the role's credentials. Raises `ConfigurationError` if the protocol does not allow them."""
    auth = request.settings.auth
    if not all(isinstance(value, str) for value in auth.values()):
        raise ConfigurationError("The agent's authentication must consist of text values.")
    match auth.get("type", "none" if not auth else ""):
        case "none":
            return {}
        case "bearer" if auth.get("token"):
            return {"Authorization": f"Bearer {auth['token']}"}
        case "header" if auth.get("name") and "value" in auth:
            if auth["name"].lower() in OWN_HEADERS:
                raise ConfigurationError(f"The header {auth['name']} is set by the protocol itself.")
            return {auth["name"]: auth["value"]}
        case "basic" if auth.get("username"):
            pair = f"{auth['username']}:{auth.get('password', '')}".encode()
            return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    raise ConfigurationError(
        "The agent's authentication must be a bearer token, a header's name and value, "
        "or a user name and password."
    )


def _read_acceptance(response: outbound.OutboundResponse) -> AgentResult:
    """Accept any body. If it names the agent's session, the session is recorded."""
    try:
        return Accepted(session_of_acceptance(_json_of(response)))
    except strict_json.StrictJSONError:
        return Accepted()


def _read_result(response: outbound.OutboundResponse) -> AgentResult:
    try:
        answer = _json_of(response)
    except strict_json.StrictJSONError as error:
        raise InvalidAnswer((error.path, error.message)) from error
    return read_completed(answer)


def _json_of(response: outbound.OutboundResponse) -> Any:
    return strict_json.loads(response.body, max_bytes=settings.ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES)


def _error_of(response: outbound.OutboundResponse, request: AgentRequest) -> AgentError:
    if 200 <= response.status < 300:
        return InvalidAnswer(("", f"its status {response.status} is neither 200 nor 202"))
    error = error_of_status(response.status, response.body, response.headers.get("retry-after"), request)
    if not error.retryable and _code_of(response) == SessionInvalid.code:
        return SessionInvalid(str(error))
    return error


def error_of_status(
    status: int, body: bytes, retry_after_header: str | None, request: AgentRequest
) -> AgentError:
    """Return the error for an answer with a status of 300 or more. Its message quotes part of the body, without the request's secrets."""
    excerpt = redaction.excerpt_for(request, body)
    message = f"The agent answered with status {status}" + (f": {excerpt}" if excerpt else ".")
    wait = client.retry_after_seconds(retry_after_header)
    if status == 429:
        return AgentRateLimited(message, retry_after=wait)
    if status in _RETRYABLE_STATUSES or status >= 500:
        return RetryableAgentError(message, code="agent_error_status", retry_after=wait)
    return PermanentAgentError(message)


def _code_of(response: outbound.OutboundResponse) -> Any:
    """Return the code in `{error: {code}}`, the form in which agents report failures, if the body has one."""
    try:
        answer = _json_of(response)
    except strict_json.StrictJSONError:
        return None
    error = answer.get("error") if isinstance(answer, dict) else None
    return error.get("code") if isinstance(error, dict) else None
