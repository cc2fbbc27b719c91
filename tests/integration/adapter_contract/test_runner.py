"""The runner: how it finds adapters and treats time limits, cancellation and crashes."""

from __future__ import annotations

import json
import logging
import threading

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from agents import adapters
from agents.adapters import UNLINKED, Unlinked
from agents.contracts import (
    Accepted,
    AdapterSettings,
    AgentRequest,
    AgentResult,
    Completed,
    Output,
    RunLink,
    ToolCall,
    Usage,
)
from agents.exceptions import (
    AgentError,
    ConfigurationError,
    RetryableAgentError,
)
from agents.outbound import budget
from agents.runner import run_agent
from tests.integration.adapter_contract.answering_agents import (
    Behaviour,
    HttpAgent,
    InlineAgent,
    a_request,
    place_function,
)


def test_an_unknown_adapter_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="no adapter 'telepathy'"):
        run_agent(a_request(AdapterSettings("telepathy")))


def test_an_adapter_whose_library_is_missing_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(adapters._IMPORT_PATHS, "rare", "a_library_that_nobody_has:Adapter")

    with pytest.raises(ConfigurationError, match="not installed"):
        run_agent(a_request(AdapterSettings("rare")))


@pytest.mark.parametrize("name", adapters.names())
def test_an_adapter_is_created_once(name: str) -> None:
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


def test_a_result_after_the_timeout_counts_and_is_logged(
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


def test_a_call_continues_when_the_check_for_cancellation_fails(
    http_agent: HttpAgent,
    httpserver: HTTPServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(budget, "POLL_SECONDS", 0.05)
    checked = threading.Event()

    def answer_after_the_check(request: Request) -> Response:
        checked.wait(10)
        return Response(json.dumps({"output": {"content": "done"}}))

    class Unavailable(Unlinked):
        def stop_reason(self) -> str | None:
            checked.set()
            raise ConnectionError("the database is unavailable")

    httpserver.expect_request("/run").respond_with_handler(answer_after_the_check)
    request = a_request(AdapterSettings("http", httpserver.url_for("/run")))

    assert run_agent(request, link=Unavailable()) == Completed(Output("done"))
    assert "link_failed" in {record.__dict__.get("action") for record in caplog.records}


def test_celerys_soft_time_limit_counts_during_the_check_for_cancellation(
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


def test_without_a_link_a_run_continues_and_has_no_tools() -> None:
    UNLINKED.saw_session("s-1")

    assert UNLINKED.stop_reason() is None
    assert UNLINKED.count_usage(Usage()) is None
    assert UNLINKED.call_tool(ToolCall("report_blocker", {}, "1")).refused
