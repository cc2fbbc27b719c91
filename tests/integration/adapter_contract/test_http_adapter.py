"""The HTTP adapter: the job and its headers, credentials, and what every status means."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from pytest_httpserver import HTTPServer
from standardwebhooks.webhooks import Webhook
from werkzeug import Request

from agents import webhook_signing
from agents.contracts import (
    AdapterSettings,
    AgentRequest,
    ContextFile,
    Skills,
    SkillSummary,
)
from agents.exceptions import (
    AgentError,
    AgentRateLimited,
    ConfigurationError,
    OutboundRefused,
    PermanentAgentError,
    RetryableAgentError,
)
from agents.runner import run_agent
from tests.integration.adapter_contract.answering_agents import TOKEN, Behaviour, HttpAgent, a_request

CONTRACT_KEYS = {
    *(
        "job_id",
        "execution_id",
        "attempt",
        "agent",
        "version",
        "tenant_id",
        "deliverable_id",
        "pipeline_step",
    ),
    *("priority", "params", "prompt", "input", "wakes", "wake_reason", "rejection_ref", "reviewer_notes"),
    *("model", "max_turns"),
    *("blocker_resolution", "subtask_output_ref", "subtask_name", "review_approved", "reviewer_feedback"),
    *("chosen_option", "session_id", "instructions", "skills", "deadline", "callback"),
}


@pytest.fixture
def received(http_agent: HttpAgent, httpserver: HTTPServer) -> Callable[[AgentRequest], Request]:
    """Run a request and return it as the agent's server received it."""

    def run(request: AgentRequest) -> Request:
        endpoint = http_agent.behave(Behaviour(body={"output": {}})).endpoint
        run_agent(replace(request, settings=replace(request.settings, adapter="http", endpoint=endpoint)))
        return httpserver.log[-1][0]

    return run


Received = Callable[[AgentRequest], Request]


def test_the_job_has_every_key_of_the_protocol_even_without_values(received: Received) -> None:
    job = json.loads(received(a_request(AdapterSettings("http"))).data)

    assert set(job) == CONTRACT_KEYS
    assert job["wake_reason"] == "new_task"
    assert job["reviewer_notes"] is None


def test_the_job_contains_every_field_of_the_request(received: Received) -> None:
    request = a_request(
        AdapterSettings("http", version="1.2.3"),
        deliverable_id=uuid4(),
        pipeline_step="brief",
        priority=5,
        input={"ref": "r", "content": "c", "data": {"a": 1}},
        wakes=({"reason": "rejection", "notes": "again"},),
        wake_reason="rejection",
        wake_context={
            "rejection_ref": "out-1",
            "reviewer_notes": "shorter",
            "review_approved": False,
            "chosen_option": "blue",
            "other": 1,
        },
        session_id="s",
        instructions="You write titles.",
        skills=Skills(
            (ContextFile("Acme", "Sells tea."),),
            (SkillSummary("tone", "Tone", "How we sound.", 3, "https://orchestrator.example/skills/tone/"),),
        ),
        deadline=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )

    job = json.loads(received(request).data)

    assert job == {
        "job_id": str(request.activity_id),
        "execution_id": str(request.run_id),
        "attempt": 2,
        "agent": "seo",
        "version": "1.2.3",
        "tenant_id": str(request.tenant_id),
        "deliverable_id": str(request.deliverable_id),
        "pipeline_step": "brief",
        "priority": 5,
        "model": None,
        "max_turns": None,
        "params": {"keyword": "tea"},
        "prompt": request.prompt,
        "input": {"ref": "r", "content": "c", "data": {"a": 1}},
        "wakes": [{"reason": "rejection", "notes": "again"}],
        "wake_reason": "rejection",
        "rejection_ref": "out-1",
        "reviewer_notes": "shorter",
        "blocker_resolution": None,
        "subtask_output_ref": None,
        "subtask_name": None,
        "review_approved": False,
        "reviewer_feedback": None,
        "chosen_option": "blue",
        "session_id": "s",
        "instructions": "You write titles.",
        "skills": {
            "context": [{"name": "Acme", "content": "Sells tea."}],
            "manifest": [
                {
                    "key": "tone",
                    "name": "Tone",
                    "description": "How we sound.",
                    "version": 3,
                    "url": "https://orchestrator.example/skills/tone/",
                }
            ],
        },
        "deadline": "2026-01-02T03:04:05Z",
        "callback": {"url": "https://orchestrator.example/api/v1/agent-runs/1/", "token": TOKEN},
    }


def test_a_job_that_cannot_be_json_is_refused_before_anything_is_sent(
    http_agent: HttpAgent, httpserver: HTTPServer
) -> None:
    request = a_request(http_agent.behave(Behaviour()), params={"a": object()})

    with pytest.raises(PermanentAgentError) as caught:
        run_agent(request)

    assert caught.value.error_code == "invalid_job"
    assert not httpserver.log


def test_the_headers_name_the_job_the_run_and_the_wake(received: Received) -> None:
    request = a_request(AdapterSettings("http"))

    request_received = received(request)

    headers = request_received.headers
    assert (request_received.method, request_received.path) == ("POST", "/run")
    assert headers["X-Job-Id"] == str(request.activity_id)
    assert headers["X-Execution-Id"] == str(request.run_id)
    assert headers["Idempotency-Key"] == "wake-1"
    assert headers["Content-Type"] == "application/json"
    assert "Authorization" not in headers
    assert "webhook-signature" not in headers


def test_the_call_is_signed_with_every_secret_in_force(received: Received) -> None:
    secrets = (webhook_signing.new_secret(), webhook_signing.new_secret())
    request = a_request(AdapterSettings("http", signing_secrets=secrets))

    request_received = received(request)

    assert request_received.headers["webhook-id"] == str(request.run_id)
    for secret in secrets:
        Webhook(secret).verify(request_received.data, dict(request_received.headers))


@pytest.mark.parametrize(
    ("auth", "name", "value"),
    [
        ({"type": "bearer", "token": "t"}, "Authorization", "Bearer t"),
        ({"type": "header", "name": "X-Api-Key", "value": "k"}, "X-Api-Key", "k"),
        ({"type": "header", "name": "Authorization", "value": "Token k"}, "Authorization", "Token k"),
        ({"type": "basic", "username": "ü", "password": "p:q"}, "Authorization", "Basic w7w6cDpx"),
        ({"type": "basic", "username": "u"}, "Authorization", "Basic dTo="),
        ({"type": "none"}, "Authorization", None),
    ],
)
def test_the_configured_credentials_are_sent(
    auth: dict[str, str], name: str, value: str | None, received: Received
) -> None:
    assert received(a_request(AdapterSettings("http", auth=auth))).headers.get(name) == value


@pytest.mark.parametrize(
    "auth",
    [
        {"type": "bearer"},
        {"type": "bearer", "token": ""},
        {"type": "bearer", "token": "a\r\nX-Job-Id: 1"},
        {"type": "bearer", "token": 5},
        {"type": "digest", "token": "a"},
        {"token": "a"},
        {"type": "header", "name": "X-Key"},
        {"type": "header", "name": "Host", "value": "inside"},
        {"type": "header", "name": "x-execution-ID", "value": "1"},
        {"type": "header", "name": "Content-Length", "value": "1"},
        {"type": "header", "name": "a b", "value": "1"},
        {"type": "basic", "password": "p"},
    ],
)
def test_credentials_that_cannot_work_are_a_configuration_error(
    auth: dict[str, Any], http_agent: HttpAgent, httpserver: HTTPServer
) -> None:
    settings = replace(http_agent.behave(Behaviour()), auth=auth)

    with pytest.raises(ConfigurationError):
        run_agent(a_request(settings))
    assert not httpserver.log


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (201, PermanentAgentError, "invalid_agent_answer"),
        (204, PermanentAgentError, "invalid_agent_answer"),
        (206, PermanentAgentError, "invalid_agent_answer"),
        (301, PermanentAgentError, "agent_refused"),
        (307, PermanentAgentError, "agent_refused"),
        (400, PermanentAgentError, "agent_refused"),
        (401, PermanentAgentError, "agent_refused"),
        (404, PermanentAgentError, "agent_refused"),
        (408, RetryableAgentError, "agent_error_status"),
        (409, PermanentAgentError, "agent_refused"),
        (425, RetryableAgentError, "agent_error_status"),
        (429, AgentRateLimited, "rate_limited"),
        (500, RetryableAgentError, "agent_error_status"),
        (503, RetryableAgentError, "agent_error_status"),
        (599, RetryableAgentError, "agent_error_status"),
    ],
)
def test_every_http_status_has_its_error(
    status: int, error: type[AgentError], code: str, http_agent: HttpAgent
) -> None:
    settings = http_agent.behave(Behaviour(status=status, headers={"Location": "http://127.0.0.1/"}))

    with pytest.raises(AgentError) as caught:
        run_agent(a_request(settings))

    assert isinstance(caught.value, error)
    assert (caught.value.error_code, caught.value.retryable) == (code, issubclass(error, RetryableAgentError))
    assert str(status) in str(caught.value)


def test_a_retry_after_of_an_unavailable_agent_is_capped_at_an_hour(http_agent: HttpAgent) -> None:
    settings = http_agent.behave(Behaviour(status=503, headers={"Retry-After": "9999"}))

    with pytest.raises(RetryableAgentError) as caught:
        run_agent(a_request(settings))

    assert caught.value.retry_after == 3600


@pytest.mark.parametrize(
    "body", ["", "<html>", "[]", "null", '{"output": {}} x', b"\xff", "[" * 5_000, '{"output": NaN}']
)
def test_an_invalid_body_fails_permanently(body: Any, http_agent: HttpAgent) -> None:
    with pytest.raises(PermanentAgentError) as caught:
        run_agent(a_request(http_agent.behave(Behaviour(body=body))))

    assert caught.value.error_code == "invalid_agent_answer"


@pytest.mark.parametrize("endpoint", [None, ""])
def test_a_role_without_endpoint_is_a_configuration_error(endpoint: str | None) -> None:
    with pytest.raises(ConfigurationError, match="seo has no endpoint"):
        run_agent(a_request(AdapterSettings("http", endpoint)))


def test_an_endpoint_on_the_internal_network_is_refused(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/run").respond_with_json({"output": {"content": "secret"}})

    with pytest.raises(OutboundRefused):
        run_agent(a_request(AdapterSettings("http", httpserver.url_for("/run"))))
    assert not httpserver.log
