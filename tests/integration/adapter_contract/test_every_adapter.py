"""What holds for agents over HTTP, in Python and on the command line: their request, results and failures."""

from __future__ import annotations

import base64
import threading
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Response

from agents import webhook_signing
from agents.contracts import (
    Accepted,
    AgentResult,
    Completed,
    Output,
    Usage,
)
from agents.exceptions import (
    AgentError,
    AgentRateLimited,
    PermanentAgentError,
    RetryableAgentError,
    SessionInvalid,
)
from agents.runner import run_agent
from tests.integration.adapter_contract.answering_agents import (
    MAX_BYTES,
    TOKEN,
    Agent,
    Behaviour,
    HttpAgent,
    InlineAgent,
    a_request,
)

API_KEY = "agents-own-key-0123456789"


def test_an_agent_receives_its_role_parameters_prompt_and_run(agent: Agent) -> None:
    request = a_request(agent.behave(Behaviour(body={"output": {}})))

    run_agent(request)

    assert agent.received() == {
        "role": "seo",
        "params": {"keyword": "tea"},
        "prompt": "Write a title.\nKeep it short.",
        "run": request.run_id,
    }


def test_text_is_returned_as_content(agent: Agent) -> None:
    text = "Grüße 🍵\n"
    settings = agent.behave(Behaviour(body={"output": {"content": text}}, returns=text))

    assert run_agent(a_request(settings)) == Completed(Output(content=text))


def test_data_is_returned_as_data(agent: Agent) -> None:
    data = {"titles": ["a", "b"], "score": 0.5, "best": None}
    settings = agent.behave(Behaviour(body={"output": {"data": data}}, returns=Output(data=data)))

    assert run_agent(a_request(settings)) == Completed(Output(data=data))


def test_usage_session_and_content_type_are_returned(agent: Agent) -> None:
    answer = {
        "output": {"content": "<p>", "content_type": "text/html"},
        "usage": {"input_tokens": 3, "output_tokens": 4, "cost_usd": 0.25, "model": "m"},
        "session_id": "s",
    }
    settings = agent.behave(Behaviour(body=answer, returns=answer))

    expected = Completed(Output("<p>", None, "text/html"), Usage(3, 4, Decimal("0.25"), "m"), "s")
    assert run_agent(a_request(settings)) == expected


def test_an_agent_may_produce_nothing(agent: Agent) -> None:
    settings = agent.behave(Behaviour(body={"output": {}}, returns=None))

    assert run_agent(a_request(settings)) == Completed(Output())


def test_an_agent_may_accept_and_answer_later(agent: Agent) -> None:
    settings = agent.behave(Behaviour(status=202, body="thanks, whatever \x00", returns=Accepted()))

    assert run_agent(a_request(settings)) == Accepted()


def test_an_agent_may_name_its_session_when_it_accepts(agent: Agent) -> None:
    settings = agent.behave(Behaviour(status=202, body={"session_id": "s-1"}, returns=Accepted("s-1")))

    assert run_agent(a_request(settings)) == Accepted("s-1")


@pytest.mark.parametrize(
    "body", [{}, [], "s-1", {"session_id": 7}, {"session_id": ""}, {"session_id": "x" * 201}]
)
def test_a_202_is_an_acceptance_whatever_its_body_holds(http_agent: HttpAgent, body: Any) -> None:
    settings = http_agent.behave(Behaviour(status=202, body=body))

    assert run_agent(a_request(settings)) == Accepted()


@pytest.mark.parametrize(
    "answer", [Accepted("x" * 201), Accepted("a\x00b"), Completed(Output(), session_id="x" * 201)]
)
def test_a_session_id_that_cannot_be_stored_is_refused(
    inline_agent: InlineAgent, answer: AgentResult
) -> None:
    settings = inline_agent.behave(Behaviour(returns=answer))

    with pytest.raises(PermanentAgentError, match="session_id"):
        run_agent(a_request(settings))


def test_an_agent_may_answer_that_the_session_is_invalid(agent: Agent) -> None:
    body = {"error": {"code": "session_invalid", "message": "gone"}}
    settings = agent.behave(Behaviour(status=410, body=body, raises=SessionInvalid("gone")))

    with pytest.raises(PermanentAgentError) as caught:
        run_agent(a_request(settings, session_id="s-1"))

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
def test_an_output_that_cannot_be_stored_fails_permanently(
    output: dict[str, Any], path: str, agent: Agent
) -> None:
    settings = agent.behave(Behaviour(body={"output": output}, returns={"output": output}))

    with pytest.raises(PermanentAgentError) as caught:
        run_agent(a_request(settings))

    assert caught.value.error_code == "invalid_agent_answer"
    assert path in str(caught.value)
    assert str(caught.value).isprintable()


def test_an_output_that_is_nested_too_deep_fails_permanently(agent: Agent) -> None:
    data: list[Any] = []
    for _ in range(100):
        data = [data]
    settings = agent.behave(Behaviour(body={"output": {"data": data}}, returns=Output(data=data)))

    with pytest.raises(PermanentAgentError, match="deeper"):
        run_agent(a_request(settings))


def test_an_output_above_the_limit_fails_permanently(agent: Agent) -> None:
    text = "x" * (MAX_BYTES + 1)
    settings = agent.behave(Behaviour(body={"output": {"content": text}}, returns=text))

    with pytest.raises(PermanentAgentError, match="larger"):
        run_agent(a_request(settings))


def test_a_crash_is_retryable(agent: Agent) -> None:
    settings = agent.behave(Behaviour(status=500, body="boom", raises=ValueError("boom")))

    with pytest.raises(RetryableAgentError, match="boom") as caught:
        run_agent(a_request(settings))

    assert not isinstance(caught.value, AgentRateLimited)
    assert caught.value.error_code in ("agent_error_status", "agent_crashed", "agent_failed")


def test_a_rate_limit_has_its_delay(agent: Agent) -> None:
    limited = AgentRateLimited("slow down", retry_after=7)
    settings = agent.behave(Behaviour(status=429, headers={"Retry-After": "7"}, raises=limited))

    with pytest.raises(AgentRateLimited) as caught:
        run_agent(a_request(settings))

    assert (caught.value.retry_after, caught.value.error_code) == (7, "rate_limited")


def test_a_refusal_is_permanent(agent: Agent) -> None:
    settings = agent.behave(
        Behaviour(status=422, body="no such page", raises=PermanentAgentError("no such page"))
    )

    with pytest.raises(PermanentAgentError, match="no such page") as caught:
        run_agent(a_request(settings))

    assert not caught.value.retryable


def test_the_error_message_of_an_agent_never_contains_our_secrets(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    secret = webhook_signing.new_secret()
    basic = base64.b64encode(f"user:{API_KEY}".encode()).decode()
    failure = f"denied: {TOKEN} {API_KEY} {secret} {basic} \x1b[31m\u202e"
    settings = agent.behave(Behaviour(status=500, body=failure, raises=ValueError(failure)))
    auth = {"type": "basic", "username": "user", "password": API_KEY}

    with pytest.raises(AgentError) as caught:
        run_agent(a_request(replace(settings, auth=auth, signing_secrets=(secret,))))

    message = str(caught.value) + caplog.text
    assert "denied: [secret]" in message
    assert not any(hidden in message for hidden in (TOKEN, API_KEY, secret, basic, "\x1b", "\u202e"))


def test_an_agent_that_takes_too_long_may_be_tried_again(agent: Agent, httpserver: HTTPServer) -> None:
    settings = agent.behave(Behaviour(raises=TimeoutError("too long")))
    ended = threading.Event()
    if settings.adapter == "http":
        httpserver.expect_request("/slow").respond_with_handler(lambda _: ended.wait(60) and Response("{}"))
        settings = replace(settings, endpoint=httpserver.url_for("/slow"))

    with pytest.raises(RetryableAgentError) as caught:
        run_agent(a_request(settings, timeout_seconds=0.2))

    ended.set()
    assert caught.value.error_code == "agent_timeout"
