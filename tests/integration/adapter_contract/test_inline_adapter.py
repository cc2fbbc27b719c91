"""The inline adapter: which functions may run, and what they may return."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from agents.contracts import (
    AdapterSettings,
    AgentRequest,
    Completed,
    Output,
    RunLink,
    Usage,
)
from agents.exceptions import (
    ConfigurationError,
    PermanentAgentError,
)
from agents.runner import run_agent
from tests.integration.adapter_contract.answering_agents import (
    Behaviour,
    InlineAgent,
    a_request,
    place_function,
)
from tests.recording_link import RecordingLink


def test_the_samples_run() -> None:
    assert run_agent(a_request(AdapterSettings("inline", "agents.samples:noop"))) == Completed(Output())
    assert run_agent(a_request(AdapterSettings("inline", "agents.samples:echo"))) == Completed(
        Output("Write a title.", {"keyword": "tea"})
    )


def test_a_function_with_a_link_parameter_receives_the_link(settings: Any) -> None:
    settings.ORCHESTRATOR_INLINE_CALLABLES = ("inline_agents",)
    link = RecordingLink()

    def talkative(request: AgentRequest, link: RunLink) -> str:
        link.log("text", "I begin.")
        return link.stop_reason() or "done"

    result = run_agent(a_request(AdapterSettings("inline", place_function(talkative))), link=link)

    assert result == Completed(Output("done"))
    assert link.lines == [("text", "I begin.")]


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
def test_short_forms_of_a_result_are_accepted(
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
def test_other_results_fail_permanently(returned: Any, inline_agent: InlineAgent) -> None:
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
def test_an_endpoint_that_is_not_a_listed_function_is_a_configuration_error(endpoint: str | None) -> None:
    with pytest.raises(ConfigurationError):
        run_agent(a_request(AdapterSettings("inline", endpoint)))


def test_a_module_that_is_not_listed_is_not_imported() -> None:
    sys.modules.pop("this", None)

    with pytest.raises(ConfigurationError, match="not among the functions"):
        run_agent(a_request(AdapterSettings("inline", "this:s")))

    assert "this" not in sys.modules


def test_a_listed_prefix_ends_at_a_dot(settings: Any) -> None:
    settings.ORCHESTRATOR_INLINE_CALLABLES = ("inline_agents",)
    endpoint = place_function(lambda request: None, "inline_agents_of_others")

    with pytest.raises(ConfigurationError, match="not among the functions"):
        run_agent(a_request(AdapterSettings("inline", endpoint)))


def test_a_function_that_a_listed_module_only_imported_is_refused(settings: Any) -> None:
    settings.ORCHESTRATOR_INLINE_CALLABLES = ("inline_agents",)
    endpoint = place_function(lambda request: None, "inline_agents.placed")
    sys.modules["inline_agents.placed"].__dict__["borrowed"] = json.dumps

    with pytest.raises(ConfigurationError, match="not a function of that module"):
        run_agent(a_request(AdapterSettings("inline", endpoint.partition(":")[0] + ":borrowed")))


def test_a_single_function_can_be_listed(settings: Any) -> None:
    settings.ORCHESTRATOR_INLINE_CALLABLES = ("agents.samples.noop",)

    assert run_agent(a_request(AdapterSettings("inline", "agents.samples:noop"))) == Completed(Output())
    with pytest.raises(ConfigurationError):
        run_agent(a_request(AdapterSettings("inline", "agents.samples:echo")))


def test_a_function_removed_from_the_list_is_refused_although_it_ran_before(settings: Any) -> None:
    request = a_request(AdapterSettings("inline", "agents.samples:noop"))
    run_agent(request)

    settings.ORCHESTRATOR_INLINE_CALLABLES = ()

    with pytest.raises(ConfigurationError):
        run_agent(request)
