"""What holds for every adapter. What an adapter cannot do is skipped with its reason."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from agents import adapters
from agents.contracts import Completed, Output, ToolAnswer, ToolCall
from agents.exceptions import AgentError, AgentRateLimited, PermanentAgentError, RetryableAgentError
from agents.models import Adapter
from agents.runner import run_agent
from tests.recording_link import RecordingLink
from tests.subjects import (
    SUBJECTS,
    TESTED_ELSEWHERE,
    TOKEN,
    Calls,
    Fails,
    Hangs,
    Says,
    Subject,
    a_request,
    usage,
)


def needs(subject: Subject, ability: str) -> None:
    if ability in subject.cannot:
        pytest.skip(f"{subject.name}: {subject.cannot[ability]}")


def test_every_adapter_is_tested_here_or_elsewhere() -> None:
    assert sorted((*SUBJECTS, *TESTED_ELSEWHERE)) == sorted(adapters.names()) == sorted(Adapter.values)


def test_an_agent_is_started_with_its_prompt(subject: Subject) -> None:
    subject.run(Says())

    assert subject.prompts() == ["Write a title.\nKeep it short."]


def test_the_text_of_an_agent_is_its_output(subject: Subject) -> None:
    result = subject.run(Says("Grüße 🍵\nund mehr"))

    assert isinstance(result, Completed)
    assert result.output == Output("Grüße 🍵\nund mehr")


def test_the_usage_of_an_agent_is_part_of_the_result(subject: Subject) -> None:
    result = subject.run(Says("x", 11, 5))

    assert isinstance(result, Completed)
    assert result.usage == usage(11, 5)


def test_an_agent_calls_a_tool_and_continues_with_its_answer(subject: Subject) -> None:
    needs(subject, "tools")
    link = RecordingLink()
    subtask = {"name": "Pictures", "description": "Find two.", "human_role": "editor", "blocking": False}

    result = subject.run(Calls("create_subtask", subtask), Says("Done."), link=link)

    assert [(call.name, dict(call.arguments)) for call in link.tool_calls] == [("create_subtask", subtask)]
    assert isinstance(result, Completed)
    assert result.output.content == "Done."
    assert result.usage == usage(12, 5)
    assert [each.output_tokens for each in link.usages] == [2, 5]


def test_people_read_what_an_agent_says_and_does_while_it_works(subject: Subject) -> None:
    needs(subject, "log")
    subtask = {"name": "Pictures", "description": "Find two.", "human_role": "editor", "blocking": False}
    seen_at_the_call: list[tuple[str, str]] = []

    def answer(call: ToolCall) -> ToolAnswer:
        seen_at_the_call.extend(link.lines)
        return ToolAnswer({"id": "0190"})

    link = RecordingLink(answer)
    subject.run(Calls("create_subtask", subtask), Says("Done.\nAll of it."), link=link)

    call = ("tool_call", f"create_subtask {json.dumps(subtask)}")
    assert seen_at_the_call == [("text", "I need this."), call]
    assert link.lines == [
        ("text", "I need this."),
        call,
        ("tool_result", 'create_subtask: {"id": "0190"}'),
        ("text", "Done."),
        ("text", "All of it."),
    ]


def test_the_token_of_a_run_is_redacted_in_its_log(subject: Subject) -> None:
    needs(subject, "log")
    link = RecordingLink()

    subject.run(Says(f"It is {TOKEN}!"), link=link)

    assert [text for _, text in link.lines] == ["It is [secret]!"]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("report_blocker", {"type": "api_outage", "message": "The search is down."}),
        ("request_human_review", {"question": "Formal or not?"}),
    ],
)
def test_a_blocker_or_a_review_ends_the_run_at_once_without_output(
    subject: Subject, tool: str, arguments: dict[str, str]
) -> None:
    needs(subject, "tools")
    link = RecordingLink(lambda call: ToolAnswer({"stop": True}, stop=True))

    result = subject.run(Calls(tool, arguments), link=link)

    assert isinstance(result, Completed)
    assert (result.output, len(subject.prompts())) == (Output(), 1)
    assert [call.name for call in link.tool_calls] == [tool]


def test_an_agent_may_call_again_after_a_refused_tool_call(subject: Subject) -> None:
    needs(subject, "tools")
    answers = iter([ToolAnswer({"error": "unknown_role"}, refused=True), ToolAnswer({"id": "1"})])
    link = RecordingLink(lambda call: next(answers))
    wrong = {"name": "a", "description": "b", "agent_role": "nobody", "blocking": False}

    result = subject.run(
        Calls("create_subtask", wrong),
        Calls("create_subtask", {**wrong, "agent_role": "seo"}),
        Says(),
        link=link,
    )

    assert len(link.tool_calls) == 2
    assert isinstance(result, Completed)


def test_the_result_names_the_session_of_agents_that_have_one(subject: Subject) -> None:
    result = subject.run(Says(), session_id="s-1")

    assert isinstance(result, Completed)
    assert result.session_id == subject.session()


def test_the_call_of_a_cancelled_run_ends(subject: Subject) -> None:
    needs(subject, "cancel")
    link = RecordingLink()
    threading.Timer(0.3, lambda: setattr(link, "stop", lambda: "The work was cancelled.")).start()
    start = time.monotonic()

    with pytest.raises(AgentError) as caught:
        subject.run(Hangs(), link=link)

    assert caught.value.error_code == "run_cancelled"
    assert not caught.value.retryable
    assert time.monotonic() - start < 10  # because the run has 20


def test_an_agent_that_takes_too_long_may_be_tried_again(subject: Subject) -> None:
    needs(subject, "timeout")
    with pytest.raises(RetryableAgentError) as caught:
        subject.run(Hangs(), timeout_seconds=0.4)

    assert caught.value.error_code == "agent_timeout"
    assert caught.value.uses_attempt


@pytest.mark.parametrize("status", [500, 503, 529])
def test_a_server_error_is_retryable(subject: Subject, status: int) -> None:
    with pytest.raises(RetryableAgentError) as caught:
        subject.run(Fails(status))

    assert not isinstance(caught.value, AgentRateLimited)
    assert caught.value.uses_attempt


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_refusal_is_permanent(subject: Subject, status: int) -> None:
    with pytest.raises(PermanentAgentError, match="made to fail") as caught:
        subject.run(Fails(status))

    assert not caught.value.retryable


def test_a_rate_limit_has_its_delay_and_uses_no_attempt(subject: Subject) -> None:
    with pytest.raises(AgentRateLimited) as caught:
        subject.run(Fails(429, 7))

    assert (caught.value.retry_after, caught.value.uses_attempt) == (7, False)


def test_an_unreachable_agent_is_retryable(subject: Subject, settings: Any) -> None:
    needs(subject, "unreachable")
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("127.0.0.1:1",)
    nowhere = replace(subject.script(Says()), endpoint="http://127.0.0.1:1/run")

    with pytest.raises(RetryableAgentError) as caught:
        run_agent(a_request(nowhere))

    assert caught.value.error_code == "agent_unreachable"
