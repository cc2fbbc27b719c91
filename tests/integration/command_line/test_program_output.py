"""How the output of a program is read."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agents.command_line import output
from agents.contracts import Completed, Output, Usage
from agents.exceptions import (
    PermanentAgentError,
    RetryableAgentError,
    SessionInvalid,
)
from tests.integration.command_line.calls import STREAM, run, run_and_fail
from tests.programs import program
from tests.recording_link import RecordingLink


def test_session_and_usage_are_reported_while_the_program_runs(tmp_path: Path) -> None:
    code = """
        say(type="system", session_id="s-1")
        for number in (1, 1, 2):
            say(type="assistant", message={"id": f"m{number}", "model": "m", "usage": {"input_tokens": 5, "output_tokens": 2}})
        print("no json at all")
        say(type="result", result="Done.", session_id="s-1", total_cost_usd=0.25, model="m",
            usage={"input_tokens": 10, "cache_read_input_tokens": 3, "output_tokens": 9})
    """
    link = RecordingLink()

    result = run(program(tmp_path, code), link, **STREAM)

    total = Usage(13, 9, Decimal("0.25"), "m")
    assert result == Completed(Output("Done."), total, "s-1")
    assert link.sessions == ["s-1"]
    assert link.usages == [Usage(5, 2, None, "m"), Usage(10, 4, None, "m"), total]


def test_events_of_a_second_kind_of_coding_agent_are_read() -> None:
    link = RecordingLink()
    events = output.Events(link, lambda reason: None)
    for event in (
        {"type": "thread.started", "thread_id": "t-1"},
        {"type": "item.completed", "item": {"type": "reasoning", "text": "hm"}},
        {"type": "item.completed", "item": {"type": "agent_message", "text": "The answer."}},
        {"type": "turn.completed", "usage": {"input_tokens": 7, "output_tokens": 3}},
    ):
        events.feed(json.dumps(event).encode() + b"\n")

    assert events.close().result == Completed(Output("The answer."), Usage(7, 3), "t-1")
    assert link.sessions == ["t-1"]


def test_events_of_a_program_become_lines_of_the_log(tmp_path: Path) -> None:
    code = """
        import os, sys
        def message(role, *blocks):
            say(type=role, message={"id": "m1", "content": list(blocks)})
        message("assistant", {"type": "thinking", "thinking": "Bees?"}, {"type": "text", "text": "I look.\\nThere."})
        message("assistant", {"type": "tool_use", "name": "Bash", "input": {"command": "ls"}})
        message("user", {"type": "tool_result", "content": [{"type": "text", "text": "a.txt"}]})
        print("careful, " + os.environ["ORCHESTRATOR_CALLBACK_TOKEN"], file=sys.stderr, flush=True)
        say(type="item.completed", item={"type": "command_execution", "command": "pytest", "aggregated_output": "ok", "exit_code": 0})
        say(type="result", result="Done.")
    """
    link = RecordingLink()

    run(program(tmp_path, code), link, **STREAM)

    assert ("note", "careful, [secret]") in link.lines
    assert [line for line in link.lines if not line[1].startswith("careful")] == [
        ("note", "Bees?"),
        ("text", "I look."),
        ("text", "There."),
        ("tool_call", 'Bash {"command":"ls"}'),
        ("tool_result", "a.txt"),
        ("tool_call", "$ pytest"),
        ("tool_result", "ok"),
        ("tool_result", "exit code 0"),
    ]


def test_printed_text_becomes_lines_of_the_log(tmp_path: Path) -> None:
    link = RecordingLink()

    run(program(tmp_path, "print('one'); print('two', end='')"), link)

    assert link.lines == [("text", "one"), ("text", "two")]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_may_come_in_pieces_of_any_size(size: int) -> None:
    text = '{"type": "system", "session_id": "s-1"}\n{"type": "result", "result": "Grüße", "structured_output": [1]}'.encode()
    events = output.Events(RecordingLink(), lambda reason: None)
    for start in range(0, len(text), size):
        events.feed(text[start : start + size])

    assert events.close().result == Completed(Output("Grüße", [1]), None, "s-1")


def test_an_endless_event_takes_no_memory_and_the_next_one_is_read() -> None:
    events = output.Events(RecordingLink(), lambda reason: None)
    for _ in range(100):
        events.feed(b"x" * 100_000)
    assert len(events.rest) <= output.LONGEST_LINE
    events.feed(b'\n{"type": "result", "result": "ok"}\n')

    assert events.close().result == Completed(Output("ok"))


def test_the_final_object_of_a_coding_agent_is_accepted_as_json(tmp_path: Path) -> None:
    code = (
        "say(type='result', result='Done.', session_id='s-1', usage={'input_tokens': 1, 'output_tokens': 2})"
    )

    assert run(program(tmp_path, code), output="json") == Completed(Output("Done."), Usage(1, 2), "s-1")


@pytest.mark.parametrize(
    ("code", "options", "expected", "error_code"),
    [
        ("sys.exit(1)", {}, RetryableAgentError, "agent_failed"),
        ("sys.exit(7)", {"permanent_exit_codes": [7]}, PermanentAgentError, "agent_failed"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", {}, RetryableAgentError, "agent_killed"),
        ("pass", STREAM, RetryableAgentError, "agent_failed"),
        ("print('{')", {"output": "json"}, PermanentAgentError, "invalid_agent_answer"),
        ("say(type='result', is_error=True, result='no')", STREAM, RetryableAgentError, "agent_failed"),
        ("say(type='result', subtype='error_max_turns')", STREAM, PermanentAgentError, "max_turns"),
        ("print('x' * 2_000_000)", {}, PermanentAgentError, "invalid_agent_answer"),
        ("say(type='result', output={'content': 5})", STREAM, PermanentAgentError, "invalid_agent_answer"),
    ],
)  # fmt: skip
def test_every_exit_of_a_program_has_its_error(
    tmp_path: Path, code: str, options: dict[str, Any], expected: type, error_code: str
) -> None:
    error = run_and_fail(program(tmp_path, code), **options)

    assert type(error) in (expected, *expected.__subclasses__())
    assert error.retryable == (expected is RetryableAgentError)
    assert error.error_code == error_code


def test_a_session_that_the_program_does_not_know_is_invalid(tmp_path: Path) -> None:
    command, pattern = program(tmp_path, "sys.exit('No conversation found')"), "no conversation found"

    assert isinstance(
        run_and_fail(command, session_invalid=pattern, changes={"session_id": "s-1"}), SessionInvalid
    )
    # The program received no session.
    assert type(run_and_fail(command, session_invalid=pattern)) is RetryableAgentError


def test_the_error_of_a_program_contains_no_secrets(tmp_path: Path) -> None:
    error = run_and_fail(program(tmp_path, "sys.exit('bad key ' + os.environ['K'])"), credential_variable="K")

    assert "bad key [secret]" in str(error)
