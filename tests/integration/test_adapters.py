"""One suite for all adapters, run against a real HTTP agent on loopback and against functions; then what is
special to each of them and to the runner around them.
"""

from __future__ import annotations

import base64
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from uuid import UUID, uuid4

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from pytest_httpserver import HTTPServer
from standardwebhooks.webhooks import Webhook
from werkzeug import Request, Response

from agents import adapters, outbound, webhook_signing
from agents.adapters.base import UNLINKED, Unlinked
from agents.contracts import (
    Accepted,
    AdapterSettings,
    AgentRequest,
    AgentResult,
    Callback,
    Completed,
    ContextFile,
    Output,
    RunLink,
    Skills,
    SkillSummary,
    ToolCall,
    Usage,
)
from agents.exceptions import (
    AgentError,
    AgentRateLimited,
    ConfigurationError,
    OutboundRefused,
    PermanentAgentError,
    RetryableAgentError,
    SessionInvalid,
)
from agents.outbound import budget
from agents.runner import run_agent
from tests.programs import program

TOKEN = "callback-token-0123456789"
API_KEY = "agents-own-key-0123456789"
MAX_BYTES = 20_000


def a_request(settings: AdapterSettings, **changes: Any) -> AgentRequest:
    request = AgentRequest(
        tenant_id=uuid4(),
        activity_id=uuid4(),
        run_id=uuid4(),
        idempotency_key="wake-1",
        agent_role="seo",
        attempt=2,
        prompt="Write a title.\nKeep it short.",
        settings=settings,
        callback=Callback("https://orchestrator.example/api/v1/agent-runs/1/", TOKEN),
        timeout_seconds=20,
        deadline=datetime.now(UTC) + timedelta(seconds=20),
        params={"keyword": "tea"},
    )
    return replace(request, **changes)


@pytest.fixture(autouse=True)
def limits(settings: Any) -> Iterator[None]:
    settings.ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES = MAX_BYTES
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()
    settings.ORCHESTRATOR_INLINE_CALLABLES = ("agents.samples",)
    yield
    outbound.close_connections()


# --- The conformance suite ---


@dataclass
class Behaviour:
    """What an agent does, told to both kinds: the HTTP answer, and what the function returns or raises."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    returns: Any = None
    raises: Exception | None = None


class Agent(Protocol):
    """A running agent: make it behave, and get the settings that reach it."""

    def behave(self, behaviour: Behaviour) -> AdapterSettings: ...

    def told(self) -> dict[str, Any]: ...


class HttpAgent:
    def __init__(self, server: HTTPServer) -> None:
        self._server = server
        self._jobs: list[dict[str, Any]] = []

    def behave(self, behaviour: Behaviour) -> AdapterSettings:
        def answer(request: Request) -> Response:
            self._jobs.append(json.loads(request.data))
            body = behaviour.body if isinstance(behaviour.body, str | bytes) else json.dumps(behaviour.body)
            return Response(body, status=behaviour.status, headers=behaviour.headers)

        self._server.expect_request("/run").respond_with_handler(answer)
        return AdapterSettings("http", self._server.url_for("/run"))

    def told(self) -> dict[str, Any]:
        job = self._jobs[-1]
        return {
            "role": job["agent"],
            "params": job["params"],
            "prompt": job["prompt"],
            "run": UUID(job["execution_id"]),
        }


class InlineAgent:
    def __init__(self) -> None:
        self._requests: list[AgentRequest] = []

    def behave(self, behaviour: Behaviour) -> AdapterSettings:
        def run(request: AgentRequest) -> Any:
            self._requests.append(request)
            if behaviour.raises is not None:
                raise behaviour.raises
            return behaviour.returns

        return AdapterSettings("inline", place_function(run))

    def told(self) -> dict[str, Any]:
        request = self._requests[-1]
        return {
            "role": request.agent_role,
            "params": request.params,
            "prompt": request.prompt,
            "run": request.run_id,
        }


class CliAgent:
    """A program that keeps its job in a file, prints an answer's body, and has exit codes for statuses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def behave(self, behaviour: Behaviour) -> AdapterSettings:
        if behaviour.status == 202:
            pytest.skip("the worker waits for a program, so none accepts work to do it later")
        body = behaviour.body if isinstance(behaviour.body, str) else json.dumps(behaviour.body)
        (self._folder / "body").write_text(body)
        slow = isinstance(behaviour.raises, TimeoutError)
        code = f"""
            import shutil
            shutil.copy(sys.argv[1], {str(self._folder / "told")!r})
            time.sleep({10 if slow else 0})
            failed = {behaviour.status} != 200
            (sys.stderr if failed else sys.stdout).write(open({str(self._folder / "body")!r}).read())
            sys.exit({behaviour.status} // 100 if failed else 0)
        """
        options = {
            "command": [*program(self._folder, code), "{job_file}"],
            "output": "json",
            "permanent_exit_codes": [4],
            "session_invalid": "session_invalid",
            "rate_limited": "null" if behaviour.status == 429 else "no such text",
            "retry_after_seconds": 7,
        }
        return AdapterSettings("cli", options=options)

    def told(self) -> dict[str, Any]:
        job = json.loads((self._folder / "told").read_text())
        return {
            "role": job["agent"],
            "params": job["params"],
            "prompt": job["prompt"],
            "run": UUID(job["execution_id"]),
        }


def place_function(function: Callable[..., Any], module: str = "inline_agents.given") -> str:
    """Make the function importable under a fresh name, as the installation's own functions are."""
    name = f"run_{uuid4().hex}"
    home = sys.modules.setdefault(module, ModuleType(module))
    function.__module__ = module
    setattr(home, name, function)
    return f"{module}:{name}"


@pytest.fixture
def http_agent(httpserver: HTTPServer, settings: Any) -> HttpAgent:
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"{httpserver.host}:{httpserver.port}",)
    return HttpAgent(httpserver)


@pytest.fixture
def inline_agent(settings: Any) -> InlineAgent:
    settings.ORCHESTRATOR_INLINE_CALLABLES = ("agents.samples", "inline_agents")
    return InlineAgent()


@pytest.fixture
def cli_agent(settings: Any, tmp_path: Path) -> CliAgent:
    settings.ORCHESTRATOR_HOME = tmp_path / "home"
    settings.ORCHESTRATOR_CLI_COMMANDS = (sys.executable,)
    return CliAgent(tmp_path)


@pytest.fixture(params=["http", "inline", "cli"])
def agent(request: pytest.FixtureRequest) -> Agent:
    chosen: Agent = request.getfixturevalue(f"{request.param}_agent")
    return chosen


def test_an_agent_is_told_about_its_run(agent: Agent) -> None:
    request = a_request(agent.behave(Behaviour(body={"output": {}})))

    run_agent(request)

    assert agent.told() == {
        "role": "seo",
        "params": {"keyword": "tea"},
        "prompt": "Write a title.\nKeep it short.",
        "run": request.run_id,
    }


def test_text_is_returned_as_content(agent: Agent) -> None:
    text = "Grüße 🍵\n"
    chosen = agent.behave(Behaviour(body={"output": {"content": text}}, returns=text))

    assert run_agent(a_request(chosen)) == Completed(Output(content=text))


def test_data_is_returned_as_data(agent: Agent) -> None:
    data = {"titles": ["a", "b"], "score": 0.5, "best": None}
    chosen = agent.behave(Behaviour(body={"output": {"data": data}}, returns=Output(data=data)))

    assert run_agent(a_request(chosen)) == Completed(Output(data=data))


def test_usage_session_and_content_type_are_returned(agent: Agent) -> None:
    answer = {
        "output": {"content": "<p>", "content_type": "text/html"},
        "usage": {"input_tokens": 3, "output_tokens": 4, "cost_usd": 0.25, "model": "m"},
        "session_id": "s",
    }
    chosen = agent.behave(Behaviour(body=answer, returns=answer))

    expected = Completed(Output("<p>", None, "text/html"), Usage(3, 4, Decimal("0.25"), "m"), "s")
    assert run_agent(a_request(chosen)) == expected


def test_an_agent_may_produce_nothing(agent: Agent) -> None:
    chosen = agent.behave(Behaviour(body={"output": {}}, returns=None))

    assert run_agent(a_request(chosen)) == Completed(Output())


def test_an_agent_may_accept_and_answer_later(agent: Agent) -> None:
    chosen = agent.behave(Behaviour(status=202, body="thanks, whatever \x00", returns=Accepted()))

    assert run_agent(a_request(chosen)) == Accepted()


def test_an_agent_may_name_its_conversation_when_it_accepts(agent: Agent) -> None:
    chosen = agent.behave(Behaviour(status=202, body={"session_id": "s-1"}, returns=Accepted("s-1")))

    assert run_agent(a_request(chosen)) == Accepted("s-1")


@pytest.mark.parametrize(
    "body", [{}, [], "s-1", {"session_id": 7}, {"session_id": ""}, {"session_id": "x" * 201}]
)
def test_an_acceptance_is_one_whatever_stands_in_its_body(http_agent: HttpAgent, body: Any) -> None:
    chosen = http_agent.behave(Behaviour(status=202, body=body))

    assert run_agent(a_request(chosen)) == Accepted()


@pytest.mark.parametrize(
    "answer", [Accepted("x" * 201), Accepted("a\x00b"), Completed(Output(), session_id="x" * 201)]
)
def test_a_conversation_that_could_not_be_stored_is_refused(
    inline_agent: InlineAgent, answer: AgentResult
) -> None:
    chosen = inline_agent.behave(Behaviour(returns=answer))

    with pytest.raises(PermanentAgentError, match="session_id"):
        run_agent(a_request(chosen))


def test_an_agent_may_not_know_the_conversation_that_it_shall_continue(agent: Agent) -> None:
    body = {"error": {"code": "session_invalid", "message": "gone"}}
    chosen = agent.behave(Behaviour(status=410, body=body, raises=SessionInvalid("gone")))

    with pytest.raises(PermanentAgentError) as caught:
        run_agent(a_request(chosen, session_id="s-1"))

    assert caught.value.error_code == "session_invalid"


@pytest.mark.parametrize(
    ("output", "path"),
    [
        ({"content": "a\x00b"}, "output.content"),
        ({"content": "a\ud800b"}, ""),
        ({"data": {"deep": ["\x00"]}}, "output.data.deep[0]"),
        ({"data": {"a": 2**63}}, "output.data.a"),
        ({"data": {"a\x00": 1}}, "output.data"),
        ({"content": 7}, "output.content"),
        ({"content_type": "no type"}, "output.content_type"),
    ],
)
def test_an_output_that_could_not_be_stored_is_refused_for_good(
    output: dict[str, Any], path: str, agent: Agent
) -> None:
    chosen = agent.behave(Behaviour(body={"output": output}, returns={"output": output}))

    with pytest.raises(PermanentAgentError) as caught:
        run_agent(a_request(chosen))

    assert caught.value.error_code == "invalid_agent_answer"
    assert path in str(caught.value)
    assert str(caught.value).isprintable()


def test_an_output_that_is_nested_too_deep_is_refused_for_good(agent: Agent) -> None:
    data: list[Any] = []
    for _ in range(100):
        data = [data]
    chosen = agent.behave(Behaviour(body={"output": {"data": data}}, returns=Output(data=data)))

    with pytest.raises(PermanentAgentError, match="deeper"):
        run_agent(a_request(chosen))


def test_an_output_above_the_limit_is_refused_for_good(agent: Agent) -> None:
    text = "x" * (MAX_BYTES + 1)
    chosen = agent.behave(Behaviour(body={"output": {"content": text}}, returns=text))

    with pytest.raises(PermanentAgentError, match="larger"):
        run_agent(a_request(chosen))


def test_a_crash_may_be_tried_again(agent: Agent) -> None:
    chosen = agent.behave(Behaviour(status=500, body="boom", raises=ValueError("boom")))

    with pytest.raises(RetryableAgentError, match="boom") as caught:
        run_agent(a_request(chosen))

    assert not isinstance(caught.value, AgentRateLimited)
    assert caught.value.error_code in ("agent_error_status", "agent_crashed", "agent_failed")


def test_a_rate_limit_is_told_with_its_delay(agent: Agent) -> None:
    limited = AgentRateLimited("slow down", retry_after=7)
    chosen = agent.behave(Behaviour(status=429, headers={"Retry-After": "7"}, raises=limited))

    with pytest.raises(AgentRateLimited) as caught:
        run_agent(a_request(chosen))

    assert (caught.value.retry_after, caught.value.error_code) == (7, "rate_limited")


def test_a_refusal_is_permanent(agent: Agent) -> None:
    chosen = agent.behave(
        Behaviour(status=422, body="no such page", raises=PermanentAgentError("no such page"))
    )

    with pytest.raises(PermanentAgentError, match="no such page") as caught:
        run_agent(a_request(chosen))

    assert not caught.value.retryable


def test_what_an_agent_says_about_its_failure_never_shows_our_secrets(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    secret = webhook_signing.new_secret()
    basic = base64.b64encode(f"user:{API_KEY}".encode()).decode()
    said = f"denied: {TOKEN} {API_KEY} {secret} {basic} \x1b[31m\u202e"
    chosen = agent.behave(Behaviour(status=500, body=said, raises=ValueError(said)))
    auth = {"type": "basic", "username": "user", "password": API_KEY}

    with pytest.raises(AgentError) as caught:
        run_agent(a_request(replace(chosen, auth=auth, signing_secrets=(secret,))))

    shown = str(caught.value) + caplog.text
    assert "denied: [secret]" in shown
    assert not any(hidden in shown for hidden in (TOKEN, API_KEY, secret, basic, "\x1b", "\u202e"))


def test_an_agent_that_takes_too_long_may_be_tried_again(agent: Agent, httpserver: HTTPServer) -> None:
    chosen = agent.behave(Behaviour(raises=TimeoutError("too long")))
    if chosen.adapter == "http":
        httpserver.expect_request("/slow").respond_with_handler(lambda _: time.sleep(1) or Response("{}"))  # type: ignore[func-returns-value]
        chosen = replace(chosen, endpoint=httpserver.url_for("/slow"))

    with pytest.raises(RetryableAgentError) as caught:
        run_agent(a_request(chosen, timeout_seconds=0.2))

    assert caught.value.error_code == "agent_timeout"


# --- The HTTP adapter ---

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
    """Run a request and get it as the agent's server saw it."""

    def run(request: AgentRequest) -> Request:
        endpoint = http_agent.behave(Behaviour(body={"output": {}})).endpoint
        run_agent(replace(request, settings=replace(request.settings, adapter="http", endpoint=endpoint)))
        return httpserver.log[-1][0]

    return run


Received = Callable[[AgentRequest], Request]


def test_the_job_has_every_key_of_the_protocol_even_when_nothing_applies(received: Received) -> None:
    job = json.loads(received(a_request(AdapterSettings("http"))).data)

    assert set(job) == CONTRACT_KEYS
    assert job["wake_reason"] == "new_task"
    assert job["reviewer_notes"] is None


def test_the_job_tells_all_that_the_request_knows(received: Received) -> None:
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


def test_a_job_that_is_no_json_is_refused_before_anything_is_sent(
    http_agent: HttpAgent, httpserver: HTTPServer
) -> None:
    request = a_request(http_agent.behave(Behaviour()), params={"a": object()})

    with pytest.raises(PermanentAgentError) as caught:
        run_agent(request)

    assert caught.value.error_code == "invalid_job"
    assert not httpserver.log


def test_the_headers_name_the_job_the_run_and_the_wake(received: Received) -> None:
    request = a_request(AdapterSettings("http"))

    headers = received(request).headers

    assert headers["X-Job-Id"] == str(request.activity_id)
    assert headers["X-Execution-Id"] == str(request.run_id)
    assert headers["Idempotency-Key"] == "wake-1"
    assert headers["Content-Type"] == "application/json"
    assert "Authorization" not in headers
    assert "webhook-signature" not in headers


def test_the_call_is_signed_with_every_secret_in_force(received: Received) -> None:
    secrets = (webhook_signing.new_secret(), webhook_signing.new_secret())
    request = a_request(AdapterSettings("http", signing_secrets=secrets))

    seen = received(request)

    assert seen.headers["webhook-id"] == str(request.run_id)
    for secret in secrets:
        Webhook(secret).verify(seen.data, dict(seen.headers))


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
    chosen = replace(http_agent.behave(Behaviour()), auth=auth)

    with pytest.raises(ConfigurationError):
        run_agent(a_request(chosen))
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
def test_every_status_has_its_meaning(
    status: int, error: type[AgentError], code: str, http_agent: HttpAgent
) -> None:
    chosen = http_agent.behave(Behaviour(status=status, headers={"Location": "http://127.0.0.1/"}))

    with pytest.raises(AgentError) as caught:
        run_agent(a_request(chosen))

    assert isinstance(caught.value, error)
    assert (caught.value.error_code, caught.value.retryable) == (code, issubclass(error, RetryableAgentError))
    assert str(status) in str(caught.value)


def test_an_unavailable_agent_may_say_when_to_come_back(http_agent: HttpAgent) -> None:
    chosen = http_agent.behave(Behaviour(status=503, headers={"Retry-After": "9999"}))

    with pytest.raises(RetryableAgentError) as caught:
        run_agent(a_request(chosen))

    assert caught.value.retry_after == 3600


@pytest.mark.parametrize(
    "body", ["", "<html>", "[]", "null", '{"output": {}} x', b"\xff", "[" * 5_000, '{"output": NaN}']
)
def test_a_body_that_is_no_answer_is_refused_for_good(body: Any, http_agent: HttpAgent) -> None:
    with pytest.raises(PermanentAgentError) as caught:
        run_agent(a_request(http_agent.behave(Behaviour(body=body))))

    assert caught.value.error_code == "invalid_agent_answer"


@pytest.mark.parametrize("endpoint", [None, ""])
def test_a_role_without_endpoint_is_a_configuration_error(endpoint: str | None) -> None:
    with pytest.raises(ConfigurationError, match="seo has no endpoint"):
        run_agent(a_request(AdapterSettings("http", endpoint)))


def test_an_endpoint_inside_is_refused(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/run").respond_with_json({"output": {"content": "secret"}})

    with pytest.raises(OutboundRefused):
        run_agent(a_request(AdapterSettings("http", httpserver.url_for("/run"))))
    assert not httpserver.log


# --- The inline adapter ---


def test_the_samples_run() -> None:
    assert run_agent(a_request(AdapterSettings("inline", "agents.samples:noop"))) == Completed(Output())
    assert run_agent(a_request(AdapterSettings("inline", "agents.samples:echo"))) == Completed(
        Output("Write a title.", {"keyword": "tea"})
    )


@pytest.mark.parametrize(
    ("returned", "output"),
    [
        ("text", Output("text")),
        (None, Output()),
        (Output(data=1), Output(data=1)),
        ({"title": "a"}, Output(data={"title": "a"})),
        ({}, Output(data={})),
        ({"output": {"content": "a"}}, Output("a")),
        ({"output": {"content": "a"}, "title": "b"}, Output(data={"output": {"content": "a"}, "title": "b"})),
        ({"output": "a"}, Output(data={"output": "a"})),
    ],
)
def test_short_forms_of_a_result_are_understood(
    returned: Any, output: Output, inline_agent: InlineAgent
) -> None:
    assert run_agent(a_request(inline_agent.behave(Behaviour(returns=returned)))) == Completed(output)


@pytest.mark.parametrize(
    "returned",
    [
        5,
        ["a"],
        b"bytes",
        object(),
        Completed("text"),  # type: ignore[arg-type]
        Completed(Output(content=5)),  # type: ignore[arg-type]
        Completed(Output(), usage=Usage(input_tokens=-1)),
        Completed(Output(), usage=Usage(cost_usd=Decimal("NaN"))),
        Completed(Output(), usage={"input_tokens": 1}),  # type: ignore[arg-type]
        Completed(Output(), session_id="\x00"),
        {"when": datetime(2026, 1, 1, tzinfo=UTC)},
    ],
)
def test_other_results_are_refused_for_good(returned: Any, inline_agent: InlineAgent) -> None:
    with pytest.raises(PermanentAgentError) as caught:
        run_agent(a_request(inline_agent.behave(Behaviour(returns=returned))))

    assert caught.value.error_code == "invalid_agent_answer"


@pytest.mark.parametrize(
    "endpoint",
    [
        None,
        "",
        "agents.samples",
        "agents.samples:",
        "agents.samples:missing",
        "agents.samples:AgentRequest",
        "agents.samples:annotations",
        "agents.samples:_NOTHING",
        "agents.samples:echo.__globals__",
        "agents.samples:__import__",
        "agents.samples_of_others:echo",
        "agents.samples.deeper:echo",
        "agents:samples",
        "agents.runner:run_agent",
        "os:system",
        "os:abort",
        "subprocess:run",
        "builtins:exec",
        "..os:system",
        "agents.samples;os:system",
        "agents.samples:echo\n",
        "ägents.samples:echo",
    ],
)
def test_an_endpoint_that_is_no_listed_function_is_a_configuration_error(endpoint: str | None) -> None:
    with pytest.raises(ConfigurationError):
        run_agent(a_request(AdapterSettings("inline", endpoint)))


def test_a_module_that_is_not_listed_is_not_even_imported() -> None:
    sys.modules.pop("this", None)

    with pytest.raises(ConfigurationError, match="not among the functions"):
        run_agent(a_request(AdapterSettings("inline", "this:s")))

    assert "this" not in sys.modules


def test_a_prefix_ends_at_a_dot(settings: Any) -> None:
    settings.ORCHESTRATOR_INLINE_CALLABLES = ("inline_agents",)
    endpoint = place_function(lambda request: None, "inline_agents_of_others")

    with pytest.raises(ConfigurationError, match="not among the functions"):
        run_agent(a_request(AdapterSettings("inline", endpoint)))


def test_a_function_that_a_listed_module_only_imported_is_refused(settings: Any) -> None:
    settings.ORCHESTRATOR_INLINE_CALLABLES = ("inline_agents",)
    endpoint = place_function(lambda request: None, "inline_agents.given")
    sys.modules["inline_agents.given"].__dict__["borrowed"] = json.dumps

    with pytest.raises(ConfigurationError, match="not a function of that module"):
        run_agent(a_request(AdapterSettings("inline", endpoint.partition(":")[0] + ":borrowed")))


def test_a_single_function_can_be_listed(settings: Any) -> None:
    settings.ORCHESTRATOR_INLINE_CALLABLES = ("agents.samples.noop",)

    assert run_agent(a_request(AdapterSettings("inline", "agents.samples:noop"))) == Completed(Output())
    with pytest.raises(ConfigurationError):
        run_agent(a_request(AdapterSettings("inline", "agents.samples:echo")))


def test_a_function_taken_off_the_list_is_refused_though_it_ran_before(settings: Any) -> None:
    request = a_request(AdapterSettings("inline", "agents.samples:noop"))
    run_agent(request)

    settings.ORCHESTRATOR_INLINE_CALLABLES = ()

    with pytest.raises(ConfigurationError):
        run_agent(request)


# --- The runner ---


def test_an_unknown_adapter_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="no adapter 'telepathy'"):
        run_agent(a_request(AdapterSettings("telepathy")))


def test_an_adapter_whose_library_is_missing_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(adapters._PLACES, "rare", "a_library_that_nobody_has:Adapter")

    with pytest.raises(ConfigurationError, match="not installed"):
        run_agent(a_request(AdapterSettings("rare")))


@pytest.mark.parametrize("name", adapters.names())
def test_an_adapter_is_made_once(name: str) -> None:
    assert adapters.get(name) is adapters.get(name)


def test_celerys_soft_time_limit_counts_as_a_timeout(inline_agent: InlineAgent) -> None:
    with pytest.raises(RetryableAgentError) as caught:
        run_agent(a_request(inline_agent.behave(Behaviour(raises=SoftTimeLimitExceeded()))))

    assert caught.value.error_code == "agent_timeout"


def test_a_shutdown_is_not_mistaken_for_a_failure_of_the_agent(inline_agent: InlineAgent) -> None:
    def leave(request: AgentRequest) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        run_agent(a_request(AdapterSettings("inline", place_function(leave))))


def test_a_function_that_overran_its_time_still_counts_and_is_logged(
    inline_agent: InlineAgent, caplog: pytest.LogCaptureFixture
) -> None:
    request = a_request(inline_agent.behave(Behaviour(returns="late")), timeout_seconds=0)

    with caplog.at_level(logging.WARNING):
        assert run_agent(request) == Completed(Output("late"))

    assert [record.__dict__["action"] for record in caplog.records] == ["agent_overran"]


def test_a_crash_is_logged_by_its_type_only(
    inline_agent: InlineAgent, caplog: pytest.LogCaptureFixture
) -> None:
    request = a_request(inline_agent.behave(Behaviour(raises=KeyError("private words of the prompt"))))

    with pytest.raises(RetryableAgentError):
        run_agent(request)

    (record,) = caplog.records
    facts = record.__dict__
    assert (facts["action"], facts["error"], facts["run"]) == (
        "agent_crashed",
        "KeyError",
        str(request.run_id),
    )
    assert "private words" not in caplog.text


def test_a_call_goes_on_while_nobody_knows_whether_it_was_cancelled(
    http_agent: HttpAgent,
    httpserver: HTTPServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(budget, "POLL_SECONDS", 0.05)
    asked = threading.Event()

    def answer_once_asked(request: Request) -> Response:
        asked.wait(10)
        return Response(json.dumps({"output": {"content": "done"}}))

    class Away(Unlinked):
        def stop_reason(self) -> str | None:
            asked.set()
            raise ConnectionError("the database is away")

    httpserver.expect_request("/run").respond_with_handler(answer_once_asked)
    request = a_request(AdapterSettings("http", httpserver.url_for("/run")))

    assert run_agent(request, link=Away()) == Completed(Output("done"))
    assert "link_failed" in {record.__dict__.get("action") for record in caplog.records}


def test_celerys_soft_time_limit_is_heard_while_asking_about_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Asking:
        def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
            link.stop_reason()
            return Accepted()

    class OutOfTime(Unlinked):
        def stop_reason(self) -> str | None:
            raise SoftTimeLimitExceeded

    monkeypatch.setattr(adapters, "get", lambda name: Asking())

    with pytest.raises(RetryableAgentError) as caught:
        run_agent(a_request(AdapterSettings("asking")), link=OutOfTime())

    assert caught.value.error_code == "agent_timeout"


def test_a_cancelled_run_ends_its_call(
    http_agent: HttpAgent, httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "POLL_SECONDS", 0.05)
    gone = threading.Event()

    def wait(request: Request) -> Response:
        gone.wait(10)
        return Response()

    class Cancelled(Unlinked):
        def stop_reason(self) -> str | None:
            return "The work was cancelled."

    httpserver.expect_request("/run").respond_with_handler(wait)
    request = a_request(AdapterSettings("http", httpserver.url_for("/run")))

    with pytest.raises(AgentError) as caught:
        run_agent(request, link=Cancelled())

    gone.set()
    assert (caught.value.error_code, caught.value.retryable) == ("run_cancelled", False)


def test_without_a_link_everything_goes_on_and_there_are_no_tools() -> None:
    UNLINKED.saw_session("s-1")

    assert UNLINKED.stop_reason() is None
    assert UNLINKED.spent(Usage()) is None
    assert UNLINKED.call_tool(ToolCall("report_blocker", {}, "1")).refused
